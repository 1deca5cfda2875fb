"""View: the tools, or the prompts, of one Scope under one spelling: names to routes, and the list.

The names are those of the Roll, except where two pairs of this Scope would share one, or where a
name was shown for another pair before. What the Scope does not admit has no influence. A View never
changes, and does not record that its names were shown (``Catalog.show`` does).
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from mcp_junction.catalog.items import ListItem, ListKind, Route, timeout_for
from mcp_junction.catalog.name_history import URIS, NameHistory
from mcp_junction.catalog.resources import ResourceView, rewrite_references
from mcp_junction.catalog.roll import (
    ABSENT,
    DEPARTED,
    PRESENT,
    NumberedList,
    Roll,
    encode_as,
    known,
    numbers_in,
    words,
)
from mcp_junction.catalog.scope import Scope
from mcp_junction.protocol import encode
from mcp_junction.protocol.merged_list import MergedList, PageCache
from mcp_junction.protocol.names import Pair, assign

_META: Final = "_meta"
_NEAREST: Final = 3
_COMPARED: Final = 200


class Visible(msgspec.Struct, frozen=True, eq=False):
    """What one Scope admits of one kind in one catalog."""

    scope: Scope
    kind: ListKind
    roll: Roll
    mask: bytes
    """For each number: absent, present, or departed with its server."""
    lists: Mapping[str, NumberedList]
    """The servers that can be seen."""

    def known(self) -> list[int]:
        """The numbers of the pairs that are present or departed, in the order of the list."""
        mask = self.mask
        return [n for listed in self.lists.values() for n in listed.items if mask[n]]

    def present(self) -> list[int]:
        """The numbers of the pairs that are present, in the order of the list."""
        mask = self.mask
        return [n for listed in self.lists.values() for n in listed.items if mask[n] == PRESENT]

    def size(self, number: int, name: str) -> int:
        """The bytes of an item in a list under a name, computed without encoding it."""
        members = self.lists[self.roll.pairs[number].server].items[number].members
        named = len(encode.dumps(name)) - len(members["name"])
        return named + 1 + sum(len(key.encode()) + 4 + len(raw) for key, raw in members.items())

    def is_larger(self, budget: int, names: Sequence[str]) -> bool:
        """Whether all items that can be called take more bytes; counts no further than that."""
        for number in self.present():
            budget -= self.size(number, names[number])
            if budget < 0:
                return True
        return False

    def count_by_server(self) -> dict[str, int]:
        """How many items each server has that can be called."""
        mask = self.mask
        counts = {
            key: sum(mask[number] == PRESENT for number in listed.items)
            for key, listed in self.lists.items()
        }
        return {key: count for key, count in counts.items() if count}


class SearchListing(msgspec.Struct, frozen=True):
    """What is listed to a client that searches: Junction's own tools, and favourites."""

    own: Sequence[ListItem]
    favourites: re.Pattern[str] | None = None
    """Matches the favourites as ``server.tool``."""
    is_listed: bool = True
    """Whether that is listed; if not, all tools are, and the own ones can be called."""


