"""The words of tools and queries: as stemmed terms for the index, and as texts to embed.

``createPullRequest``, ``create_pull_request`` and "creating pull requests" have the same terms.
The stemming is light: a term need not be a word. Scripts without spaces are cut into overlapping
pairs of characters. What is embedded is the text of a tool with its server's title, and the clauses
of a query; ``static_table.py`` and ``minilm.py`` embed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Final

_RUN: Final = re.compile(r"[^\W_]+")
_PART: Final = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+")
_MIXED: Final = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_DENSE: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
_VOWEL: Final = re.compile(r"[aeiouy]")
_LONGEST: Final = 40
_SMALL: Final = (
    "a about all also an and any are as at be been being but by can could do does each for from had"
    " has have he her here his how i if in into is it its just like may me more most my need needs"
    " no not of on one only or other our out please she should so some such than that the their"
    " them then there these they this those to too up us use used using very via want was we were"
    " what when where which while who will with would you your"
)
_STOP: Final = frozenset(_SMALL.split())


def terms(text: str) -> list[str]:
    """Return the terms of a text, in order, with repetitions, without stop words."""
    return [stem(word) for word in _words(text) if word not in _STOP]


def all_terms(text: str) -> list[str]:
    """Return the terms of a name, with stop words."""
    return [stem(word) for word in _words(text)]


def query_terms(query: str) -> list[str]:
    """Return the terms of a query; stop words count where there are no others."""
    return terms(query) or all_terms(query)


def _words(text: str) -> Iterator[str]:
    for run in _RUN.findall(text):
        if not run.isascii() and _DENSE.search(run):
            yield from _pairs(run)
            continue
        if _MIXED.search(run):
            parts = _PART.findall(run)
            if len(parts) > 1:
                yield from (part.lower()[:_LONGEST] for part in parts)
        yield run.lower()[:_LONGEST]


def _pairs(run: str) -> Iterator[str]:
    """Yield overlapping pairs of characters in scripts without spaces; other letters as words."""
    at = 0
    for dense in _DENSE.finditer(run):
        if at < dense.start():
            yield from _words(run[at : dense.start()])
        text = dense.group()
        yield from (text[i : i + 2] for i in range(max(1, len(text) - 1)))
        at = dense.end()
    if at < len(run):
        yield from _words(run[at:])


@lru_cache(65536)
def stem(word: str) -> str:
    """Remove endings such as -s, -ing and -ed from a word."""
    if len(word) <= 3 or not word.isascii():
        return word
    word = _singular(word)
    for ending in ("ing", "ed"):
        if word.endswith(ending) and _is_stem(word[: -len(ending)]):
            word = _undouble(word[: -len(ending)])
            break
    else:
        if word.endswith(("tion", "sion")) and len(word) > 6:
            word = word[:-3]
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


def _singular(word: str) -> str:
    if not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    return word[:-1]


def _is_stem(rest: str) -> bool:
    return len(rest) >= 3 and _VOWEL.search(rest) is not None


def _undouble(word: str) -> str:
    """Undouble the last letter: ``runn`` to ``run``; ``call`` and ``pass`` stay."""
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        return word[:-1]
    return word


# -- texts to embed

_SPLIT: Final = re.compile(r"[_\-./:\s]+|(?<=[a-z0-9])(?=[A-Z])")
_CLAUSE: Final = re.compile(r"[.;!?,\n]+|\b(?:and|then|but|also)\b", re.IGNORECASE)
_SHORTEST: Final = 3
"""Words of a clause, at least."""
MOST_CLAUSES: Final = 24
_NAME: Final = 300
_TITLE: Final = 120
_READ: Final = 200
"""Characters of a description that are embedded."""


def split_name(name: str) -> str:
    """Split a name into words: ``createNewIssue`` and ``create_new_issue`` alike."""
    return " ".join(part for part in _SPLIT.split(name[:_NAME]) if part)


def tool_text(title: str, name: str, description: str) -> str:
    """Return the text that is embedded for a tool."""
    about = f"{split_name(name)}. {description[:_READ]}"
    return f"{title[:_TITLE]}: {about}" if title else about


def split_clauses(query: str) -> list[str]:
    """Split a query into its needs; those of fewer than three words are left out."""
    parts = (part.strip() for part in _CLAUSE.split(query))
    return [part for part in parts if len(part.split()) >= _SHORTEST][:MOST_CLAUSES]


def text_hash(text: str) -> str:
    """Return a short hash of a text."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
