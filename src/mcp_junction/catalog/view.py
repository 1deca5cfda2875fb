"""View: tools, or prompts, under one spelling: names to routes, and the list as ready bytes."""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from mcp_junction.catalog.discovery import Offer
from mcp_junction.catalog.kinds import OfferKind
from mcp_junction.catalog.name_history import NameHistory
from mcp_junction.catalog.resources import ResourceView, referred
from mcp_junction.catalog.routes import Route, timeout_for
from mcp_junction.protocol import encode, names
from mcp_junction.protocol.merged_list import MergedList
from mcp_junction.protocol.names import Pair, Spelling
from mcp_junction.upstream.server import Upstream

_META = "_meta"
_NEAREST = 3
_COMPARED = 200
_WORD = re.compile(r"[^\W_]+")


class Offered(NamedTuple):
    """Something offered, and who offers it."""

    upstream: Upstream
    offer: Offer


class View:
    """Names to routes under one spelling, and the list as bytes."""

    def __init__(
        self,
        *,
        kind: OfferKind,
        spelling: Spelling,
        canonical: Spelling,
        offers: Mapping[Pair, Offered],
        known: Mapping[Pair, Offered],
        gone: Mapping[str, Upstream],
        resources: ResourceView,
        timeout: float,
        page_size: int,
        held: NameHistory,
        own: Sequence[Offer] = (),
    ) -> None:
        self._kind = kind
        self.own = frozenset(offer.name for offer in own)
        """The names of Junction's own tools, where they are listed instead of the others."""
        self._spelling = spelling
        self._canonical = canonical
        self._offers = offers
        self._known = known
        self._gone = gone
        self._resources = resources
        self._timeout = timeout
        self._page_size = page_size
        self._own_offers = own
        self._held = held
        self._held_changes = held.changes
        self._is_kept = False
        self._reserved: dict[str, Pair] = {}
        self._table = table = names.assign(known, spelling, self.own, held.names, self._is_anothers)
        here = {name: pair for name, pair in table.items() if pair in offers}
        self._routes = {name: self._route(pair) for name, pair in here.items()}
        self._departed = {name: table[name] for name in table.keys() - here.keys()}

    def is_current(self, held: NameHistory, resources: ResourceView) -> bool:
        """Whether nothing changed since this view was made, so that it can still be used."""
        is_same = self._held is held and self._resources is resources
        return is_same and self._held_changes == held.changes

    @property
    def has_aliases(self) -> bool:
        """Whether the aliases, names in other spellings, were made."""
        return "_others" in self.__dict__

    def make_aliases(self) -> None:
        """Make the aliases now, not when one is first used."""
        self._others  # noqa: B018 - what is cached is made by looking at it

    @cached_property
    def items(self) -> MergedList:
        """The list, for clients to see."""
        self.keep()
        if self._own_offers:
            listed = [offer.name for offer in self._own_offers]
            items = [encode.dumps(offer.members) for offer in self._own_offers]
        else:
            listed = list(self._routes)
            items = [self._described(name, route.pair) for name, route in self._routes.items()]
        return MergedList(self._kind.member, listed, items, self._page_size)

    @cached_property
    def whole_size(self) -> int:
        """The bytes of a list of all tools of this view, also when only search is listed."""
        head = len(self._kind.member) + 7
        each = (_size(name, self._offers[r.pair].offer) for name, r in self._routes.items())
        return head + sum(each) + max(0, len(self._routes) - 1)

    def keep(self) -> None:
        """The names here have been shown: they stay whose they are, in the views that follow."""
        if not self._is_kept:
            self._is_kept = True
            self._held.keep_aliases(self._reserved)
            self._held.keep(self._table, self._known)
            self._resources.keep()  # to which tools refer

    def keep_used(self, name: str) -> bool:
        """Somebody uses a name: it stays whose it is. Whether it is anybody's who is there."""
        route = self.find(name)
        if route is not None and route.pair not in self._held.names:
            used = {each: pair for each, pair in self._table.items() if pair == route.pair}
            self._held.keep_aliases(self._reserved)
            self._held.keep(used, self._known)
        return route is not None

    def find(self, name: str) -> Route | None:
        """The route of a name in this view's spelling, or in any other that is not ambiguous."""
        return self._routes.get(name) or (None if name in self.own else self._other(name))

    def former(self, name: str) -> Route | None:
        """Where a name led, if that server has left; it may be back in a moment."""
        if name in self.own:
            return None
        pair = self._departed.get(name) or self._aliases.get(name) or self._by_hash(name)
        return self._route(pair) if pair is not None and pair.server in self._gone else None

    def names_of(self, server: str) -> list[str]:
        """The names under which one server's offers are listed."""
        self.keep()
        return [name for name, route in self._routes.items() if route.pair.server == server]

    def spelled(self, pair: Pair) -> str | None:
        """The name of a pair here, also if its server has left; None when it is not known."""
        return self._spelled.get(pair)

    def lists(self, pair: Pair) -> bool:
        """Whether a pair can be seen and called here, under whatever name."""
        return pair in self._offers

    def described(self, pair: Pair) -> bytes:
        """A pair that can be called, as a list would describe it."""
        return self._described(self._spelled[pair], pair)

    def called(self, name: str) -> list[Pair]:
        """The pairs whose server calls them so; of those that have left only if no other does."""
        known = self._by_own_name.get(name, [])
        return [pair for pair in known if pair in self._offers] or known

    @cached_property
    def _spelled(self) -> dict[Pair, str]:
        self.keep()
        return {pair: name for name, pair in self._table.items()}

    @cached_property
    def _by_own_name(self) -> dict[str, list[Pair]]:
        table: dict[str, list[Pair]] = {}
        for pair in self._known:
            table.setdefault(pair.name, []).append(pair)
        return table

    def nearest(self, name: str) -> list[str]:
        """Names like one that is not there."""
        self.keep()
        known = self._comparable(name)
        folded: dict[str, list[str]] = {}
        for other in known:
            folded.setdefault(other.casefold(), []).append(other)
        like = difflib.get_close_matches(name.casefold(), folded, _NEAREST, 0.5)
        close = [other for each in like for other in folded[each]]
        tail = name.rpartition(self._spelling.separator)[2]
        ending = [other for other in known if tail and other.endswith(tail) and other not in close]
        return (close + ending)[:_NEAREST]

    def _comparable(self, name: str) -> list[str]:
        """The names worth comparing: that is slow, and a wrong name must not hold up the rest."""
        if len(self._routes) <= _COMPARED:
            return list(self._routes)
        words = _words(name)
        return heapq.nlargest(_COMPARED, self._words, lambda other: len(self._words[other] & words))

    @cached_property
    def _words(self) -> dict[str, frozenset[str]]:
        return {name: _words(name) for name in self._routes}

    def _other(self, name: str) -> Route | None:
        found = self._others.get(name)
        if found is None and (pair := self._by_hash(name)) is not None and pair in self._offers:
            return self._route(pair)
        return found

    @cached_property
    def _others(self) -> dict[str, Route]:
        by_pair = {route.pair: route for route in self._routes.values()}
        return {name: by_pair[pair] for name, pair in self._aliases.items() if pair in by_pair}

    @cached_property
    def _aliases(self) -> dict[str, Pair]:
        """What else means one of the pairs; nothing that is, was or could have been another's."""
        table = names.aliases(self._ever, self._canonical, self._spelling)
        for name, owner in self._owners.items():
            if table.get(name, owner) != owner:
                del table[name]
        for pair, others in self._held.aliases.items():
            table.update(dict.fromkeys(others, pair))
        table.update(self._reserved)
        if made_up := {pair for pair in self._known if names.looks_hashed(pair.name)}:
            for name in [name for name, pair in table.items() if pair in made_up]:
                if self._hashes.is_anothers(name, table[name]):
                    del table[name]
        if len(self._ever) == len(self._known):
            return table
        return {name: pair for name, pair in table.items() if pair in self._known}

    @cached_property
    def _ever(self) -> list[Pair]:
        """The pairs that are known, and those that were shown and are offered no more."""
        return [*self._known, *(pair for pair in self._held.names if pair not in self._known)]

    @cached_property
    def _owners(self) -> dict[str, Pair]:
        """Whose each name is, also of what is offered no more."""
        return {**self._held.owners, **self._reserved, **self._table}

    def _is_anothers(self, name: str, pair: Pair) -> bool:
        """Whether what would be the name of a newcomer means another pair that was shown.

        If it does so in another spelling, it stays the other's in the views that follow.
        """
        if self._held.owners.get(name, pair) != pair or self._hashes.is_anothers(name, pair):
            return True
        owner = self._spelled_otherwise.find(name) if self._held.names else None
        if owner is None or owner == pair:
            return False
        self._reserved[name] = owner
        return True

    @cached_property
    def _spelled_otherwise(self) -> names.Spelled:
        return names.Spelled(self._held.names, self._canonical, self._spelling)

    def _by_hash(self, name: str) -> Pair | None:
        """The pair that a name means by its hash, where it is listed under another."""
        if name in self._owners:
            return None
        pair = self._hashes.find(name)
        return pair if pair in self._known else None

    @cached_property
    def _hashes(self) -> names.Hashes:
        return names.Hashes(self._ever, self._canonical, self._spelling)

    def _route(self, pair: Pair) -> Route:
        upstream, offer = self._known[pair]
        return Route(
            upstream=upstream,
            pair=pair,
            canonical=self._canonical.separator.join(pair),
            raw_name=offer.members["name"],
            timeout=timeout_for(upstream, self._timeout),
            headers=offer.headers,
        )

    def _described(self, name: str, pair: Pair) -> bytes:
        own = self._offers[pair].offer.members
        if (apart := self._resources.apart) and _META in own:
            own = {**own, _META: referred(own[_META], pair.server, apart)}
        return encode.dumps({**own, "name": name})


def _size(name: str, offer: Offer) -> int:
    """Compute the bytes of an offer in a list under a name, without encoding it."""
    members = offer.members
    named = len(encode.dumps(name)) - len(members["name"])
    return named + 1 + sum(len(key.encode()) + 4 + len(raw) for key, raw in members.items())


def _words(name: str) -> frozenset[str]:
    return frozenset(_WORD.findall(name.lower()))