class View:
    """Names to routes under one spelling, and the list as bytes."""

    def __init__(
        self,
        visible: Visible,
        history: NameHistory,
        resources: ResourceView,
        *,
        search: SearchListing | None = None,
        timeout: float,
        page_size: int,
        pages: PageCache,
    ) -> None:
        self.scope = visible.scope
        self.mask = visible.mask
        self.own = frozenset(offer.name for offer in search.own) if search else frozenset()
        """The names of Junction's own tools, where they can be called."""
        self.lists_search = search is not None and search.is_listed
        """Whether the own tools and favourites are listed instead of all tools."""
        self.resources = resources
        self.history = history
        self.names: dict[int, str] = {}
        """The names of pairs whose name here is not the plain one."""
        self.reserved: dict[str, int] = {}
        """Plain names of new pairs that already meant another pair, which was shown."""
        self._visible = visible
        self._roll = visible.roll
        self._plain = history.plain
        self._search = search
        self._timeout = timeout
        self._page_size = page_size
        self._pages = pages
        self._page_key = object()
        self._assigned: dict[str, int] = {}
        self._routes: dict[str, Route] = {}
        self._assign_names()

    # -- names that differ from the plain ones

    def _assign_names(self) -> None:
        """Name the pairs that may not be able to have their plain name."""
        numbers = list(self._find_doubtful())
        pairs = self._roll.pairs
        known = ((number, self.history.name_of(number)) for number in numbers)
        kept = {pairs[number]: name for number, name in known if name is not None}
        doubtful = [pairs[number] for number in numbers]
        table = assign(doubtful, self._plain.spelling, self.own, kept, self._belongs_to_another)
        for number, name in zip(numbers, table, strict=True):
            self._assigned[name] = number
            if name != self._plain.names[number]:
                self.names[number] = name

    def _find_doubtful(self) -> Iterator[int]:
        contested, history = self._plain.contested, self.history
        own = {number for name in self.own for number in self._plain.numbers(name)}
        if not (history.shown or own or contested):
            return
        new = set(numbers_in(known(self.mask) & ~history.shown)) if history.shown else set()
        for number in self._visible.known():
            if (
                number in contested
                or number in own
                or number in history.names
                or (number in new and self._may_be_taken(number))
            ):
                yield number

    def _may_be_taken(self, number: int) -> bool:
        """Whether the plain name of a new pair may belong to a pair that was shown."""
        name = self._plain.names[number]
        meant = self._roll.meanings.spelled(name)
        return name in self.history.owners or any(other != number for other in meant)

    def _belongs_to_another(self, name: str, pair: Pair) -> bool:
        """Whether the name that a new pair would get means another pair, which was shown.

        If it does so in another spelling only, the name is reserved for that pair from now on.
        """
        number = self._roll.number(pair)
        owner = self.history.owner(name)
        if owner is None:
            owner = self._by_hash(name)
        if owner is not None or not self.history.shown:
            return owner not in (None, number)
        meant = [other for other in self._roll.meanings.spelled(name) if self.history.has(other)]
        if len(meant) != 1 or meant[0] == number:
            return False
        self.reserved[name] = meant[0]
        return True

    def note(self, only: Pair | None = None) -> None:
        """Remember in the history that the names here were shown, or the one of a pair alone."""
        self.history.reserve(self.reserved)
        offered = known(self.mask)
        if only is None:
            self.resources.note()  # to which tools refer
            self.history.note(offered, self.names, offered)
        else:
            number = self._roll.number(only)
            assert number is not None
            self.history.note(1 << number, self.names, offered)

    # -- looking up

    def find(self, name: str) -> Route | None:
        """The route of a name in this view's spelling, or in any other that is not ambiguous."""
        route = self._routes.get(name)
        if route is None:
            number = self._look_up(name)
            if number is not None and self.mask[number] == PRESENT:
                route = self._routes[name] = self._route(number)
        return route

    def find_departed(self, name: str) -> Route | None:
        """Where a name led, if that server has left; it may be back in a moment."""
        number = self._look_up(name)
        if number is None or self.mask[number] != DEPARTED:
            return None
        return self._route(number)

    def _look_up(self, name: str) -> int | None:
        """The pair that a name means here, be it present or departed."""
        if name in self.own:
            return None
        owner = self._owner(name)
        if owner is None:
            owner = self._by_hash(name)
        if owner is None:
            owner = self._by_other_spelling(name)
        return owner if owner is not None and self._knows(owner) else None

    def _owner(self, name: str) -> int | None:
        """The pair whose name this is, also of those that are offered no more."""
        for table in (self._assigned, self.reserved):
            if name in table:
                return table[name]
        for number in self._plain.numbers(name):
            if self._knows(number) and number not in self.names:
                return number
        return self.history.owner(name)

    def _by_hash(self, name: str) -> int | None:
        """The pair whose hashed name this is, where it is listed under its plain name."""
        found = filter(self._counts, self._roll.meanings.hashed(name, self._plain.spelling))
        return _only(found)

    def _by_other_spelling(self, name: str) -> int | None:
        meant = {*self._roll.meanings.spelled(name), *self._plain.numbers(name)}
        return _only(filter(self._counts, meant))

    def _knows(self, number: int) -> bool:
        """Whether a pair is present or departed. The roll may have others that came later."""
        return number < len(self.mask) and self.mask[number] != ABSENT

    def _counts(self, number: int) -> bool:
        """Whether a pair is known here, or was shown before."""
        return self._knows(number) or self.history.has(number)

    def _route(self, number: int) -> Route:
        pair = self._roll.pairs[number]
        server = self._visible.lists[pair.server]
        offer = server.items[number]
        return Route(
            upstream=server.upstream,
            pair=pair,
            canonical=self._roll.canonical.separator.join(pair),
            raw_name=offer.members["name"],
            timeout=timeout_for(server.upstream, self._timeout),
            headers=offer.headers,
            item=offer,
        )

    # -- what there is

    def admits(self, pair: Pair) -> bool:
        """Whether a pair can be seen and called here, under whatever name."""
        number = self._roll.number(pair)
        return number is not None and self._is_present(number)

    def _is_present(self, number: int) -> bool:
        return number < len(self.mask) and self.mask[number] == PRESENT

    def known_pairs(self) -> Iterator[Pair]:
        """The pairs that can be seen here, also of servers that have left."""
        return map(self._roll.pairs.__getitem__, self._visible.known())

    def present_pairs(self) -> Iterator[Pair]:
        """The pairs that can be seen and called here."""
        return map(self._roll.pairs.__getitem__, self._visible.present())

    def name_of(self, pair: Pair) -> str | None:
        """The name of a pair here, also if its server has left; None when it is not known."""
        number = self._roll.number(pair)
        return self._name(number) if number is not None and self._knows(number) else None

    def _name(self, number: int) -> str:
        return self.names.get(number) or self._plain.names[number]

    def names_of(self, server: str) -> list[str]:
        """The names under which one server's items are listed."""
        pairs = self._roll.pairs
        return [self._name(n) for n in self._visible.present() if pairs[n].server == server]

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The servers of which something can be called here, and how many items each has."""
        return self._visible.count_by_server()

    def pairs_called(self, name: str) -> list[Pair]:
        """The pairs whose server calls them so; of those that have left only if no other does."""
        known = [n for n in self._roll.plain(URIS).numbers(name) if self._knows(n)]
        found = {n for n in known if self._is_present(n)} or set(known)
        return [self._roll.pairs[n] for n in self._visible.known() if n in found]

    # -- the list

    @property
    def items(self) -> MergedList:
        """The list, for clients to see."""
        load = self._load_search if self.lists_search else self._load
        return MergedList(
            self._visible.kind.member, load, self._pages, self._page_key, self._page_size
        )

    def _load(self) -> tuple[list[str], Callable[[int, int], Iterable[bytes]]]:
        present = self._visible.present()

        def encode_items(start: int, end: int) -> Iterator[bytes]:
            return map(self._encode, present[start:end])

        return list(map(self._name, present)), encode_items

    def _load_search(self) -> tuple[list[str], Callable[[int, int], Iterable[bytes]]]:
        own = self._search.own if self._search is not None else ()
        favourites = self._find_favourites()
        items = [*(encode.dumps(offer.members) for offer in own), *map(self._encode, favourites)]
        listed = [*(offer.name for offer in own), *map(self._name, favourites)]
        return listed, lambda start, end: items[start:end]

    def _find_favourites(self) -> list[int]:
        wanted = self._search.favourites if self._search is not None else None
        if wanted is None:
            return []
        pairs = self._roll.pairs
        return [n for n in self._visible.present() if wanted.match(".".join(pairs[n]))]

    def describe(self, pair: Pair) -> bytes:
        """A pair that can be called, as a list would describe it."""
        number = self._roll.number(pair)
        assert number is not None
        return self._encode(number)

    def _encode(self, number: int) -> bytes:
        server = self._roll.pairs[number].server
        listed = self._visible.lists[server]
        offer = listed.items[number]
        apart = self.resources.apart
        if apart and _META in offer.members:
            meta = rewrite_references(offer.members[_META], server, apart)
            return encode.dumps({**offer.members, _META: meta, "name": self._name(number)})
        if number in self.names:
            return encode_as(self.names[number], offer)
        return listed.encode(number, self._plain)

    @cached_property
    def whole_size(self) -> int:
        """The bytes of a list of all tools of this view, also when only search is listed."""
        head = len(self._visible.kind.member) + 7
        present = self._visible.present()
        sizes = (self._visible.size(number, self._name(number)) for number in present)
        return head + sum(sizes) + max(0, len(present) - 1)

    # -- hints

    def nearest(self, name: str) -> list[str]:
        """Names like one that is not there."""
        known = self._comparable(name)
        folded: dict[str, list[str]] = {}
        for other in known:
            folded.setdefault(other.casefold(), []).append(other)
        like = difflib.get_close_matches(name.casefold(), folded, _NEAREST, 0.5)
        close = [other for each in like for other in folded[each]]
        tail = name.rpartition(self._plain.spelling.separator)[2]
        ending = [other for other in known if tail and other.endswith(tail) and other not in close]
        return (close + ending)[:_NEAREST]

    def _comparable(self, name: str) -> list[str]:
        """The names worth comparing: that is slow, and a wrong name must not hold up the rest."""
        names = list(map(self._name, self._visible.present()))
        if len(names) <= _COMPARED:
            return names
        wanted = words(name)
        return heapq.nlargest(_COMPARED, names, lambda other: len(words(other) & wanted))


def _only(numbers: Iterable[int]) -> int | None:
    """The only one of some numbers; None if there are several, or none."""
    found = list(numbers)
    return found[0] if len(found) == 1 else None
