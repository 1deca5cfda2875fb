"""KeywordIndex: BM25 over the fields of tools, updated one tool at a time."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Set
from itertools import islice
from math import log
from sys import intern
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.protocol.names import Pair
from mcp_junction.search.words import all_terms, query_terms, terms

NAME: Final = "name"
DESCRIPTION: Final = "description"
PARAMS: Final = "params"
SERVER: Final = "server"

_READ: Final = 500
"""Characters of a description that are indexed: it may be very long."""
_NAMES: Final = 300
"""Characters of a name."""
_PARAMS: Final = 1000
"""Characters of the names of all parameters."""

Fields = dict[str, Counter[str]]


class IndexedTool(Protocol):
    """A tool: its name, and the members of its definition, raw."""

    @property
    def name(self) -> str: ...

    @property
    def members(self) -> dict[str, Raw]: ...


class _Schema(msgspec.Struct):
    properties: dict[str, Raw] = {}


_strings = msgspec.json.Decoder(str)
_schemas = msgspec.json.Decoder(_Schema)


def describe(tool: IndexedTool) -> str:
    """Return the title and description of a tool, as far as they can be decoded."""
    members = tool.members
    title = _decode(_strings, members.get("title"))
    return f"{title} {_decode(_strings, members.get('description'))}".strip()


def tool_fields(server: str, tool: IndexedTool, title: str = "") -> Fields:
    """Return the terms of a tool, by field; none of a member that cannot be decoded.

    ``title`` is what is said of its server.
    """
    members = tool.members
    schema = _decode(_schemas, members.get("inputSchema"))
    params = " ".join(schema.properties) if schema else ""
    return {
        NAME: Counter(all_terms(tool.name[:_NAMES])),
        DESCRIPTION: Counter(terms(describe(tool)[:_READ])),
        PARAMS: Counter(all_terms(params[:_PARAMS])),
        SERVER: Counter(all_terms(f"{server[:_NAMES]} {title[:_NAMES]}")),
    }


def _decode(decoder: msgspec.json.Decoder[Any], raw: Raw | None) -> Any:
    try:
        return decoder.decode(raw) if raw is not None else ""
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


class Field(NamedTuple):
    """The weight of a term in a field, and how it falls in a field longer than usual."""

    weight: float
    usual: float
    slope: float


FIELDS: Final = {
    NAME: Field(3.0, 3.0, 0.3),
    DESCRIPTION: Field(1.0, 15.0, 0.6),
    PARAMS: Field(0.5, 5.0, 0.6),
    SERVER: Field(2.0, 3.0, 0.3),
}
_SATURATION: Final = 2.0
MOST_LOOKED_AT: Final = 30_000
"""Entries of the index for one search, those of the rarest terms: it blocks the event loop."""
_COUNTED_PER_SCORED: Final = 10
"""How many entries can be counted in the time that scoring one takes."""


class Hit(NamedTuple):
    """A tool that was found, and how well it matches the query: 0 to 1."""

    pair: Pair
    score: float


_STEPS: Final = 1000
_WEIGHTS: Final = tuple(step / _STEPS for step in range(_STEPS + 1))
"""Every weight that there is: millions of entries share these numbers."""


def weights(fields: Fields) -> dict[str, float]:
    """Return the weight of each term of a tool, from 0 to 1."""
    found: dict[str, float] = {}
    for name, counts in fields.items():
        field = FIELDS[name]
        length = counts.total()
        unit = field.weight / (1 - field.slope + field.slope * length / field.usual)
        for term, count in counts.items():
            found[term] = found.get(term, 0.0) + unit * count
    return {
        term: _WEIGHTS[max(1, round(_STEPS * total / (_SATURATION + total)))]
        for term, total in found.items()
    }


class KeywordIndex:
    """An inverted index: terms to tools with weights. A tool keeps its number while it is there."""

    def __init__(self) -> None:
        self._numbers: dict[Pair, int] = {}
        self._pairs: dict[int, Pair] = {}
        self._terms: dict[int, tuple[str, ...]] = {}
        self._postings: dict[str, dict[int, float]] = {}
        self._free: list[int] = []
        self.version = 0
        """Counts the tools that came or left: numbers are as they were while it is the same."""

    def __len__(self) -> int:
        return len(self._pairs)

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._numbers

    @property
    def size(self) -> int:
        """More than the highest number."""
        return len(self._pairs) + len(self._free)

    def number(self, pair: Pair) -> int | None:
        """The number of a tool, if it is there."""
        return self._numbers.get(pair)

    def pair(self, number: int) -> Pair | None:
        """The tool that has a number."""
        return self._pairs.get(number)

    def numbers_of(self, pairs: Iterable[Pair]) -> frozenset[int]:
        """The numbers of those tools that are there."""
        numbers = self._numbers
        return frozenset(numbers[pair] for pair in pairs if pair in numbers)

    def put(self, pair: Pair, fields: Fields) -> int:
        """Add or replace a tool; return its number."""
        number = self._numbers.get(pair)
        if number is None:
            number = self._free.pop() if self._free else len(self._pairs)
            self._numbers[pair], self._pairs[number] = number, pair
            self.version += 1
        else:
            self._drop_terms(number)
        found = weights(fields)
        self._terms[number] = tuple(map(intern, found))
        for term, weight in found.items():
            self._postings.setdefault(term, {})[number] = weight
        return number

    def remove(self, pair: Pair) -> int | None:
        """Remove a tool, if it is there; return the number that it had."""
        number = self._numbers.pop(pair, None)
        if number is not None:
            del self._pairs[number]
            self._drop_terms(number)
            self._free.append(number)
            self.version += 1
        return number

    def _drop_terms(self, number: int) -> None:
        for term in self._terms.pop(number):
            posting = self._postings[term]
            del posting[number]
            if not posting:
                del self._postings[term]

    def search(
        self,
        query: str,
        limit: int,
        admits: Callable[[Pair], bool],
        visible: Set[int] | None = None,
    ) -> list[Hit]:
        """Find the best tools for a query among those admitted, best first; equals by name."""
        pairs = self._pairs
        best = [(-score, pairs[number]) for number, score in self.score(query, visible).items()]
        heapq.heapify(best)
        hits: list[Hit] = []
        while best and len(hits) < limit:
            score, pair = heapq.heappop(best)
            if admits(pair):
                hits.append(Hit(pair, -score))
        return hits

    def score(self, query: str, visible: Set[int] | None = None) -> dict[int, float]:
        """Score the tools that have terms of a query, from 0 to 1.

        Only tools that are ``visible`` are looked at and counted: all, if it is None.
        """
        entries, total = self._entries(query, visible)
        rarity = _rarity({term: len(numbers) for term, numbers in entries.items()}, total)
        whole = sum(rarity.values())
        scores: dict[int, float] = {}
        for term, rare in rarity.items():
            posting, share = self._postings.get(term, {}), rare / whole
            for number in entries[term]:
                scores[number] = scores.get(number, 0.0) + share * posting[number]
        return scores

    def _entries(
        self, query: str, visible: Set[int] | None
    ) -> tuple[dict[str, Collection[int]], int]:
        """Return the visible tools that have each term of a query, and how many are visible.

        An intersection goes through the smaller set, so that a term costs at most as much as there
        are visible tools: by those alone a long query is cut, whatever is hidden.
        """
        postings = {term: self._postings.get(term, {}).keys() for term in query_terms(query)}
        if visible is None:
            return {**postings}, len(self._pairs)
        most = max(1, _COUNTED_PER_SCORED * MOST_LOOKED_AT // max(1, len(visible)))
        counted = islice(postings.items(), most)
        return {term: having & visible for term, having in counted}, len(visible)


def _rarity(having: dict[str, int], total: int) -> dict[str, float]:
    """Choose the rarest terms of a query, as many as the limit allows, with their weights."""
    found = {term: log(1 + (total - n + 0.5) / (n + 0.5)) for term, n in having.items()}
    left = MOST_LOOKED_AT
    chosen: dict[str, float] = {}
    for term in sorted(found, key=found.__getitem__, reverse=True):
        left -= having[term]
        if left < 0 and chosen:
            break
        chosen[term] = found[term]
    return chosen
