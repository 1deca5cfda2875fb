"""Catalog: all offers of one moment. Immutable; a change makes the next generation.

Each Call keeps the catalog it started with. Views are made when first asked for and kept with their
catalog. A server that leaves keeps its names for as long as the catalog remembers it, so that no
call meant for it lands on another server's tool; and so does a tool that was shown (``given.py``),
which all generations share, as they share the count of what was listed (``tokens.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from mcp_junction.catalog.discovery import Offer
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint
from mcp_junction.catalog.kinds import RESOURCES, TEMPLATES, TOOLS, OfferKind
from mcp_junction.catalog.name_history import NameHistories, NameHistory
from mcp_junction.catalog.own_tools import own_offers
from mcp_junction.catalog.resources import ResourceView
from mcp_junction.catalog.tokens import ListedTokens
from mcp_junction.catalog.view import Offered, View
from mcp_junction.config.settings import ALL, SEARCH
from mcp_junction.protocol import names
from mcp_junction.protocol.merged_list import MergedList
from mcp_junction.protocol.names import Pair, Spelling
from mcp_junction.protocol.versions import DEFAULT_PAGE_SIZE
from mcp_junction.upstream.server import Upstream


class Offering(msgspec.Struct, frozen=True):
    """What one connected server offers."""

    upstream: Upstream
    tools: tuple[Offer, ...] = ()
    prompts: tuple[Offer, ...] = ()
    resources: tuple[Offer, ...] = ()
    templates: tuple[Offer, ...] = ()

    def of(self, kind: OfferKind) -> tuple[Offer, ...]:
        found: tuple[Offer, ...] = getattr(self, kind.name)
        return found


class ViewSpec(NamedTuple):
    """Which view to prepare, and whether with aliases: the names in other spellings."""

    spelling: Spelling
    kind: OfferKind
    endpoint: Endpoint
    aliases: bool = False


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
    given: NameHistories = msgspec.field(default_factory=NameHistories)
    tokens: ListedTokens = msgspec.field(default_factory=ListedTokens)
    _made: dict[Any, Any] = {}
    _prepared: dict[Any, Any] = {}

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
            tokens=self.tokens,
        )

    def settle(self) -> None:
        """Every server has been heard of: what can be looked up from now on counts as shown."""
        self.given.is_settled = True
        for made in self._made.values():
            if isinstance(made, View | ResourceView):
                made.keep()

    def view(
        self, spelling: Spelling, kind: OfferKind = TOOLS, endpoint: Endpoint = EVERYTHING
    ) -> View:
        """Tools or prompts under ``spelling``, as seen at ``endpoint``."""
        key = (spelling, kind, endpoint)
        found: View | None = self._made.get(key)
        if found is None:
            resources = self.resources(endpoint)
            held = self.given.at(spelling, kind, endpoint.name)
            found = self._prepared.pop(key, None)
            if found is None or not found.is_current(held, resources):
                found = self._view(spelling, kind, endpoint, resources)
            self._made[key] = found
            if self.given.is_settled:
                found.keep()
        return found

    def _view(
        self, spelling: Spelling, kind: OfferKind, endpoint: Endpoint, resources: ResourceView
    ) -> View:
        offers = known = self._offered(kind, endpoint, self.offerings)
        if list(every := self._all()) != list(self.offerings):
            known = self._offered(kind, endpoint, every)
        return View(
            kind=kind,
            spelling=spelling,
            canonical=self.canonical,
            offers=offers,
            known=known,
            gone={key: left.upstream for key, left in self.gone.items()},
            resources=resources,
            timeout=self.timeout,
            page_size=self.page_size,
            own=self._own(kind, endpoint, offers),
            held=self.given.at(spelling, kind, endpoint.name),
        )

    # -- views that are made beforehand

    @property
    def size(self) -> int:
        """How many tools and prompts there are."""
        every = (*self.offerings.values(), *self.gone.values())
        return sum(len(one.tools) + len(one.prompts) for one in every)

    def used_views(self) -> list[ViewSpec]:
        """The views that were used: those to prepare for the next catalog."""
        views = [(key, made) for key, made in self._made.items() if isinstance(made, View)]
        return [ViewSpec(key[0], key[1], key[2], view.has_aliases) for key, view in views]

    def prepare(self, wanted: Iterable[ViewSpec]) -> None:
        """Make views ahead of their use, in another thread than the loop's.

        A view that is overtaken, since names were shown meanwhile, is not used: it is made when it
        is asked for, like one that was not prepared.
        """
        for spelling, kind, endpoint, aliases in wanted:
            try:
                resources = self._prepared.get(endpoint) or self._resources(endpoint)
                view = self._view(spelling, kind, endpoint, resources)
                if aliases:
                    view.make_aliases()
            except RuntimeError:  # names were shown while we went through them
                continue
            self._prepared[endpoint] = resources
            self._prepared[spelling, kind, endpoint] = view

    def _own(
        self, kind: OfferKind, endpoint: Endpoint, offers: Iterable[Pair]
    ) -> tuple[Offer, ...]:
        """Junction's own tools, where they are listed instead of the servers'."""
        if kind is not TOOLS or (endpoint.exposure or self.exposure) != SEARCH:
            return ()
        return own_offers(Counter(pair.server for pair in offers))

    def page(
        self, spelling: Spelling, kind: OfferKind, endpoint: Endpoint, cursor: str | None
    ) -> bytes:
        """Return one page of a list, and count its tokens as listed. Raises CursorError."""
        if kind is not TOOLS:
            return self.listed(spelling, kind, endpoint).page(cursor)
        view = self.view(spelling, kind, endpoint)
        page = view.items.page(cursor)
        whole = len(page) if not view.own else 0 if cursor else view.whole_size
        self.tokens.add(len(page), whole)
        return page

    def listed(self, spelling: Spelling, kind: OfferKind, endpoint: Endpoint) -> MergedList:
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
            found = self._prepared.get(endpoint)
            if found is None or not found.is_current(*self._held_resources(endpoint)):
                found = self._resources(endpoint)
            self._made[endpoint] = found
            if self.given.is_settled:
                found.keep()
        return found

    def _resources(self, endpoint: Endpoint) -> ResourceView:
        places = [key for key in self.order if endpoint.admits_server(key)]
        held, held_templates = self._held_resources(endpoint)
        return ResourceView(
            [o for key, o in self._all().items() if endpoint.admits_server(key)],
            frozenset(self.offerings),
            self.timeout,
            self.page_size,
            held=held,
            held_templates=held_templates,
            alone=len(places) == 1,
        )

    def _held_resources(self, endpoint: Endpoint) -> tuple[NameHistory, NameHistory]:
        kinds = RESOURCES, TEMPLATES
        held, templates = (self.given.at(None, kind, endpoint.name) for kind in kinds)
        return held, templates

    def _all(self) -> dict[str, Offering]:
        """Every offering, also of servers that left, in the order in which names are given."""
        both = {**self.offerings, **self.gone}
        places = dict.fromkeys((*self.order, *both))
        return {key: both[key] for key in places if key in both}

    @staticmethod
    def _offered(
        kind: OfferKind, endpoint: Endpoint, offerings: Mapping[str, Offering]
    ) -> dict[Pair, Offered]:
        return {
            pair: Offered(offering.upstream, offer)
            for key, offering in offerings.items()
            for offer in offering.of(kind)
            if endpoint.admits(pair := Pair(key, offer.name))
        }
