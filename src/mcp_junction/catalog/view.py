"""Catalog and View: all offers of one moment, and how they look under one spelling.

Both are immutable. A change makes a new Catalog with the next generation; each Call keeps the one
it started with. Views are made when first asked for and kept with their Catalog.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import Raw

from mcp_junction.catalog.discovery import Offer
from mcp_junction.protocol import encode, names
from mcp_junction.protocol.merge import DEFAULT_PAGE_SIZE, MergedList
from mcp_junction.protocol.names import Pair, Spelling
from mcp_junction.upstream.server import Upstream

_NEAREST = 3
_COMPARED = 200
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Route:
    """Where a name leads."""

    upstream: Upstream
    pair: Pair
    canonical: str
    raw_name: Raw
    timeout: float


@dataclass(frozen=True, slots=True)
class Offering:
    """What one connected server offers."""

    upstream: Upstream
    tools: tuple[Offer, ...]


@dataclass(frozen=True)
class Catalog:
    """Every offer of every connected server, in the order of the config file."""

    generation: int = 0
    offerings: Mapping[str, Offering] = field(default_factory=dict)
    canonical: Spelling = names.STDIO
    timeout: float = 0.0
    page_size: int = DEFAULT_PAGE_SIZE
    order: tuple[str, ...] = ()
    gone: Mapping[str, Offering] = field(default_factory=dict)
    """Servers that left. Their names stay theirs: no call may land on another server's tool."""
    _views: dict[Spelling, View] = field(default_factory=dict, compare=False)

    def with_offering(self, offering: Offering, order: list[str]) -> Catalog:
        """This catalog with one server's offers new or replaced."""
        merged = {**self.offerings, offering.upstream.key: offering}
        present = {key: merged[key] for key in order if key in merged}
        gone = {key: left for key, left in self.gone.items() if key not in present}
        return self._next(present, gone, tuple(order))

    def without(self, key: str) -> Catalog:
        """This catalog without a server."""
        present = dict(self.offerings)
        left = present.pop(key, None)
        gone = self.gone if left is None else {**self.gone, key: left}
        return self._next(present, gone, self.order)

    def _next(
        self, present: Mapping[str, Offering], gone: Mapping[str, Offering], order: tuple[str, ...]
    ) -> Catalog:
        return Catalog(
            generation=self.generation + 1,
            offerings=present,
            canonical=self.canonical,
            timeout=self.timeout,
            page_size=self.page_size,
            order=order,
            gone=gone,
        )

    def view(self, spelling: Spelling) -> View:
        """The catalog under ``spelling``."""
        found = self._views.get(spelling)
        if found is None:
            found = self._views[spelling] = View(self, spelling)
        return found

    @cached_property
    def offers(self) -> dict[Pair, tuple[Offering, Offer]]:
        return _by_pair(self.offerings)

    @cached_property
    def known(self) -> dict[Pair, tuple[Offering, Offer]]:
        """Every offer, also of servers that left, in the order in which names are given."""
        if not self.gone:
            return self.offers
        both = {**self.offerings, **self.gone}
        places = dict.fromkeys((*self.order, *both))
        return _by_pair({key: both[key] for key in places if key in both})


def _by_pair(offerings: Mapping[str, Offering]) -> dict[Pair, tuple[Offering, Offer]]:
    return {
        Pair(key, offer.name): (offering, offer)
        for key, offering in offerings.items()
        for offer in offering.tools
    }


class View:
    """Names to routes under one spelling, and the lists as bytes."""

    def __init__(self, catalog: Catalog, spelling: Spelling) -> None:
        self._catalog = catalog
        self._spelling = spelling
        table = names.assign(catalog.known, spelling)
        here = {name: pair for name, pair in table.items() if pair in catalog.offers}
        self._routes = {name: self._route(pair) for name, pair in here.items()}
        self._departed = {name: table[name].server for name in table.keys() - here.keys()}
        self.tools = MergedList(
            "tools",
            list(here),
            [self._described(name, pair) for name, pair in here.items()],
            catalog.page_size,
        )

    def find(self, name: str) -> Route | None:
        """The route of a name in this view's spelling, or in any other that is not ambiguous."""
        return self._routes.get(name) or self._others.get(name)

    def departed(self, name: str) -> Offering | None:
        """Whose tool a name was, if that server has left."""
        pair = self._aliases.get(name)
        server = self._departed.get(name) or (pair.server if pair is not None else "")
        return self._catalog.gone.get(server)

    def names_of(self, server: str) -> list[str]:
        """The names under which one server's tools are listed."""
        return [name for name, route in self._routes.items() if route.pair.server == server]

    def nearest(self, name: str) -> list[str]:
        """Names like one that is not there."""
        known = self._comparable(name)
        close = difflib.get_close_matches(name, known, _NEAREST, 0.5)
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

    @cached_property
    def _others(self) -> dict[str, Route]:
        by_pair = {route.pair: route for route in self._routes.values()}
        return {name: by_pair[pair] for name, pair in self._aliases.items() if pair in by_pair}

    @cached_property
    def _aliases(self) -> dict[str, Pair]:
        return names.aliases(list(self._catalog.known), self._catalog.canonical, self._spelling)

    def _route(self, pair: Pair) -> Route:
        offering, offer = self._catalog.offers[pair]
        own = offering.upstream.definition.timeout_ms / 1000
        return Route(
            upstream=offering.upstream,
            pair=pair,
            canonical=self._catalog.canonical.separator.join(pair),
            raw_name=offer.members["name"],
            timeout=own or self._catalog.timeout,
        )

    def _described(self, name: str, pair: Pair) -> bytes:
        _, offer = self._catalog.offers[pair]
        return encode.dumps({**offer.members, "name": name})


def _words(name: str) -> frozenset[str]:
    return frozenset(_WORD.findall(name.lower()))
