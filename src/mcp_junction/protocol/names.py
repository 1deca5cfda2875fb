"""Names: identity is the pair (server, original name); a *spelling* is how a client sees it.

A spelled name leads to its pair by a table; no name is ever taken apart. ``assign`` gives each pair
its own name under one spelling. Two pairs that would get one name are told apart by a stable hash
of the pair, which the later one carries. ``Meanings`` finds the pairs that a name can mean in any
other spelling that a caller may use, or by its hash where the pair does not carry it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec

STRICT_LENGTH: Final = 64
_HASH_DIGITS: Final = 8
_NOT_STRICT = re.compile(r"[^A-Za-z0-9_-]")
_HASH = re.compile(rf"[0-9a-f]{{{_HASH_DIGITS}}}\Z")


class Pair(NamedTuple):
    """Which tool: the server's key and the name the server itself uses."""

    server: str
    name: str


class Spelling(msgspec.Struct, frozen=True, cache_hash=True):
    """How pairs are written: the separator, and what the client will take."""

    separator: str
    strict: bool = False
    max_length: int = 0
    prefixed: bool = True

    def spell(self, pair: Pair) -> str:
        """The name for ``pair``, not yet known to be unique."""
        name = self.separator.join(pair) if self.prefixed else pair.name
        if self.strict:
            name = _NOT_STRICT.sub("_", name)
        if self.max_length and len(name) > self.max_length:
            name = self.hashed(name, pair)
        return name

    def hashed(self, name: str, pair: Pair, attempt: int = 0) -> str:
        """``name``, cut to fit, with a hash of ``pair`` behind it; another for each attempt."""
        suffix = "_" + digest(pair, attempt)
        if self.max_length:
            name = name[: max(0, self.max_length - len(suffix))]
        return name + suffix


STDIO: Final = Spelling(":")
PLATFORM: Final = Spelling(".")
STRICT: Final = Spelling("__", strict=True, max_length=STRICT_LENGTH)


def digest(pair: Pair, attempt: int = 0) -> str:
    """A stable hash of a pair; the length is hashed too, so that no two pairs run together."""
    server = pair.server.encode("utf-8", "surrogatepass")
    name = pair.name.encode("utf-8", "surrogatepass")
    again = b"\0%d" % attempt if attempt else b""
    data = b"%d:%b%b%b" % (len(server), server, name, again)
    return hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]


def assign(
    pairs: Iterable[Pair],
    spelling: Spelling,
    taken: Collection[str] = (),
    kept: Mapping[Pair, str] | None = None,
    is_anothers: Callable[[str, Pair], bool] | None = None,
) -> dict[str, Pair]:
    """Give each pair a name, no name twice and none of those ``taken``.

    A pair that has a name in ``kept`` keeps it. Of the others, the earlier get the plain spelling,
    and the later one with a hash, as does a pair whose name ``is_anothers``.
    """
    table: dict[str, Pair] = {}
    kept = kept or {}
    for pair in pairs:
        name = kept.get(pair)
        if name is None or name in taken:
            name = plain = spelling.spell(pair)
            attempt = 0
            # A server may have taken the hashed name too, on purpose.
            while name in table or name in taken or (is_anothers and is_anothers(name, pair)):
                name = spelling.hashed(plain, pair, attempt)
                attempt += 1
        table[name] = pair
    return table


class Numbers(dict[str, "int | list[int]"]):
    """Texts, and the numbers that belong to each: mostly one, so that one takes no list."""

    __slots__ = ()

    def add(self, text: str, number: int) -> None:
        found = self.setdefault(text, number)
        if isinstance(found, list):
            found.append(number)
        elif found != number:
            self[text] = [found, number]

    def of(self, text: str) -> Sequence[int]:
        """The numbers of a text, in the order in which they came."""
        found = self.get(text)
        if found is None:
            return ()
        return (found,) if isinstance(found, int) else found


class Meanings:
    """Which pairs of a list a name can mean, in any spelling that a caller may use, or by its hash.

    A pair is known by its number, its place in the list. The list may grow: what was added is read
    by the next look-up, or before it with ``catch_up``.
    """

    def __init__(self, pairs: Sequence[Pair], *extra: Spelling) -> None:
        self._pairs = pairs
        self._spellings = _accepted(*extra)
        self._spelled = Numbers()
        self._digests = Numbers()
        self._read = 0
        self._hashed = 0

    def spelled(self, name: str) -> Sequence[int]:
        """The pairs that have this name in some spelling."""
        deque(self.catch_up(), 0)
        return self._spelled.of(name)

    def hashed(self, name: str, *also: Spelling) -> list[int]:
        """The pairs that have this name with their hash, in some spelling or one of ``also``."""
        if not looks_hashed(name):
            return []
        for number in range(self._hashed, len(self._pairs)):
            self._digests.add(digest(self._pairs[number]), number)
        self._hashed = len(self._pairs)
        spellings = self._spellings.union(also)
        return [
            number
            for number in self._digests.of(name[-_HASH_DIGITS:])
            if any(_has_hash(name, self._pairs[number], each) for each in spellings)
        ]

    def catch_up(self) -> Iterator[None]:
        """Read what was added to the list, a pair at a step."""
        while self._read < len(self._pairs):
            for name in {each.spell(self._pairs[self._read]) for each in self._spellings}:
                self._spelled.add(name, self._read)
            self._read += 1
            yield


def _has_hash(name: str, pair: Pair, spelling: Spelling) -> bool:
    return name == spelling.hashed(spelling.spell(pair), pair)


def looks_hashed(name: str) -> bool:
    """Whether a name ends like one with a hash."""
    return _HASH.match(name, max(0, len(name) - _HASH_DIGITS)) is not None


def _accepted(*extra: Spelling) -> set[Spelling]:
    """The spellings a caller may use, whatever was listed."""
    lengths = {STRICT_LENGTH, *(client.max_length for client in strict_clients())}
    spellings = {STDIO, PLATFORM, Spelling("__"), *extra}
    return spellings | {Spelling("__", strict=True, max_length=length) for length in lengths}


def name_prefixes(key: str, *also: Spelling) -> tuple[str, ...]:
    """How names of a server's tools begin. Only to guess who is meant, never to find a tool."""
    return tuple(each.spell(Pair(key, "")) for each in (*also, STDIO, PLATFORM, STRICT))


class StrictClient(msgspec.Struct, frozen=True):
    """A client that refuses names outside ``[A-Za-z0-9_-]``; found by the start of its name."""

    prefix: str
    max_length: int = STRICT_LENGTH


@cache
def strict_clients() -> Sequence[StrictClient]:
    """The table ``clients.json``, read once."""
    with open(os.path.join(os.path.dirname(__file__), "clients.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=list[StrictClient])


def spelling_for(client: str, preferred: Spelling) -> Spelling:
    """``preferred``, unless this client is known to refuse such names."""
    lowered = client.lower()
    for known in strict_clients():
        if lowered.startswith(known.prefix):
            return Spelling(
                "__", strict=True, max_length=known.max_length, prefixed=preferred.prefixed
            )
    return preferred
