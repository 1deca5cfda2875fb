"""Names and describes a group of tools that fit no skill. Which tools those are: ``registry/``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from mcp_junction.search.words import stem, terms
from mcp_junction.skills.features import ToolText

_WORD: Final = re.compile(r"[^\W\d_]{3,30}")
_TOO_GENERAL: Final = (
    "get list create update delete set add remove find search read write show make run check"
    " tool data item value name result return new all given server mcp api info information"
    " details specific based id type user request number text string object query response"
    " record log fetch send start stop open close manage plan report current available"
)
_GENERAL: Final = frozenset(stem(word) for word in _TOO_GENERAL.split())
_NAMED: Final = 2
_MENTIONED: Final = 6
_EXAMPLES: Final = 3
_LONGEST: Final = 300


def describe_group(texts: Sequence[ToolText], taken: Collection[str]) -> tuple[str, str]:
    """Make a name and a description of what most tools of a group have in common.

    The tools come the most typical first; no name that is ``taken`` is made.
    """
    words = _common_words(texts) or ["Other"]
    name = " and ".join(words[:_NAMED]).capitalize()
    for more in range(_NAMED + 1, len(words) + 1):
        if name not in taken:
            break
        name = ", ".join(words[:more]).capitalize()
    number = 2
    plain = name
    while name in taken:
        name, number = f"{plain} {number}", number + 1
    examples = ", ".join(text.name for text in texts[:_EXAMPLES])
    described = f"{', '.join(words[:_MENTIONED]).capitalize()}: tools such as {examples}"
    printable = "".join(letter if letter.isprintable() else " " for letter in described)
    return name, printable[:_LONGEST].strip()


def _common_words(texts: Sequence[ToolText]) -> list[str]:
    """Return the words that the most tools have, each in its most frequent form."""
    tools: Counter[str] = Counter()
    forms: dict[str, Counter[str]] = {}
    for text in texts:
        both = f"{text.name.replace('_', ' ')} {text.description}"
        found = {stem(word): word for word in map(str.lower, _WORD.findall(both))}
        useful = set(terms(both)) - _GENERAL
        for root, word in found.items():
            if root in useful:
                tools[root] += 1
                forms.setdefault(root, Counter())[word] += 1
    ranked = sorted(tools, key=lambda root: (-tools[root], root))
    return [forms[root].most_common(1)[0][0] for root in ranked]
