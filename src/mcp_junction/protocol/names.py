"""Names: identity is the pair (server, original name); a *spelling* is how a client sees it.

A spelled name leads to its pair by a table. ``assign`` gives each pair its own name under one
spelling; ``aliases`` gives the table of every other spelling a caller may use. Two pairs that would
get one name are told apart by a stable hash of the pair, which the later one carries; ``Hashes``
finds a pair by the name with its hash also where it does not carry it. Only ``Spelled`` takes a
name apart, every way there is, to ask whose a newcomer's name may have been in any spelling.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
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


_NOTHING: Final[Mapping[Pair, str]] = {}


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

    def could_be(self, name: str) -> bool:
        """Whether this spelling can make such a name."""
        if self.prefixed and self.separator not in name:
            return False
        return not self.strict or _NOT_STRICT.search(name) is None

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
    held: Mapping[Pair, str] = _NOTHING,
    is_anothers: Callable[[str, Pair], bool] | None = None,
) -> dict[str, Pair]:
    """A name for each pair, no name twice and none of those ``taken``. A pair keeps the name it
    holds, which no other gets; of the rest, earlier pairs get the plain spelling, unless that
    ``is_anothers``."""
    table: dict[str, Pair] = {}
    others = frozenset(held.values())
    for pair in pairs:
        name = held.get(pair)
        if name is None or name in taken:
            name = plain = spelling.spell(pair)
            attempt = 0
            if is_anothers is not None and is_anothers(name, pair):
                name = spelling.hashed(plain, pair)
            # A server may have taken the hashed name too, on purpose.
            while name in table or name in others or name in taken:
                name = spelling.hashed(plain, pair, attempt)
                attempt += 1
        table[name] = pair
    return table


def aliases(pairs: Sequence[Pair], *extra: Spelling) -> dict[str, Pair]:
    """Every other spelling that means exactly one of ``pairs``; what could mean two means none."""
    table: dict[str, Pair] = {}
    doubtful: set[str] = set()
    for spelling in _accepted(*extra):
        for name, pair in assign(pairs, spelling).items():
            for meant in (name, spelling.spell(pair)):
                if table.setdefault(meant, pair) != pair:
                    doubtful.add(meant)
    for name in doubtful:
        del table[name]
    return table


class Hashes:
    """Which pair a name means that carries the pair's hash, whether or not it is listed so."""

    def __init__(self, pairs: Collection[Pair], *extra: Spelling) -> None:
        self._all = pairs
        self._extra = extra

    def find(self, name: str) -> Pair | None:
        """The only pair that is meant; None if there is none."""
        if not looks_hashed(name):
            return None
        found = [pair for pair in self._pairs.get(name[-_HASH_DIGITS:], ()) if self._is(name, pair)]
        return found[0] if len(found) == 1 else None

    def is_anothers(self, name: str, pair: Pair) -> bool:
        """Whether a name of ``pair`` means another by its hash."""
        return self.find(name) not in (None, pair)

    @cached_property
    def _pairs(self) -> dict[str, list[Pair]]:
        """By their hashes, which are made when a name is the first to look as if it had one."""
        table: dict[str, list[Pair]] = {}
        for pair in self._all:
            table.setdefault(digest(pair), []).append(pair)
        return table

    @cached_property
    def _spellings(self) -> set[Spelling]:
        return _accepted(*self._extra)

    def _is(self, name: str, pair: Pair) -> bool:
        return any(name == each.hashed(each.spell(pair), pair) for each in self._spellings)


class Spelled:
    """Which pair a name means in any spelling a caller may use. For a few names among many pairs:
    it takes the name apart every way, and spells the pairs only where that cannot be undone."""

    def __init__(self, pairs: Collection[Pair], *extra: Spelling) -> None:
        self._pairs = pairs
        spellings = _accepted(*extra)
        self._separators = {each.separator for each in spellings if each.prefixed}
        # A name that was cut has a hash, by which it is found.
        whole = {msgspec.structs.replace(each, max_length=0) for each in spellings}
        self._lossy = [each for each in whole if each.strict or not each.prefixed]
        self._tables: dict[Spelling, dict[str, list[Pair]]] = {}

    def find(self, name: str) -> Pair | None:
        """The only pair that is meant; None if there is none."""
        parts = (pair for separator in self._separators for pair in _splits(name, separator))
        found = {pair for pair in parts if pair in self._pairs}
        for spelling in self._lossy:
            if spelling.could_be(name):
                found.update(self._spelled(spelling).get(name, ()))
        return found.pop() if len(found) == 1 else None

    def _spelled(self, spelling: Spelling) -> dict[str, list[Pair]]:
        table = self._tables.get(spelling)
        if table is None:
            table = self._tables[spelling] = {}
            for pair in self._pairs:
                table.setdefault(spelling.spell(pair), []).append(pair)
        return table


def _splits(name: str, separator: str) -> Iterator[Pair]:
    """Every pair that is written so with this separator."""
    at = name.find(separator)
    while at >= 0:
        yield Pair(name[:at], name[at + len(separator) :])
        at = name.find(separator, at + 1)


def looks_hashed(name: str) -> bool:
    """Whether a name ends like one with a hash."""
    return _HASH.match(name, max(0, len(name) - _HASH_DIGITS)) is not None


def _accepted(*extra: Spelling) -> set[Spelling]:
    """The spellings a caller may use, whatever was listed."""
    lengths = {STRICT_LENGTH, *(client.max_length for client in strict_clients())}
    spellings = {STDIO, PLATFORM, Spelling("__"), *extra}
    return spellings | {Spelling("__", strict=True, max_length=length) for length in lengths}


def beginnings(key: str, *also: Spelling) -> tuple[str, ...]:
    """How names of a server's tools begin. Only to guess who is meant, never to find a tool."""
    return tuple(each.spell(Pair(key, "")) for each in (*also, STDIO, PLATFORM, STRICT))


class StrictClient(msgspec.Struct, frozen=True):
    """A client that refuses names outside ``[A-Za-z0-9_-]``; found by the start of its name."""

    prefix: str
    max_length: int = STRICT_LENGTH


_strict_clients: list[StrictClient] = []


def strict_clients() -> Sequence[StrictClient]:
    """The table ``clients.json``, read once."""
    if not _strict_clients:
        with open(os.path.join(os.path.dirname(__file__), "clients.json"), "rb") as file:
            data = file.read()
        _strict_clients.extend(msgspec.json.decode(data, type=list[StrictClient]))
    return _strict_clients


def spelling_for(client: str, preferred: Spelling) -> Spelling:
    """``preferred``, unless this client is known to refuse such names."""
    lowered = client.lower()
    for known in strict_clients():
        if lowered.startswith(known.prefix):
            return Spelling(
                "__", strict=True, max_length=known.max_length, prefixed=preferred.prefixed
            )
    return preferred
