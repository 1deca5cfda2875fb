"""NameHistory: remembers which names and URIs clients were shown, and which tool each means.

A catalog is of one moment; the history goes on from one to the next. A name that was shown stays
its pair's, and nobody else gets it when that pair is no longer offered: only a server that is
removed for good frees its names. Each list has a history of its own: one agent, one endpoint, one
spelling, one kind. Those who may see everything share one, since it holds nothing that any of them
may not see. Nothing of it outlives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, one_server
from mcp_junction.catalog.items import ListKind, ServerLists
from mcp_junction.catalog.roll import PlainNames, Roll, bits_of, numbers_in
from mcp_junction.catalog.scope import Scope
from mcp_junction.protocol.names import Pair, Spelling

MOST_PAST: Final = 5_000
"""How many tools that a server no longer offers are remembered in each list. A server that keeps
changing its tools loses names of its own, never those of others."""
MOST_UNUSED: Final = 4 * MOST_PAST
"""How many unused numbers a Roll may have, beyond as many as are used, before it is replaced."""
URIS: Final = Spelling("", prefixed=False)
"""How URIs are spelled: as they are."""
_NONE: Final[Mapping[str, int]] = {}
_NO_MOVES: Final[Mapping[int, int]] = {}


class NameHistory(msgspec.Struct, eq=False):
    """The history of one list: which pairs were shown, and the names that are not plain."""

    roll: Roll
    spelling: Spelling
    shown: int = 0
    """The set of the pairs that were shown."""
    names: dict[int, str] = {}
    """The name of each pair that was shown under another name than its plain one."""
    owners: dict[str, int] = {}
    """The pair of each name that belongs to a pair with another plain name."""

    @property
    def plain(self) -> PlainNames:
        """The names that pairs have where nothing else is remembered."""
        return self.roll.plain(self.spelling)

    # -- looking up

    def has(self, number: int) -> bool:
        """Whether a pair was shown."""
        return self.shown >> number & 1 == 1

    def name_of(self, number: int) -> str | None:
        """The name that a pair was shown under."""
        if not self.has(number):
            return None
        return self.names.get(number) or self.plain.names[number]

    def owner(self, name: str) -> int | None:
        """The pair that a name belongs to, since it was shown."""
        owner = self.owners.get(name)
        if owner is None:
            plain = (n for n in self.plain.numbers.of(name) if n not in self.names and self.has(n))
            return next(plain, None)
        return owner

    def items(self) -> Iterator[tuple[str, Pair]]:
        """Every name that was shown, and its pair."""
        plain = self.plain.names
        for number in numbers_in(self.shown):
            yield self.names.get(number) or plain[number], self.roll.pairs[number]

    # -- noting

    def note(
        self, pairs: int, names: Mapping[int, str], offered: int, aliases: Mapping[str, int] = _NONE
    ) -> None:
        """Remember that a set of pairs was shown, and the names of those that are not plain.

        A pair whose name another pair owns by now is left out. ``offered`` is all that can be shown
        now; the rest is past. ``aliases`` are names in other spellings that newcomers have: they
        are kept for pairs that were shown before.
        """
        for name, number in aliases.items():
            if self.has(number):
                self.owners.setdefault(name, number)
        plain = self.plain
        for number in numbers_in(pairs & ~self.shown):
            name = names.get(number, "")
            if not name and number not in plain.contested:
                continue
            if self.owner(name or plain.names[number]) is not None:
                pairs ^= 1 << number
            elif name:
                self.names[number] = name
                self.owners[name] = number
        self.shown |= pairs
        past = self.shown & ~offered
        if past.bit_count() > MOST_PAST:
            self._forget_oldest(numbers_in(past))

    def _forget_oldest(self, past: list[int]) -> None:
        """Forget the oldest pairs of each server that has too many it no longer offers."""
        pairs = self.roll.pairs
        by_server: dict[str, list[int]] = {}
        for number in past:
            by_server.setdefault(pairs[number].server, []).append(number)
        oldest = [number for numbers in by_server.values() for number in numbers[:-MOST_PAST]]
        left = self.changed(self.roll, freed=bits_of(oldest))
        self.shown, self.names, self.owners = left.shown, left.names, left.owners

    # -- what follows from a change of the servers

    def changed(
        self,
        roll: Roll,
        moves: Mapping[int, int] = _NO_MOVES,
        freed: int = 0,
        *,
        with_aliases: bool = True,
    ) -> NameHistory:
        """A history without the names of the pairs in ``freed``, and other numbers for some.

        ``roll`` is the one that has these numbers. Without aliases, pairs that move keep the names
        alone that were shown.
        """
        found = NameHistory(roll, self.spelling)
        kept = self.shown & ~freed
        moved = kept & bits_of(moves)
        found.shown = kept ^ moved | bits_of([moves[number] for number in numbers_in(moved)])
        for name, number in self.owners.items():
            is_shown = self.names.get(number) == name
            is_kept = with_aliases or is_shown or number not in moves
            if is_kept and not freed >> number & 1:
                now = found.owners[name] = moves.get(number, number)
                if is_shown:
                    found.names[now] = name
        return found


class ListKey(NamedTuple):
    """Which list a history is of."""

    agent: str
    address: str
    spelling: Spelling
    kind: ListKind


class NameHistories(msgspec.Struct, eq=False):
    """The histories of all lists, and the rolls whose numbers they use.

    They grow as names are shown. A change that frees names makes another object, so that a catalog
    of before still has what it had.
    """

    is_settled: bool = False
    """Whether names count as shown from the moment that there is a view of them."""
    _rolls: dict[ListKind, Roll] = {}
    _lists: dict[ListKey, NameHistory] = {}

    def roll(self, kind: ListKind, canonical: Spelling) -> Roll:
        """The numbers of one kind."""
        found = self._rolls.get(kind)
        if found is None:
            found = self._rolls[kind] = Roll(canonical)
        return found

    def of(self, scope: Scope, spelling: Spelling, kind: ListKind) -> NameHistory:
        """The history of one list of a kind that has a roll."""
        key = ListKey(scope.agent, scope.endpoint.name, spelling, kind)
        found, roll = self._lists.get(key), self._rolls[kind]
        if found is None:
            shared = self._lists.get(key._replace(agent="")) if scope.saw_everything else None
            new = NameHistory(roll, spelling) if shared is None else shared.changed(roll)
            found = self._lists[key] = new
        return found

    def _freeing(self, find_freed: Callable[[str, ListKind], int]) -> NameHistories:
        """The histories without the names of the pairs that are found for an address and a kind.

        The same object if nothing is freed.
        """
        changed: dict[ListKey, NameHistory] = {}
        for key, history in self._lists.items():
            freed = find_freed(key.address, key.kind)
            if history.shown & freed:
                changed[key] = history.changed(history.roll, freed=freed)
        left = {**self._lists, **changed}
        used = {key: history for key, history in left.items() if history.shown}
        return replace(self, _lists=used) if changed else self

    def forgetting(self, server: str) -> NameHistories:
        """The histories when a server is removed for good."""
        freed = {kind: bits_of(roll.numbers_of(server)) for kind, roll in self._rolls.items()}
        return self._freeing(lambda _, kind: freed[kind])

    def forget_agent(self, agent: str) -> None:
        """Forget what an agent was shown that has left."""
        for key in [key for key in self._lists if key.agent == agent]:
            del self._lists[key]

    def narrowed(self, sets: Iterable[Endpoint]) -> NameHistories:
        """The histories for these named sets: what was taken out of a set loses its names there.

        The same object if nothing is freed."""
        by_address = {endpoint.name: endpoint for endpoint in sets}

        @cache
        def find_left_out(address: str, kind: ListKind) -> int:
            if address == EVERYTHING.name:
                return 0
            now, pairs = by_address.get(address), enumerate(self._rolls[kind].pairs)
            return bits_of([n for n, pair in pairs if _is_left_out(now, address, kind, pair)])

        return self._freeing(find_left_out)

    def renamed(self, old: str, new: str) -> NameHistories:
        """The histories when a server has another key. Names that hold its key are free."""
        moves = {
            kind: {n: roll.add(Pair(new, roll.pairs[n].name)) for n in roll.numbers_of(old)}
            for kind, roll in self._rolls.items()
        }
        lists: dict[ListKey, NameHistory] = {}
        for key, history in self._lists.items():
            moved, roll = moves[key.kind], history.roll
            if key.spelling.prefixed or key.address == one_server(old).name:
                lists[key] = history.changed(roll, freed=bits_of(moved))
            else:
                lists[key] = history.changed(roll, moved, with_aliases=False)
        return replace(self, _lists=lists)

    def compacted(self, offerings: Mapping[str, ServerLists]) -> NameHistories:
        """The histories with fewer numbers, if most of them are used by nobody; else the same."""
        found = self
        for kind, roll in self._rolls.items():
            used = sum(len(offering.of(kind)) for offering in offerings.values())
            if len(roll.pairs) > 2 * used + MOST_UNUSED:
                found = found._renumbered(kind, roll, offerings)
        return found

    def _renumbered(
        self, kind: ListKind, roll: Roll, offerings: Mapping[str, ServerLists]
    ) -> NameHistories:
        """The histories with another roll of a kind: of the pairs that are used, or were shown."""
        kept = bits_of(
            [
                roll.add(Pair(key, offer.name))
                for key, offering in offerings.items()
                for offer in offering.of(kind)
            ]
        )
        lists = {key: history for key, history in self._lists.items() if key.kind == kind}
        for history in lists.values():
            kept |= history.shown
        numbers = {number: place for place, number in enumerate(numbers_in(kept))}
        new = Roll(roll.canonical, (roll.pairs[number] for number in numbers))
        moved = {key: each.changed(new, numbers) for key, each in lists.items()}
        return replace(self, _lists={**self._lists, **moved}, _rolls={**self._rolls, kind: new})


def _is_left_out(now: Endpoint | None, address: str, kind: ListKind, pair: Pair) -> bool:
    """Whether a pair is not to be seen at an address that is one server's, or ``now`` a set's."""
    if one_server(pair.server).name == address:
        return False
    if now is None:
        return True
    return not (now.admits(pair) if kind.is_named else now.admits_server(pair.server))
