"""Catalog and View: all offers of one moment, and how they look under one spelling.

Both are immutable. A change makes a new Catalog with the next generation; each Call keeps the one
it started with. Views are made when first asked for and kept with their Catalog.
"""

from __future__ import annotations

import difflib
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
    _views: dict[Spelling, View] = field(default_factory=dict, compare=False)

    def with_offering(self, offering: Offering, order: list[str]) -> Catalog:
        """This catalog with one server's offers new or replaced."""
        merged = {**self.offerings, offering.upstream.key: offering}
        return self._next({key: merged[key] for key in order if key in merged})

    def without(self, key: str) -> Catalog:
        """This catalog without a server."""
        return self._next({other: o for other, o in self.offerings.items() if other != key})

    def _next(self, offerings: Mapping[str, Offering]) -> Catalog:
        return Catalog(self.generation + 1, offerings, self.canonical, self.timeout, self.page_size)

    def view(self, spelling: Spelling) -> View:
        """The catalog under ``spelling``."""
        found = self._views.get(spelling)
        if found is None:
            found = self._views[spelling] = View(self, spelling)
        return found

    @cached_property
    def offers(self) -> dict[Pair, tuple[Offering, Offer]]:
        return {
            Pair(key, offer.name): (offering, offer)
            for key, offering in self.offerings.items()
            for offer in offering.tools
        }


class View:
    """Names to routes under one spelling, and the lists as bytes."""

    def __init__(self, catalog: Catalog, spelling: Spelling) -> None:
        self._catalog = catalog
        self._spelling = spelling
        table = names.assign(catalog.offers, spelling)
        self._routes = {name: self._route(pair) for name, pair in table.items()}
        self.tools = MergedList(
            "tools",
            list(table),
            [self._described(name, pair) for name, pair in table.items()],
            catalog.page_size,
        )

    def find(self, name: str) -> Route | None:
        """The route of a name in this view's spelling, or in any other that is not ambiguous."""
        return self._routes.get(name) or self._others.get(name)

    def names_of(self, server: str) -> list[str]:
        """The names under which one server's tools are listed."""
        return [name for name, route in self._routes.items() if route.pair.server == server]

    def nearest(self, name: str) -> list[str]:
        """Names like one that is not there."""
        known = list(self._routes)
        close = difflib.get_close_matches(name, known, _NEAREST, 0.5)
        tail = name.rpartition(self._spelling.separator)[2]
        ending = [other for other in known if tail and other.endswith(tail) and other not in close]
        return (close + ending)[:_NEAREST]

    @cached_property
    def _others(self) -> dict[str, Route]:
        pairs = list(self._catalog.offers)
        others = names.aliases(pairs, self._catalog.canonical, self._spelling)
        by_pair = {route.pair: route for route in self._routes.values()}
        return {name: by_pair[pair] for name, pair in others.items()}

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
