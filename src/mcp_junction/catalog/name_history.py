"""NameHistory: remembers which names and URIs clients were shown, and which tool each means.

A catalog is of one moment; the history goes on from one to the next. A name that was shown stays
its pair's, and nobody else gets it when that pair is no longer offered: only a server that is
removed for good frees its names. Each list has a history of its own: one agent, one endpoint, one
spelling, one kind. Those who may see everything share one, since it holds nothing that any of them
may not see. Nothing of it outlives the process.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, one_server
from mcp_junction.catalog.items import ALL, ListKind, ServerLists
from mcp_junction.catalog.roll import Roll, bits_of, numbers_in
from mcp_junction.catalog.scope import Scope
from mcp_junction.protocol.names import Pair, Spelling

MOST_PAST: Final = 5_000
"""How many tools that a server no longer offers are remembered in each list. A server that keeps
changing its tools loses names of its own, never those of others."""
MOST_UNUSED: Final = 4 * MOST_PAST
"""How many unused numbers a Roll may have, beyond as many as are used, before it is replaced."""
URIS: Final = Spelling("", prefixed=False)
"""How URIs are spelled: as they are."""
_NOWHERE: Final[Mapping[int, int]] = {}


class NameHistory:
    """The history of one list: which pairs were shown, and the names that are not plain."""

    __slots__ = ("_roll", "names", "owners", "plain", "shown")

    def __init__(self, roll: Roll, spelling: Spelling) -> None:
        self.plain = roll.plain(spelling)
        self.shown = 0
        """The set of the pairs that were shown."""
        self._roll = roll
        self.names: dict[int, str] = {}
        """The name of each pair that was shown under another name than its plain one."""
        self.owners: dict[str, int] = {}
        """The pair of each name that belongs to a pair with another plain name."""

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
            for number in self.plain.numbers(name):
                if number not in self.names and self.has(number):
                    return number
        return owner

    def items(self) -> Iterator[tuple[str, Pair]]:
        """Every name that was shown, and its pair."""
        for number in numbers_in(self.shown):
            yield self.names.get(number) or self.plain.names[number], self._roll.pairs[number]

    # -- noting

    def note(self, pairs: int, names: Mapping[int, str], offered: int) -> None:
        """Remember that a set of pairs was shown, and the names of those that are not plain.

        A pair whose name another pair owns by now is left out. ``offered`` is all that can be shown
        now; the rest is past.
        """
        deque(self.plain.catch_up(), 0)
        for number in numbers_in(pairs & ~self.shown):
            name = names.get(number)
            if name is None and number not in self.plain.contested:
                continue
            if self.owner(name or self.plain.names[number]) is not None:
                pairs ^= 1 << number
            elif name is not None:
                self.names[number] = name
                self.owners[name] = number
        self.shown |= pairs
        past = self.shown & ~offered
        if past.bit_count() > MOST_PAST:
            self._forget_oldest(numbers_in(past))

    def reserve(self, aliases: Mapping[str, int]) -> None:
        """Keep other spellings of shown pairs for them, when newcomers have such names."""
        for name, number in aliases.items():
            if self.has(number):
                self.owners.setdefault(name, number)

    def _forget_oldest(self, past: list[int]) -> None:
        """Forget the oldest pairs of each server that has too many it no longer offers."""
        over = Counter(self._roll.pairs[number].server for number in past)
        oldest: list[int] = []
        for number in past:
            server = self._roll.pairs[number].server
            if over[server] > MOST_PAST:
                over[server] -= 1
                oldest.append(number)
        if oldest:
            left = self.changed(self._roll, freed=bits_of(oldest))
            self.shown, self.names, self.owners = left.shown, left.names, left.owners

    # -- what follows from a change of the servers

    def changed(
        self, roll: Roll, moves: Mapping[int, int] = _NOWHERE, freed: int = 0
    ) -> NameHistory:
        """A history without the names of the pairs in ``freed``, and other numbers for some.

        ``roll`` is the one that has these numbers.
        """
        found = NameHistory(roll, self.plain.spelling)
        kept = self.shown & ~freed
        moved = kept & bits_of(moves)
        found.shown = kept ^ moved | bits_of([moves[n] for n in numbers_in(moved)])
        if self.owners:
            gone = set(numbers_in(self.shown & freed))
            names = {n: name for n, name in self.names.items() if n not in gone}
            found.names = {moves.get(n, n): name for n, name in names.items()}
            owners = {name: n for name, n in self.owners.items() if n not in gone}
            found.owners = {name: moves.get(n, n) for name, n in owners.items()}
        return found

    def renamed(self, moves: Mapping[int, int]) -> NameHistory:
        """A history with other numbers for some pairs, which keep only shown names."""
        found = self.changed(self._roll, moves)
        for name, number in self.owners.items():
            if number in moves and self.names.get(number) != name:
                del found.owners[name]
        return found


class ListKey(NamedTuple):
    """Which list a history is of."""

    agent: str
    address: str
    spelling: Spelling
    kind: ListKind


class NameHistories:
    """The histories of all lists, and the rolls whose numbers they use.

    They grow as names are shown. A change that frees names makes another object, so that a catalog
    of before still has what it had.
    """

    def __init__(
        self,
        rolls: dict[ListKind, Roll] | None = None,
        lists: dict[ListKey, NameHistory] | None = None,
        *,
        is_settled: bool = False,
    ) -> None:
        self.is_settled = is_settled
        """Whether names count as shown from the moment that there is a view of them."""
        self._rolls = {} if rolls is None else rolls
        self._lists = {} if lists is None else lists

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
        deque(found.plain.catch_up(), 0)
        return found

    def _with(
        self, lists: dict[ListKey, NameHistory], rolls: dict[ListKind, Roll] | None = None
    ) -> NameHistories:
        return NameHistories(rolls or self._rolls, lists, is_settled=self.is_settled)

    def forgetting(self, server: str) -> NameHistories:
        """The histories when a server is removed for good."""
        freed = {
            kind: bits_of([n for n, pair in enumerate(roll.pairs) if pair.server == server])
            for kind, roll in self._rolls.items()
        }
        return self._with(
            {
                key: each.changed(self._rolls[key.kind], freed=freed[key.kind])
                for key, each in self._lists.items()
                if each.shown & ~freed[key.kind]
            }
        )

    def forget_agent(self, agent: str) -> None:
        """Forget what an agent was shown that has left."""
        for key in [key for key in self._lists if key.agent == agent]:
            del self._lists[key]

    def narrowed(self, sets: Iterable[Endpoint]) -> NameHistories:
        """The histories for these named sets: what was taken out of a set loses its names there.

        The same object if nothing is freed."""
        by_address = {endpoint.name: endpoint for endpoint in sets}
        freed: dict[tuple[str, ListKind], int] = {}
        changed: dict[ListKey, NameHistory] = {}
        for key, history in self._lists.items():
            place, roll = (key.address, key.kind), self._rolls[key.kind]
            if key.address != EVERYTHING.name and place not in freed:
                now = by_address.get(key.address)
                left = [n for n, pair in enumerate(roll.pairs) if _is_left_out(now, *place, pair)]
                freed[place] = bits_of(left)
            if history.shown & freed.get(place, 0):
                changed[key] = history.changed(roll, freed=freed[place])
        return self._with({**self._lists, **changed}) if changed else self

    def renamed(self, old: str, new: str) -> NameHistories:
        """The histories when a server has another key. Names that hold its key are free."""
        moves = {
            kind: {
                number: roll.add(Pair(new, pair.name))
                for number, pair in enumerate(list(roll.pairs))
                if pair.server == old
            }
            for kind, roll in self._rolls.items()
        }
        lists: dict[ListKey, NameHistory] = {}
        for key, history in self._lists.items():
            if key.spelling.prefixed or key.address == one_server(old).name:
                lists[key] = history.changed(self._rolls[key.kind], freed=bits_of(moves[key.kind]))
            else:
                lists[key] = history.renamed(moves[key.kind])
        return self._with(lists)

    def compacted(self, offerings: Mapping[str, ServerLists]) -> NameHistories:
        """The histories with fewer numbers, if most of them are used by nobody; else the same."""
        found = self
        for kind in ALL:
            used = sum(len(offering.of(kind)) for offering in offerings.values())
            roll = self._rolls.get(kind)
            if roll is not None and len(roll.pairs) > 2 * used + MOST_UNUSED:
                pairs = (
                    Pair(key, offer.name)
                    for key, offering in offerings.items()
                    for offer in offering.of(kind)
                )
                found = found._renumbered(kind, pairs)
        return found

    def _renumbered(self, kind: ListKind, used: Iterable[Pair]) -> NameHistories:
        """The histories with another roll of a kind: of the pairs that are used, or were shown."""
        roll = self._rolls[kind]
        kept = bits_of([roll.add(pair) for pair in used])
        lists = {key: history for key, history in self._lists.items() if key.kind == kind}
        for history in lists.values():
            kept |= history.shown
        numbers = {number: place for place, number in enumerate(numbers_in(kept))}
        new = Roll(roll.canonical, (roll.pairs[number] for number in numbers))
        moved = {key: each.changed(new, numbers) for key, each in lists.items()}
        return self._with({**self._lists, **moved}, {**self._rolls, kind: new})


def _is_left_out(now: Endpoint | None, address: str, kind: ListKind, pair: Pair) -> bool:
    """Whether a pair is not to be seen at an address that is one server's, or ``now`` a set's."""
    if one_server(pair.server).name == address:
        return False
    if now is None:
        return True
    return not (now.admits(pair) if kind.is_named else now.admits_server(pair.server))
