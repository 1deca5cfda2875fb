"""Catalog: all offers of one moment. Immutable; a change makes the next generation.

Each Call keeps the catalog it started with. Views are made when first asked for and kept with their
catalog. A server that leaves keeps its names for as long as the catalog remembers it, so that no
call meant for it lands on another server's tool; and so does a tool that was shown (``given.py``),
which is the one thing that all generations share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mcp_junction.catalog.discovery import Offer
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint
from mcp_junction.catalog.given import Given
from mcp_junction.catalog.kinds import RESOURCES, TEMPLATES, TOOLS, Kind
from mcp_junction.catalog.own import own_offers
from mcp_junction.catalog.resources import ResourceView
from mcp_junction.catalog.view import Offered, View
from mcp_junction.config.settings import ALL, SEARCH
from mcp_junction.protocol import names
from mcp_junction.protocol.merge import MergedList
from mcp_junction.protocol.names import Pair, Spelling
from mcp_junction.protocol.sizes import DEFAULT_PAGE_SIZE
from mcp_junction.upstream.server import Upstream


class Offering(msgspec.Struct, frozen=True):
    """What one connected server offers."""

    upstream: Upstream
    tools: tuple[Offer, ...] = ()
    prompts: tuple[Offer, ...] = ()
    resources: tuple[Offer, ...] = ()
    templates: tuple[Offer, ...] = ()

    def of(self, kind: Kind) -> tuple[Offer, ...]:
        found: tuple[Offer, ...] = getattr(self, kind.name)
        return found


class Catalog(msgspec.Struct, frozen=True, eq=False):
    """Every offer of every connected server, in the order of the config file."""

    generation: int = 0
    offerings: Mapping[str, Offering] = {}
    canonical: Spelling = names.STDIO
    timeout: float = 0.0
    page_size: int = DEFAULT_PAGE_SIZE
    exposure: str = ALL
    """What is listed where an endpoint does not say: all tools, or those to search them with."""
    order: tuple[str, ...] = ()
    gone: Mapping[str, Offering] = {}
    given: Given = msgspec.field(default_factory=Given)
    _made: dict[Any, Any] = {}

    def with_offering(self, offering: Offering, order: list[str]) -> Catalog:
        """This catalog with one server's offers new or replaced."""
        merged = {**self.offerings, offering.upstream.key: offering}
        present = {key: merged[key] for key in order if key in merged}
        gone = {key: left for key, left in self.gone.items() if key not in present}
        return self._next(present, gone, tuple(order))

    def without(self, key: str) -> Catalog:
        """This catalog without a server, whose names stay its own."""
        present = dict(self.offerings)
        left = present.pop(key, None)
        gone = self.gone if left is None else {**self.gone, key: left}
        return self._next(present, gone, self.order)

    def with_absent(self, offering: Offering, order: list[str]) -> Catalog:
        """This catalog with what a server offers when it is there, and it is not."""
        key = offering.upstream.key
        present = {k: v for k, v in self.offerings.items() if k != key}
        return self._next(present, {**self.gone, key: offering}, tuple(order))

    def forgetting(self, key: str, order: list[str]) -> Catalog:
        """This catalog as if there had never been such a server; its names are free."""
        self.given.forget(key)
        present = {k: v for k, v in self.offerings.items() if k != key}
        gone = {k: v for k, v in self.gone.items() if k != key}
        return self._next(present, gone, tuple(order))

    def narrowed(self, sets: Iterable[Endpoint]) -> Catalog:
        """This catalog when there are these named sets: what was taken out of one is free there."""
        return self.again() if self.given.narrow(sets) else self

    def again(self) -> Catalog:
        """The same offers; what was made of them is made anew."""
        return self._next(self.offerings, self.gone, self.order)

    def renamed(self, old: str, new: str, order: list[str]) -> Catalog:
        """This catalog with another key for a server."""
        self.given.rename(old, new)

        def under(offerings: Mapping[str, Offering]) -> dict[str, Offering]:
            return {(new if key == old else key): kept for key, kept in offerings.items()}

        return self._next(under(self.offerings), under(self.gone), tuple(order))

    def _next(
        self, present: Mapping[str, Offering], gone: Mapping[str, Offering], order: tuple[str, ...]
    ) -> Catalog:
        return Catalog(
            generation=self.generation + 1,
            offerings=present,
            canonical=self.canonical,
            timeout=self.timeout,
            page_size=self.page_size,
            exposure=self.exposure,
            order=order,
            gone=gone,
            given=self.given,
        )

    def settle(self) -> None:
        """Every server has been heard of: what can be looked up from now on counts as shown."""
        self.given.is_settled = True
        for made in self._made.values():
            if isinstance(made, View | ResourceView):
                made.keep()

    def view(self, spelling: Spelling, kind: Kind = TOOLS, endpoint: Endpoint = EVERYTHING) -> View:
        """Tools or prompts under ``spelling``, as seen at ``endpoint``."""
        key = (spelling, kind, endpoint)
        found: View | None = self._made.get(key)
        if found is None:
            offers = self._offered(kind, endpoint, self.offerings)
            found = self._made[key] = View(
                kind=kind,
                spelling=spelling,
                canonical=self.canonical,
                offers=offers,
                known=self._offered(kind, endpoint, self._all()),
                gone={key: left.upstream for key, left in self.gone.items()},
                resources=self.resources(endpoint),
                timeout=self.timeout,
                page_size=self.page_size,
                own=self._own(kind, endpoint, offers),
                held=self.given.at(spelling, kind, endpoint.name),
            )
            if self.given.is_settled:
                found.keep()
        return found

    def _own(self, kind: Kind, endpoint: Endpoint, offers: Iterable[Pair]) -> tuple[Offer, ...]:
        """Junction's own tools, where they are listed instead of the servers'."""
        if kind is not TOOLS or (endpoint.exposure or self.exposure) != SEARCH:
            return ()
        return own_offers(Counter(pair.server for pair in offers))

    def listed(self, spelling: Spelling, kind: Kind, endpoint: Endpoint) -> MergedList:
        """The list of a kind, for a client to see."""
        if kind is RESOURCES:
            return self.resources(endpoint).items
        if kind is TEMPLATES:
            return self.resources(endpoint).templates
        return self.view(spelling, kind, endpoint).items

    def resources(self, endpoint: Endpoint = EVERYTHING) -> ResourceView:
        """Resources and templates as seen at ``endpoint``."""
        found: ResourceView | None = self._made.get(endpoint)
        if found is None:
            places = [key for key in self.order if endpoint.admits_server(key)]
            found = self._made[endpoint] = ResourceView(
                [o for key, o in self._all().items() if endpoint.admits_server(key)],
                frozenset(self.offerings),
                self.timeout,
                self.page_size,
                held=self.given.at(None, RESOURCES, endpoint.name),
                held_templates=self.given.at(None, TEMPLATES, endpoint.name),
                alone=len(places) == 1,
            )
            if self.given.is_settled:
                found.keep()
        return found

    def _all(self) -> dict[str, Offering]:
        """Every offering, also of servers that left, in the order in which names are given."""
        both = {**self.offerings, **self.gone}
        places = dict.fromkeys((*self.order, *both))
        return {key: both[key] for key in places if key in both}

    @staticmethod
    def _offered(
        kind: Kind, endpoint: Endpoint, offerings: Mapping[str, Offering]
    ) -> dict[Pair, Offered]:
        return {
            pair: Offered(offering.upstream, offer)
            for key, offering in offerings.items()
            for offer in offering.of(kind)
            if endpoint.admits(pair := Pair(key, offer.name))
        }
