"""View: the tools, or the prompts, of one Scope under one spelling: names to routes, and the list.

The names are those of the Roll, except where two pairs of this Scope would share one, or where a
name was shown for another pair before. What the Scope does not admit has no influence. A View never
changes, and does not record that its names were shown (``Catalog.show`` does).
"""

from __future__ import annotations

import difflib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Final

from mcp_junction.catalog.endpoints import favourites_of
from mcp_junction.catalog.items import ListKind, Route, timeout_for
from mcp_junction.catalog.name_history import URIS, NameHistory
from mcp_junction.catalog.own_tools import OWN_NAMES, TOKEN_BYTES, SearchRule, own_offers
from mcp_junction.catalog.resources import ResourceView, rewrite_references
from mcp_junction.catalog.roll import (
    ABSENT,
    DEPARTED,
    PRESENT,
    NumberedList,
    encode_as,
    known,
    numbers_in,
    words,
)
from mcp_junction.catalog.scope import Scope
from mcp_junction.config.settings import AUTO
from mcp_junction.protocol import encode
from mcp_junction.protocol.merged_list import MergedList, PageCache
from mcp_junction.protocol.names import Pair, assign

_META: Final = "_meta"
_NEAREST: Final = 3
_COMPARED: Final = 200


class View:
    """Names to routes under one spelling, and the list as bytes."""

    def __init__(
        self,
        scope: Scope,
        kind: ListKind,
        mask: bytes,
        lists: Mapping[str, NumberedList],
        history: NameHistory,
        resources: ResourceView,
        *,
        search: SearchRule | None,
        timeout: float,
        page_size: int,
        pages: PageCache,
    ) -> None:
        self.scope = scope
        self.mask = mask
        """For each number: absent, present, or departed with its server."""
        self.own = OWN_NAMES if search is not None else frozenset()
        """The names of Junction's own tools, where they can be called."""
        self.resources = resources
        self.history = history
        self.names: dict[int, str] = {}
        """The names of pairs whose name here is not the plain one."""
        self.is_noted = False
        """Whether its names are remembered as shown."""
        self._kind = kind
        self._lists = lists
        """The servers that can be seen."""
        self._roll = history.roll
        self._plain = history.plain
        self._search = search
        self._timeout = timeout
        self._page_size = page_size
        self._pages = pages
        self._page_key = object()
        self._assigned: dict[str, int] = {}
        """The pair that each doubtful name means here, also the plain name of a newcomer that
        meant another pair, which was shown, before."""
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
        own = {number for name in self.own for number in self._plain.numbers.of(name)}
        if not (history.shown or own or contested):
            return
        new = set(numbers_in(known(self.mask) & ~history.shown)) if history.shown else set()
        for number in self._known():
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
        self._assigned[name] = meant[0]
        return True

    def note(self, only: Pair | None = None) -> None:
        """Remember in the history that the names here were shown, or the one of a pair alone."""
        offered = shown = known(self.mask)
        if only is None:
            self.resources.note()  # to which tools refer
        else:
            number = self._roll.number(only)
            assert number is not None
            shown = 1 << number
        aliases = {name: n for name, n in self._assigned.items() if self._name(n) != name}
        self.history.note(shown, self.names, offered, aliases)

    # -- looking up

    def find(self, name: str) -> Route | None:
        """The route of a name in this view's spelling, or in any other that is not ambiguous."""
        route = self._routes.get(name)
        if route is None:
            number = self._look_up(name)
            if number is not None and self._state(number) == PRESENT:
                route = self._routes[name] = self._route(number)
        return route

    def find_departed(self, name: str) -> Route | None:
        """Where a name led, if that server has left; it may be back in a moment."""
        number = self._look_up(name)
        is_departed = number is not None and self._state(number) == DEPARTED
        return self._route(number) if number is not None and is_departed else None

    def _look_up(self, name: str) -> int | None:
        """The pair that a name means here, be it present or departed."""
        if name in self.own:
            return None
        for look_up in (self._owner, self._by_hash, self._by_other_spelling):
            owner = look_up(name)
            if owner is not None:
                return owner
        return None

    def _owner(self, name: str) -> int | None:
        """The pair whose name this is, also of those that are offered no more."""
        if name in self._assigned:
            return self._assigned[name]
        for number in self._plain.numbers.of(name):
            if self._state(number) and number not in self.names:
                return number
        return self.history.owner(name)

    def _by_hash(self, name: str) -> int | None:
        """The pair whose hashed name this is, where it is listed under its plain name."""
        found = filter(self._counts, self._roll.meanings.hashed(name, self._plain.spelling))
        return _only(found)

    def _by_other_spelling(self, name: str) -> int | None:
        meant = {*self._roll.meanings.spelled(name), *self._plain.numbers.of(name)}
        return _only(filter(self._counts, meant))

    def _state(self, number: int) -> int:
        """Whether a pair is absent (0), present or departed. The roll may have later ones."""
        return self.mask[number] if number < len(self.mask) else ABSENT

    def _counts(self, number: int) -> bool:
        """Whether a pair is known here, or was shown before."""
        return self._state(number) != ABSENT or self.history.has(number)

    def _route(self, number: int) -> Route:
        pair = self._roll.pairs[number]
        server = self._lists[pair.server]
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

    def _known(self) -> list[int]:
        """The numbers of the pairs that are present or departed, in the order of the list."""
        mask = self.mask
        return [n for listed in self._lists.values() for n in listed.items if mask[n]]

    def _present(self) -> list[int]:
        """The numbers of the pairs that are present, in the order of the list."""
        mask = self.mask
        return [n for listed in self._lists.values() for n in listed.items if mask[n] == PRESENT]

    def admits(self, pair: Pair) -> bool:
        """Whether a pair can be seen and called here, under whatever name."""
        number = self._roll.number(pair)
        return number is not None and self._state(number) == PRESENT

    def known_pairs(self) -> Iterator[Pair]:
        """The pairs that can be seen here, also of servers that have left."""
        return map(self._roll.pairs.__getitem__, self._known())

    def present_pairs(self) -> Iterator[Pair]:
        """The pairs that can be seen and called here."""
        return map(self._roll.pairs.__getitem__, self._present())

    def name_of(self, pair: Pair) -> str | None:
        """The name of a pair here, also if its server has left; None when it is not known."""
        number = self._roll.number(pair)
        return self._name(number) if number is not None and self._state(number) else None

    def _name(self, number: int) -> str:
        return self.names.get(number) or self._plain.names[number]

    def names_of(self, server: str) -> list[str]:
        """The names under which one server's items are listed."""
        pairs = self._roll.pairs
        return [self._name(n) for n in self._present() if pairs[n].server == server]

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """The servers of which something can be called here, and how many items each has."""
        return Counter(self._roll.pairs[number].server for number in self._present())

    def pairs_called(self, name: str) -> list[Pair]:
        """The pairs whose server calls them so; of those that have left only if no other does."""
        known = [n for n in self._roll.plain(URIS).numbers.of(name) if self._state(n)]
        found = {n for n in known if self._state(n) == PRESENT} or set(known)
        return [self._roll.pairs[n] for n in self._known() if n in found]

    # -- the list

    @cached_property
    def lists_search(self) -> bool:
        """Whether the own tools and favourites are listed instead of all tools."""
        search = self._search
        if search is None or search.exposure != AUTO:
            return search is not None
        most = search.tokens * TOKEN_BYTES
        return any(size > most for size in accumulate(self._sizes()))

    @property
    def items(self) -> MergedList:
        """The list, for clients to see."""
        load = self._load_search if self.lists_search else self._load
        return MergedList(self._kind.member, load, self._pages, self._page_key, self._page_size)

    def _load(self) -> tuple[list[str], Callable[[int, int], Iterable[bytes]]]:
        present = self._present()
        return list(map(self._name, present)), lambda start, end: map(
            self._encode, present[start:end]
        )

    def _load_search(self) -> tuple[list[str], Callable[[int, int], Iterable[bytes]]]:
        search, pairs, present = self._search, self._roll.pairs, self._present()
        assert search is not None
        skills = Counter(filter(None, (search.skills.get(pairs[n]) for n in present)))
        own = own_offers(self.counts, dict(skills.most_common()))
        wanted = favourites_of((*search.favourites, *self.scope.endpoint.favourites))
        favourites = [n for n in present if wanted and wanted.match(".".join(pairs[n]))]
        items = [*(encode.dumps(offer.members) for offer in own), *map(self._encode, favourites)]
        listed = [*(offer.name for offer in own), *map(self._name, favourites)]
        return listed, lambda start, end: items[start:end]

    def describe(self, pair: Pair) -> bytes:
        """A pair that can be called, as a list would describe it."""
        number = self._roll.number(pair)
        assert number is not None
        return self._encode(number)

    def _encode(self, number: int) -> bytes:
        server = self._roll.pairs[number].server
        listed = self._lists[server]
        offer = listed.items[number]
        apart = self.resources.apart
        if apart and _META in offer.members:
            meta = rewrite_references(offer.members[_META], server, apart)
            return encode.dumps({**offer.members, _META: meta, "name": self._name(number)})
        if number in self.names:
            return encode_as(self.names[number], offer)
        return listed.encode(number, self._plain)

    def _sizes(self) -> Iterator[int]:
        """The bytes of each item of a list of all tools, computed without encoding it."""
        for number in self._present():
            members = self._lists[self._roll.pairs[number].server].items[number].members
            named = len(encode.dumps(self._name(number))) - len(members["name"])
            yield named + 1 + sum(len(key.encode()) + 4 + len(raw) for key, raw in members.items())

    @cached_property
    def whole_size(self) -> int:
        """The bytes of a list of all tools of this view, also when only search is listed."""
        sizes = list(self._sizes())
        return len(self._kind.member) + 7 + sum(sizes) + max(0, len(sizes) - 1)

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
        names = list(map(self._name, self._present()))
        if len(names) <= _COMPARED:
            return names
        wanted = words(name)
        return heapq.nlargest(_COMPARED, names, lambda other: len(words(other) & wanted))


def _only(numbers: Iterable[int]) -> int | None:
    """The only one of some numbers; None if there are several, or none."""
    found = list(numbers)
    return found[0] if len(found) == 1 else None
