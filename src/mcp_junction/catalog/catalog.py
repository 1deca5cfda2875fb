"""Catalog: all offers of one moment. Immutable; a change makes the next generation.

Each Call keeps the catalog it started with. A server that leaves keeps its names for as long as
the catalog remembers it, so that no call meant for it lands on another server's tool; and so does a
tool that was shown (``name_history.py``). All generations share the histories of names, the encoded
pages and the count of what was listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.items import ALL as EVERY_KIND
from mcp_junction.catalog.items import (
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    TOOLS,
    ListKind,
    ServerLists,
)
from mcp_junction.catalog.name_history import URIS, NameHistories
from mcp_junction.catalog.own_tools import ListedTokens, SearchRule
from mcp_junction.catalog.resources import ResourceView
from mcp_junction.catalog.roll import DEPARTED, PRESENT, NumberedList
from mcp_junction.catalog.scope import OPEN, Scope
from mcp_junction.catalog.view import View
from mcp_junction.config.settings import ALL
from mcp_junction.protocol import names
from mcp_junction.protocol.merged_list import PageCache
from mcp_junction.protocol.names import Pair, Spelling
from mcp_junction.protocol.versions import DEFAULT_PAGE_SIZE

_MOST_SHOWN: Final = 100_000


class Catalog(msgspec.Struct, frozen=True, eq=False):
    """Every offer of every connected server, in the order of the config file.

    Each method that changes something returns the next generation. Views are made when they are
    first asked for, and go on to the next generation if nothing changed that they can see.
    """

    generation: int = 0
    offerings: Mapping[str, ServerLists] = {}
    canonical: Spelling = names.STDIO
    timeout: float = 0.0
    page_size: int = DEFAULT_PAGE_SIZE
    exposure: str = ALL
    """What is listed where an endpoint does not say: all tools, or those to search them with."""
    exposure_tokens: int = 8_000
    """Where exposure is ``auto``: the tokens of all tools above which search is listed."""
    favourites: tuple[str, ...] = ()
    """Patterns of tools that are listed beside those to search with, at every endpoint."""
    skills: Mapping[Pair, str] = {}
    """The name of the likeliest skill of each tool, as far as tools are classified."""
    order: tuple[str, ...] = ()
    departed: Mapping[str, ServerLists] = {}
    """What servers offered that are not there now. Their names stay theirs."""
    histories: NameHistories = msgspec.field(default_factory=NameHistories)
    tokens: ListedTokens = msgspec.field(default_factory=ListedTokens)
    pages: PageCache = msgspec.field(default_factory=PageCache)
    _lists: dict[tuple[str, ListKind], NumberedList] = {}
    _views: dict[tuple[object, ...], View | ResourceView] = {}
    _masks: dict[tuple[ListKind, bytes], bytes] = {}
    _shown: dict[tuple[Scope, str], bool] = {}
    """Whether anything of a server is visible in a Scope, as far as that was asked."""

    # -- the next generation

    def with_offering(self, offering: ServerLists, order: Sequence[str]) -> Catalog:
        """This catalog with one server's offers new or replaced."""
        key = offering.upstream.key
        merged = {**self.offerings, key: offering}
        present = {key: merged[key] for key in order if key in merged}
        departed = {key: left for key, left in self.departed.items() if key not in present}
        return self._next(present, departed, order, key)

    def without(self, key: str) -> Catalog:
        """This catalog without a server, whose names stay its own."""
        left = self.offerings.get(key)
        if left is None:
            return self
        present = {k: v for k, v in self.offerings.items() if k != key}
        return self._next(present, {**self.departed, key: left}, self.order, key)

    def with_absent(self, offering: ServerLists, order: Sequence[str]) -> Catalog:
        """This catalog with the stored lists of a server that is not connected."""
        key = offering.upstream.key
        present = {k: v for k, v in self.offerings.items() if k != key}
        return self._next(present, {**self.departed, key: offering}, order, key)

    def forgetting(self, key: str, order: Sequence[str]) -> Catalog:
        """This catalog as if there had never been such a server; its names are free."""
        present = {k: v for k, v in self.offerings.items() if k != key}
        departed = {k: v for k, v in self.departed.items() if k != key}
        return self._next(present, departed, order, None, self.histories.forgetting(key))

    def with_named_sets(self, sets: Iterable[Endpoint]) -> Catalog:
        """This catalog with these named sets; names of items that left a set become free in it."""
        histories = self.histories.narrowed(sets)
        if histories is self.histories:
            return self
        return self._next(self.offerings, self.departed, self.order, None, histories)

    def with_skills(self, skills: Mapping[Pair, str]) -> Catalog:
        """This catalog with other skills of tools."""
        return msgspec.structs.replace(self.rebuilt(), skills=skills)

    def rebuilt(self) -> Catalog:
        """This catalog with all views made anew."""
        return self._next(self.offerings, self.departed, self.order, None)

    def renamed(self, old: str, new: str, order: Sequence[str]) -> Catalog:
        """This catalog with another key for a server."""

        def under(offerings: Mapping[str, ServerLists]) -> dict[str, ServerLists]:
            return {(new if key == old else key): kept for key, kept in offerings.items()}

        histories = self.histories.renamed(old, new)
        return self._next(under(self.offerings), under(self.departed), order, None, histories)

    def _next(
        self,
        present: Mapping[str, ServerLists],
        departed: Mapping[str, ServerLists],
        order: Sequence[str],
        changed: str | None,
        histories: NameHistories | None = None,
    ) -> Catalog:
        """The next generation, in which one server is ``changed``, or anything at all."""
        histories = histories or self.histories
        compacted = histories.compacted({**present, **departed})
        found = msgspec.structs.replace(
            self,
            generation=self.generation + 1,
            offerings=present,
            departed=departed,
            order=tuple(order),
            histories=compacted,
            _lists={},
            _views={},
            _masks={},
            _shown={},
        )
        if compacted is histories:  # else all numbers are others
            found._take_over(self, changed)
        return found

    def _take_over(self, before: Catalog, changed: str | None) -> None:
        """Take over what was made for the generation before and has not changed."""
        for (key, kind), listed in before._lists.items():
            if self.offering(key) is before.offering(key):
                self._lists[key, kind] = listed
        if changed is None or _without(before.order, changed) != _without(self.order, changed):
            return
        for place, view in before._views.items():
            if not view.scope.could_see(changed):
                self._views[place] = view

    def prepare(self, offering: ServerLists) -> Iterator[None]:
        """Read what a server will offer, a step at a time, so that views of it are quickly made."""
        for kind in (TOOLS, PROMPTS):
            pairs = (Pair(offering.upstream.key, offer.name) for offer in offering.of(kind))
            yield from self.histories.roll(kind, self.canonical).prepare(pairs)

    def prepare_names(self, spelling: Spelling) -> Iterator[None]:
        """Spell all names of tools, a step at a time."""
        for key in self._all():
            self._list(key, TOOLS)
        roll = self.histories.roll(TOOLS, self.canonical)
        yield from roll.prepare_names(spelling)

    # -- what is shown

    def show(self, spelling: Spelling, kind: ListKind = TOOLS, scope: Scope = OPEN) -> View:
        """A view whose names the caller is about to be told: from now on they stay as they are."""
        view = self.view(spelling, kind, scope)
        _note(view)
        return view

    def show_resources(self, scope: Scope = OPEN) -> ResourceView:
        """The same for resources and templates."""
        view = self.resources(scope)
        _note(view)
        return view

    def note_used(
        self, name: str, spelling: Spelling, kind: ListKind = TOOLS, scope: Scope = OPEN
    ) -> bool:
        """Note that a name is in use: it stays its owner's. Return whether it has an owner."""
        view = self.view(spelling, kind, scope)
        route = view.find(name)
        if route is not None:
            view.note(route.pair)
        return route is not None

    def settle(self) -> None:
        """Treat all names that can be looked up as shown from now on: every server has started."""
        self.histories.is_settled = True
        for view in self._views.values():
            _note(view)

    def page(self, spelling: Spelling, kind: ListKind, scope: Scope, cursor: str | None) -> bytes:
        """Return one page of a list, and count its tokens as listed. Raises CursorError."""
        if kind is RESOURCES:
            return self.show_resources(scope).items.page(cursor)
        if kind is TEMPLATES:
            return self.show_resources(scope).templates.page(cursor)
        view = self.show(spelling, kind, scope)
        page = view.items.page(cursor)
        if kind is TOOLS:
            whole = len(page) if not view.lists_search else 0 if cursor else view.whole_size
            self.tokens.add(len(page), whole)
        return page

    def forget_agent(self, agent: str) -> None:
        """Forget what was made for an agent that has left, and what it was shown."""
        self.histories.forget_agent(agent)
        for place, view in list(self._views.items()):
            if view.scope.agent == agent:
                del self._views[place]

    # -- views

    def view(self, spelling: Spelling, kind: ListKind = TOOLS, scope: Scope = OPEN) -> View:
        """Tools or prompts under ``spelling``, as one Scope has them."""
        place = _place(spelling, kind, scope)
        found = self._views.get(place)
        if found is None or found.scope is not scope:
            exposure = scope.endpoint.exposure or self.exposure
            rule = SearchRule(exposure, self.exposure_tokens, self.favourites, self.skills)
            found = View(
                scope,
                kind,
                *self._visible(scope, kind),
                self.histories.of(scope, spelling, kind),
                self.resources(scope),
                search=rule if kind is TOOLS and exposure != ALL else None,
                timeout=self.timeout,
                page_size=self.page_size,
                pages=self.pages,
            )
            self._keep(place, found)
        assert isinstance(found, View)
        return found

    def resources(self, scope: Scope = OPEN) -> ResourceView:
        """Resources and templates, as one Scope has them."""
        place = _place(URIS, RESOURCES, scope)
        found = self._views.get(place)
        if found is None or found.scope is not scope:
            places = {key for key in self.order if self._can_read(scope, key)}
            found = ResourceView(
                scope,
                [offering for key, offering in self._all().items() if key in places],
                self.offerings,
                self.histories,
                timeout=self.timeout,
                page_size=self.page_size,
                pages=self.pages,
                is_alone=len(places) == 1,
            )
            self._keep(place, found)
        assert isinstance(found, ResourceView)
        return found

    def _keep(self, place: tuple[object, ...], view: View | ResourceView) -> None:
        self._views[place] = view
        if self.histories.is_settled:
            _note(view)

    def offering(self, key: str) -> ServerLists | None:
        """What a server offers, or did before it left."""
        return self.offerings.get(key) or self.departed.get(key)

    def shows_server(self, scope: Scope, key: str) -> bool:
        """Whether a Scope shows anything of a server; one that may use everything sees them all."""
        if scope.grants is None:
            return scope.endpoint.admits_server(key)
        shown = self._shown.get((scope, key))
        if shown is None:
            if len(self._shown) >= _MOST_SHOWN:
                self._shown.clear()
            shown = self._shown[scope, key] = self._finds_visible(scope, key)
        return shown

    def has_server(self, scope: Scope, key: str) -> bool:
        """Whether a server exists in a Scope: something of it is visible, or granted by its name.

        A server that grants cover by a pattern alone, and of which nothing matches, does not.
        """
        return scope.knows(key) or self.shows_server(scope, key)

    def _can_read(self, scope: Scope, key: str) -> bool:
        """Whether resources of a server may be read, and the server exists in the Scope."""
        is_open = scope.grants is None
        return scope.of(RESOURCES, key) is not None and (is_open or self.has_server(scope, key))

    def _finds_visible(self, scope: Scope, key: str) -> bool:
        offering = self.offering(key)
        admitting = {kind: scope.of(kind, key) for kind in EVERY_KIND}
        return offering is not None and any(
            admits(offer.name)
            for kind, admits in admitting.items()
            if admits is not None
            for offer in offering.of(kind)
        )

    def _visible(self, scope: Scope, kind: ListKind) -> tuple[bytes, dict[str, NumberedList]]:
        """The mask of what one Scope admits, and the lists of the servers that can be seen."""
        admitting = {key: scope.of(kind, key) for key in self._all()}
        lists = {key: self._list(key, kind) for key, admits in admitting.items() if admits}
        mask = bytearray(len(self.histories.roll(kind, self.canonical).pairs))
        for key, listed in lists.items():
            state = PRESENT if key in self.offerings else DEPARTED
            admits = admitting[key]
            for number, offer in listed.items.items():
                if admits is not None and admits(offer.name):
                    mask[number] = state
        made = bytes(mask)
        return self._masks.setdefault((kind, made), made), lists

    def _list(self, key: str, kind: ListKind) -> NumberedList:
        found = self._lists.get((key, kind))
        if found is None:
            offering = self._all()[key]
            roll = self.histories.roll(kind, self.canonical)
            pairs = {Pair(key, offer.name): offer for offer in offering.of(kind)}
            found = self._lists[key, kind] = NumberedList(offering.upstream, pairs, roll)
        return found

    def _all(self) -> dict[str, ServerLists]:
        """Every offering, also of servers that left, in the order in which names are given."""
        both = {**self.offerings, **self.departed}
        places = dict.fromkeys((*self.order, *both))
        return {key: both[key] for key in places if key in both}


def _place(spelling: Spelling, kind: ListKind, scope: Scope) -> tuple[object, ...]:
    """Where the view of a list is kept: one for each agent, whatever its grants are now."""
    return spelling, kind, scope.endpoint, scope.agent


def _note(view: View | ResourceView) -> None:
    """Remember the names of a view as shown, unless that was done before."""
    if not view.is_noted:
        view.is_noted = True
        view.note()


def _without(order: Sequence[str], key: str) -> list[str]:
    return [one for one in order if one != key]
