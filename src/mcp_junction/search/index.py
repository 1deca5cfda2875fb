"""KeywordIndex: BM25 over the fields of tools, updated one tool at a time.

An entry of a term is one number of 32 bits: the tool's number, and the term's weight there.
Entries are only added. Those of a tool that left are passed over, until
``purge`` takes them out; only then its number is given to another tool. So what was read of a term
stays right while ``epoch`` is the same, which lets the process that ranks keep it.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import log
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.protocol.names import Pair
from mcp_junction.search.words import all_terms, query_terms, terms

NUMBER_SHIFT: Final = 10
"""An entry is a tool's number, shifted by so many bits, and the weight of the term there."""
WEIGHT_MASK: Final = (1 << NUMBER_SHIFT) - 1
STEPS: Final = 1000
"""The highest weight."""

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
MOST_TERMS: Final = 100
"""Terms of a query that are looked at: its first ones."""
MOST_LOOKED_AT: Final = 30_000
"""Entries of the index for one search, those of the rarest terms: it blocks the event loop."""
_LEAST_GONE: Final = 500
_SHARE_GONE: Final = 4
"""Purged when so many tools have left, and at least one for each so many that are there."""


class Hit(NamedTuple):
    """A tool that was found, and how well it matches the query: 0 to 1."""

    pair: Pair
    score: float


def weights(fields: Fields) -> dict[str, int]:
    """Return the weight of each term of a tool, in steps of which STEPS are the most."""
    found: dict[str, float] = {}
    for name, counts in fields.items():
        field = FIELDS[name]
        length = counts.total()
        unit = field.weight / (1 - field.slope + field.slope * length / field.usual)
        for term, count in counts.items():
            found[term] = found.get(term, 0.0) + unit * count
    return {
        term: max(1, round(STEPS * total / (_SATURATION + total))) for term, total in found.items()
    }


class KeywordIndex:
    """An inverted index: terms to tools with weights. A tool keeps its number while it is there,
    and gets another one when it is put again."""

    def __init__(self) -> None:
        self._numbers: dict[Pair, int] = {}
        self._pairs: list[Pair | None] = []
        self._postings: dict[str, array[int]] = {}
        self._free: list[int] = []
        self._gone: list[int] = []
        """Numbers of tools that left, whose entries are still there."""
        self.present = bytearray()
        """A byte for each number: 1 while there is a tool that has it."""
        self.version = 0
        """Counts the tools that came or left: numbers are as they were while it is the same."""
        self.epoch = 0
        """Counts the terms that entries were taken from."""

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._numbers

    @property
    def size(self) -> int:
        """More than the highest number."""
        return len(self._pairs)

    def number(self, pair: Pair) -> int | None:
        """The number of a tool, if it is there."""
        return self._numbers.get(pair)

    def pair(self, number: int) -> Pair | None:
        """The tool that has a number."""
        return self._pairs[number] if number < len(self._pairs) else None

    def numbers_of(self, pairs: Iterable[Pair]) -> array[int]:
        """The numbers of those tools that are there."""
        numbers = self._numbers
        return array("I", [numbers[pair] for pair in pairs if pair in numbers])

    def mask_of(self, pairs: Iterable[Pair]) -> bytes:
        """A byte for each number: 1 for those of these tools."""
        mask, numbers = bytearray(self.size), self._numbers
        for pair in pairs:
            number = numbers.get(pair)
            if number is not None:
                mask[number] = 1
        return bytes(mask)

    # -- changing

    def put(self, pair: Pair, fields: Fields) -> int:
        """Add or replace a tool; return its number."""
        self.remove(pair)
        if self._free:
            number = self._free.pop()
            self._pairs[number], self.present[number] = pair, 1
        else:
            number = len(self._pairs)
            self._pairs.append(pair)
            self.present.append(1)
        self._numbers[pair] = number
        self.version += 1
        postings, place = self._postings, number << NUMBER_SHIFT
        for term, weight in weights(fields).items():
            posting = postings.get(term)
            if posting is None:
                postings[term] = array("I", (place | weight,))
            else:
                posting.append(place | weight)
        return number

    def remove(self, pair: Pair) -> int | None:
        """Remove a tool, if it is there; return the number that it had."""
        number = self._numbers.pop(pair, None)
        if number is not None:
            self._pairs[number], self.present[number] = None, 0
            self._gone.append(number)
            self.version += 1
        return number

    def purge(self) -> Iterator[None]:
        """Take out the entries of tools that left, if there are many; a term at each step."""
        count = len(self._gone)
        if count < max(_LEAST_GONE, len(self._numbers) // _SHARE_GONE):
            return
        gone = frozenset(self._gone)
        for term, posting in list(self._postings.items()):
            kept = array("I", [one for one in posting if one >> NUMBER_SHIFT not in gone])
            if len(kept) < len(posting):
                self.epoch += 1
                if kept:
                    self._postings[term] = kept
                else:
                    del self._postings[term]
            yield
        self._free += self._gone[:count]
        del self._gone[:count]

    # -- searching

    def entries(self, query: str) -> dict[str, array[int]]:
        """Return the entries of each term of a query; also of tools that left."""
        chosen = islice(dict.fromkeys(query_terms(query)), MOST_TERMS)
        return {term: self._postings.get(term, _NONE) for term in chosen}

    def search(
        self,
        query: str,
        limit: int,
        admits: Callable[[Pair], bool],
        visible: bytes | None = None,
    ) -> list[Hit]:
        """Find the best tools for a query among those admitted, best first; equals by name."""
        pairs = self._pairs
        scored = self.score(query, visible).items()
        best = [(-score, pair) for n, score in scored if (pair := pairs[n]) is not None]
        heapq.heapify(best)
        hits: list[Hit] = []
        while best and len(hits) < limit:
            score, pair = heapq.heappop(best)
            if admits(pair):
                hits.append(Hit(pair, -score))
        return hits

    def score(self, query: str, visible: bytes | None = None) -> dict[int, float]:
        """Score the tools that have terms of a query, from 0 to 1.

        Only tools that are ``visible``, by a byte for each number, are scored and counted: all, if
        it is None.
        """
        seen = self.present if visible is None else visible.ljust(self.size, b"\0")
        entries = {
            term: [one for one in posting if seen[one >> NUMBER_SHIFT]]
            for term, posting in self.entries(query).items()
        }
        rarity = _rarity({term: len(found) for term, found in entries.items()}, seen.count(1))
        whole = sum(rarity.values()) * STEPS
        scores: dict[int, float] = {}
        for term, rare in rarity.items():
            share = rare / whole
            for one in entries[term]:
                number = one >> NUMBER_SHIFT
                scores[number] = scores.get(number, 0.0) + share * (one & WEIGHT_MASK)
        return scores


_NONE: Final = array("I")


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
