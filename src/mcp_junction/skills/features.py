"""ToolText: what a classifier reads of a tool or of a server, as fields and as terms.

The trained classifier and its training (``training/skills.py``) read the same terms. Also names a
group of tools that fit no skill, by the words that they share; ``registry/verdicts.py`` says
which tools those are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from mcp_junction.search.words import stem, tool_text
from mcp_junction.search.words import terms as split_terms

_NAME: Final = 300
_DESCRIPTION: Final = 400
"""Characters of a description that count."""
_PARAMETERS: Final = 400


class ToolText(msgspec.Struct, frozen=True, gc=False):
    """The words of a tool, by where they stand. A server has a title and a description only."""

    name: str
    description: str = ""
    parameters: str = ""

    @property
    def embedded(self) -> str:
        """The text that a tool's vector is made of: its name, as words, and its description."""
        return tool_text("", self.name, self.description)

    def terms(self) -> Iterator[str]:
        """Yield the stems, the pairs of stems, and the stems marked by the field they stand in."""
        for mark, text in (("n", self.name), ("d", self.description), ("p", self.parameters)):
            found = split_terms(text)
            yield from found
            yield from (f"{mark}:{term}" for term in found)
            if mark != "p":
                yield from (f"{one} {two}" for one, two in pairwise(found))


class _InputSchema(msgspec.Struct):
    properties: dict[str, Any] = {}


class _Definition(msgspec.Struct):
    title: Any = None
    description: Any = None
    inputSchema: msgspec.Raw = msgspec.Raw(b"{}")


_decode = msgspec.json.Decoder(_Definition).decode
_decode_schema = msgspec.json.Decoder(_InputSchema).decode


def read_tool(name: str, definition: bytes) -> ToolText:
    """Read the words of a tool; of a definition that makes no sense, only its name."""
    try:
        tool = _decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        tool = _Definition()
    try:
        parameters = " ".join(_decode_schema(tool.inputSchema).properties)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        parameters = ""
    texts = [part for part in (tool.title, tool.description) if isinstance(part, str)]
    return make_text(name, " ".join(texts), parameters)


def make_text(name: str, description: str = "", parameters: str = "") -> ToolText:
    """Make a ToolText of words of any length, without what cannot be encoded."""
    cut = name[:_NAME], description[:_DESCRIPTION], parameters[:_PARAMETERS]
    return ToolText(*(text.encode(errors="replace").decode() for text in cut))


# -- groups of tools

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
        useful = set(split_terms(both)) - _GENERAL
        for root, word in found.items():
            if root in useful:
                tools[root] += 1
                forms.setdefault(root, Counter())[word] += 1
    ranked = sorted(tools, key=lambda root: (-tools[root], root))
    return [forms[root].most_common(1)[0][0] for root in ranked]
