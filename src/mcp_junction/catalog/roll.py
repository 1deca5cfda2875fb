"""Roll: numbers all tools (or all prompts) of a run, and spells the name of each.

One Roll serves every generation of the catalog and every Scope. What a Scope admits is a *mask*: a
byte for each number, which says whether the pair is absent, present, or departed with its server.
A plain set of numbers is an integer, with a bit for each. So a Scope takes as many bytes as there
are tools, and each name is computed once. Numbers are only ever added: a catalog with too many
unused ones goes on with another Roll (``name_history.py``).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from mcp_junction.catalog.items import ListItem
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import Meanings, Numbers, Pair, Spelling, looks_hashed
from mcp_junction.upstream.upstream import Upstream

ABSENT: Final = 0
PRESENT: Final = 1
DEPARTED: Final = 2
_DIGITS: Final = b"011" + bytes(253)
"""The bit that each of them has in a set of numbers."""
_WORD: Final = re.compile(r"[^\W_]+")


class PlainNames:
    """The name of each number of a Roll in one spelling, before any two are told apart."""

    def __init__(self, pairs: Sequence[Pair], spelling: Spelling) -> None:
        self.spelling = spelling
        self.names: list[str] = []
        self.contested: set[int] = set()
        """Which numbers share their name with another, or have one that looks like a hashed one."""
        self.numbers = Numbers()
        """The numbers that have each name."""
        self._pairs = pairs

    def catch_up(self) -> Iterator[None]:
        """Read what was added to the Roll, a pair at a step."""
        while (number := len(self.names)) < len(self._pairs):
            name = self.spelling.spell(self._pairs[number])
            self.names.append(name)
            self.numbers.add(name, number)
            shared = self.numbers.of(name)
            if len(shared) > 1:
                self.contested.update((shared[0], number))
            elif looks_hashed(name):
                self.contested.add(number)
            yield


class Roll:
    """The pairs of one kind, by number."""

    def __init__(self, canonical: Spelling, pairs: Iterable[Pair] = ()) -> None:
        self.canonical = canonical
        self.pairs = list(pairs)
        self.meanings = Meanings(self.pairs, canonical)
        """Which numbers a name can mean in whatever spelling."""
        self._numbers = {pair: number for number, pair in enumerate(self.pairs)}
        self._plain: dict[Spelling, PlainNames] = {}

    def number(self, pair: Pair) -> int | None:
        """The number of a pair, if it has one."""
        return self._numbers.get(pair)

    def add(self, pair: Pair) -> int:
        """Return the number of a pair; a new pair gets the next one."""
        number = self._numbers.setdefault(pair, len(self.pairs))
        if number == len(self.pairs):
            self.pairs.append(pair)
        return number

    def numbers_of(self, server: str) -> list[int]:
        """The numbers of all pairs of one server."""
        return [number for number, pair in enumerate(self.pairs) if pair.server == server]

    def plain(self, spelling: Spelling) -> PlainNames:
        """The names in one spelling."""
        found = self._table(spelling)
        deque(found.catch_up(), 0)
        return found

    def _table(self, spelling: Spelling) -> PlainNames:
        found = self._plain.get(spelling)
        if found is None:
            found = self._plain[spelling] = PlainNames(self.pairs, spelling)
        return found

    def prepare(self, pairs: Iterable[Pair]) -> Iterator[None]:
        """Read pairs that are to come, a step at a time, into all that has been used so far."""
        for pair in pairs:
            self.add(pair)
            yield
        for spelling in list(self._plain):
            yield from self.prepare_names(spelling)

    def prepare_names(self, spelling: Spelling) -> Iterator[None]:
        """Spell all names, a step at a time, and every other spelling of them."""
        yield from self._table(spelling).catch_up()
        yield from self.meanings.catch_up()


class NumberedList:
    """One server's items of one kind by their numbers, and as bytes under their plain names."""

    __slots__ = ("_encoded", "items", "upstream")

    def __init__(self, upstream: Upstream, pairs: Mapping[Pair, ListItem], roll: Roll) -> None:
        self.upstream = upstream
        self.items = {roll.add(pair): offer for pair, offer in pairs.items()}
        self._encoded: dict[Spelling, dict[int, bytes]] = {}

    def encode(self, number: int, names: PlainNames) -> bytes:
        """An item as a list has it, under its plain name."""
        encoded = self._encoded.setdefault(names.spelling, {})
        if number not in encoded:
            encoded[number] = encode_as(names.names[number], self.items[number])
        return encoded[number]


def encode_as(name: str, offer: ListItem) -> bytes:
    """An item of a list, under this name."""
    return encode.dumps({**offer.members, "name": name})


def known(mask: bytes | bytearray) -> int:
    """The set of the numbers that a mask has, be they present or departed."""
    return int(mask.translate(_DIGITS)[::-1] or b"0", 2)


def bits_of(numbers: Collection[int]) -> int:
    """The set of these numbers."""
    mask = bytearray(max(numbers, default=0) + 1)
    for number in numbers:
        mask[number] = PRESENT
    return known(mask)


def numbers_in(bits: int) -> list[int]:
    """The numbers in a set, in ascending order."""
    return [number for number, digit in enumerate(bin(bits)[:1:-1]) if digit == "1"]


@lru_cache(20_000)
def words(name: str) -> frozenset[str]:
    """The words of a name."""
    return frozenset(_WORD.findall(name.lower()))
