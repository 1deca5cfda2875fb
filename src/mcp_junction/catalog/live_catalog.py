"""LiveCatalog: holds the current catalog, and updates it when a server's lists change.

A server's lists are read when it connects and when it announces a change; a change announced during
a read causes another read after it. Who is told that the catalog changed is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import msgspec

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.cooldowns import ReadCooldowns
from mcp_junction.catalog.discovery import Listing, discover, warn_once
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.items import ALL, TOOLS, ListItem, ListKind, ServerLists
from mcp_junction.catalog.own_tools import sign_in_offer
from mcp_junction.catalog.scope import Scope
from mcp_junction.config.client_dialects import ToolSelection
from mcp_junction.config.settings import ALL as EVERYTHING_LISTED
from mcp_junction.errors import CircularError, ServerError
from mcp_junction.policy.principal import admit_all
from mcp_junction.protocol.names import Pair, Spelling
from mcp_junction.slices import Slices
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.events import ServerChange, ServerChanged
from mcp_junction.upstream.state import SERVING, ServerState
from mcp_junction.upstream.upstream import Upstream

log = logging.getLogger("mcp_junction.catalog")


class ListChange(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A list of one server that changed, or may have: the server says so, and nothing differs."""

    kind: ListKind
    server: str
    before: tuple[ListItem, ...]
    after: tuple[ListItem, ...]

    def is_visible(self, scope: Scope) -> bool:
        """Whether it changed what a Scope admits; asks only about the names that differ.

        Where nothing differs, it is about something that is not shown: who does not see the whole
        server is not told, since that may be hidden from it.
        """
        admits = scope.of(self.kind, self.server)
        if admits is None:
            return False
        if self.before == self.after:
            return admits is admit_all and bool(self.after)
        names, old_order, new_order = self._difference
        if any(map(admits, names)):
            return True
        moved = set(filter(admits, old_order))
        return [n for n in old_order if n in moved] != [n for n in new_order if n in moved]

    @cached_property
    def _difference(self) -> tuple[list[str], list[str], list[str]]:
        """The names whose items differ, and the old and new order of the others that moved."""
        old = {offer.name: offer for offer in self.before}
        new = {offer.name: offer for offer in self.after}
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        changed = set(names)
        old_order = [name for name in old if name not in changed]
        new_order = [name for name in new if name not in changed]
        if old_order == new_order:
            return names, [], []
        return names, old_order, new_order


class SkillsChange(ListChange, frozen=True, eq=False, dict=True):
    """Tools of one server have other skills, which the search tool names where it is listed."""

    default: str = EVERYTHING_LISTED
    """What is listed where an endpoint does not say."""

    def is_visible(self, scope: Scope) -> bool:
        if (scope.endpoint.exposure or self.default) == EVERYTHING_LISTED:
            return False
        return super().is_visible(scope)


Changed = Callable[[Sequence[ListChange]], None]


class Review(Protocol):
    """Decides what of a server's lists may be shown."""

    async def review(self, offering: ServerLists) -> ServerLists:
        """Look at new lists before anybody sees them; what may be shown of them."""
        ...

    def shown(self, server: Upstream) -> ServerLists | None:
        """What may be shown now of the lists that were last looked at."""
        ...


class LiveCatalog:
    """The current catalog."""

    def __init__(
        self,
        first: Catalog,
        order: list[str],
        tasks: TaskScope,
        timeout: float,
        changed: Changed,
        review: Review | None = None,
    ) -> None:
        self.catalog = first
        self._review = review
        self._order = order
        self._servers: dict[str, Upstream] = {}
        """The servers that there are now, by their keys, as their events say."""
        self._tasks = tasks
        self._timeout = timeout
        self._changed = changed
        self._again: set[Upstream] = set()
        self._reading: dict[Upstream, asyncio.Task[ServerError | None]] = {}
        self._announced: dict[Upstream, set[str]] = {}
        self._cooldowns = ReadCooldowns()
        self._swapped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def follow(self, event: ServerChanged) -> None:
        """Update the catalog when a server has changed."""
        server = event.server
        match event.change:
            case ServerChange.ADDED:
                self._place(server)
            case ServerChange.STARTING | ServerChange.REPLACED:
                self._place(server)
                self._expect_again(server)
            case ServerChange.STATE if _is_down(server):
                wants_sign_in = server.missing_credential is not None
                self._offer_sign_in(server) if wants_sign_in else self.remove(server)
            case ServerChange.STOPPING:
                self.remove(server)
            case ServerChange.LISTS | ServerChange.RENEWED:
                self.announce(server, event.method)
            case ServerChange.REDEFINED:
                self._swap(self.catalog.rebuilt(), [])
            case ServerChange.RENAMED:
                self._rename(event.previous, server.key)
            case ServerChange.TOOLS:
                self._show_again(server)
            case ServerChange.REMOVED:
                self._forget(server)

    async def discover(self, upstream: Upstream) -> None:
        """Read everything a server offers and put it in the catalog. Raises ServerError."""
        if upstream.primary is not None:
            return  # an extra link: it offers what its server does
        read = {kind.name: await self._read(upstream, kind) for kind in ALL}
        offering = ServerLists(upstream, **{name: listing.offers for name, listing in read.items()})
        shortfalls = [listing.shortfall for listing in read.values() if listing.shortfall]
        upstream.condition.shortfall = "; ".join(shortfalls)
        upstream.apply_condition()
        if not self._is_in_place(upstream):
            return
        shown = await self._reviewed(offering)
        if await _in_slices(self.catalog.prepare(shown)):
            shown = await self._reviewed(offering)  # a tool may have been kept back meanwhile
        if upstream.current is not None and self._is_in_place(upstream):
            self._put(shown)  # else it went away meanwhile

    async def prepare(self, spelling: Spelling) -> None:
        """Spell all names of tools, so that the first view of them is quickly made."""
        await _in_slices(self.catalog.prepare_names(spelling))

    def announce(self, upstream: Upstream, method: str | None = None) -> None:
        """A server says that its lists have changed; ``method`` is how it said so.

        That is passed on once they are read, even when nothing of it can be seen in them.
        """
        if method is not None:
            self._announced.setdefault(upstream, set()).add(method)
        if upstream in self._reading:
            self._again.add(upstream)
        else:
            is_announced = method is not None
            rereading = self._reread(upstream, is_announced=is_announced)
            self._reading[upstream] = self._tasks.spawn(rereading)

    async def reread(self, upstream: Upstream) -> None:
        """Read its lists again, and wait until they are read. Raises ServerError."""
        self.announce(upstream)
        error = await asyncio.shield(self._reading[upstream])
        if error is not None:
            raise error

    def remove(self, upstream: Upstream) -> None:
        """Its offers are not to be had now; their names stay its own."""
        if upstream.key in self.catalog.offerings:
            before = self.catalog.offerings[upstream.key]
            self._swap(self.catalog.without(upstream.key), _compare(upstream.key, before, None))

    def expect(self, offering: ServerLists, *, listed: bool) -> None:
        """What a server that has not answered yet is known to offer."""
        if listed:
            self._put(offering)
        else:
            key = offering.upstream.key
            changes = _compare(key, self.catalog.offerings.get(key), None)
            self._swap(self.catalog.with_absent(offering, self._order), changes)

    def _place(self, server: Upstream) -> None:
        self._servers[server.key] = server
        if server.key not in self._order:
            self._order.append(server.key)

    def _is_in_place(self, server: Upstream) -> bool:
        """Whether a server was neither removed nor replaced."""
        key = server.key
        return key in self._order and self._servers.get(key, server) is server

    def _expect_again(self, server: Upstream) -> None:
        """List what a server that is about to be connected to offered before."""
        known = self.catalog.offering(server.key)
        if known is not None:
            self.expect(msgspec.structs.replace(known, upstream=server), listed=True)

    def _offer_sign_in(self, server: Upstream) -> None:
        """List what a server offered before it wanted a sign-in; else the way to that alone."""
        known = self.catalog.offering(server.key)
        if known is None or not known.tools:
            known = ServerLists(server, tools=(sign_in_offer(server.key),))
        self.expect(msgspec.structs.replace(known, upstream=server), listed=True)

    def _show_again(self, server: Upstream) -> None:
        """Show what may be shown of a server now."""
        shown = None if self._review is None else self._review.shown(server)
        if shown is not None:
            shown = msgspec.structs.replace(shown, upstream=server)  # it may have been replaced
            self.expect(shown, listed=server.key in self.catalog.offerings)

    def _forget(self, upstream: Upstream) -> None:
        changes = _compare(upstream.key, self.catalog.offerings.get(upstream.key), None)
        self._announced.pop(upstream, None)
        self._servers.pop(upstream.key, None)
        if upstream.key in self._order:
            self._order.remove(upstream.key)
        self._swap(self.catalog.forgetting(upstream.key, self._order), changes)

    def _rename(self, old: str, new: str) -> None:
        self._order[self._order.index(old)] = new
        if old in self._servers:
            self._servers[new] = self._servers.pop(old)
        changes = _compare(new, None, self.catalog.offerings.get(old))
        self._swap(self.catalog.renamed(old, new, self._order), changes)

    def show_skills(self, skills: Mapping[Pair, str]) -> None:
        """Let the search tool name the skills that tools have now."""
        before = self.catalog.skills
        if skills == before:
            return
        changed: dict[str, list[ListItem]] = {}
        for pair in {**before, **skills}:
            if before.get(pair) != skills.get(pair):
                changed.setdefault(pair.server, []).append(ListItem(pair.name, {}))
        default = self.catalog.exposure
        changes = [
            SkillsChange(TOOLS, server, (), tuple(items), default)
            for server, items in changed.items()
        ]
        self._swap(self.catalog.with_skills(skills), changes)

    def narrow(self, sets: Iterable[Endpoint]) -> None:
        """There are these named sets now, as the file has been read again."""
        narrowed = self.catalog.with_named_sets(sets)
        if narrowed is not self.catalog:
            self._swap(narrowed, [])

    def reorder(self, keys: list[str]) -> None:
        """These come first, in this order."""
        self._order[:] = [*keys, *(key for key in self._order if key not in keys)]

    @property
    def swapped(self) -> asyncio.Future[None]:
        """Done when the catalog is no longer the one it is now."""
        return self._swapped

    async def _read(self, upstream: Upstream, kind: ListKind) -> Listing:
        try:
            listing = await discover(upstream, kind, self._timeout)
        except ServerError as error:
            if kind is TOOLS or upstream.current is None or isinstance(error, CircularError):
                raise
            warn_once(upstream, "%s; the rest of it serves", str(error))
            return Listing()
        selection = upstream.definition.tools
        if kind is not TOOLS or selection is None:
            return listing
        return listing._replace(offers=_selected(upstream, listing.offers, selection))

    async def _discover_again(self, upstream: Upstream, *, is_announced: bool) -> None:
        """Read its lists; for a change that it announced, once its cooldown is over."""
        if is_announced:
            await self._cooldowns.wait_until_over(upstream)
            self._again.discard(upstream)
            if upstream.current is None:
                return  # its lists are read when it is connected again
        began = upstream.clock.now()
        await self.discover(upstream)
        self._cooldowns.start(upstream, began)

    async def _reread(self, upstream: Upstream, *, is_announced: bool) -> ServerError | None:
        """What kept us from it, if something did."""
        try:
            await self._discover_again(upstream, is_announced=is_announced)
            while upstream in self._again:
                await self._discover_again(upstream, is_announced=True)
        except ServerError as error:
            if isinstance(error, CircularError):
                upstream.give_up(error.message)
            else:
                log.warning("%s; its lists stay as they were", error)
            return error
        finally:
            self._again.discard(upstream)
            del self._reading[upstream]
        return None

    async def _reviewed(self, offering: ServerLists) -> ServerLists:
        return offering if self._review is None else await self._review.review(offering)

    def _put(self, offering: ServerLists) -> None:
        key = offering.upstream.key
        known = self.catalog.offerings.get(key)
        changes = _compare(key, known, offering)
        is_another = known is None or known.upstream is not offering.upstream
        announced = self._announced.pop(offering.upstream, set()) - {
            c.kind.changed for c in changes
        }
        is_new = bool(changes) or is_another
        for kind in ALL:
            if kind.changed in announced:
                changes.append(ListChange(kind, key, offering.of(kind), offering.of(kind)))
        if is_new:
            self._swap(self.catalog.with_offering(offering, self._order), changes)
        elif changes:
            self._changed(changes)

    def _swap(self, catalog: Catalog, changes: Sequence[ListChange]) -> None:
        self.catalog = catalog
        swapped, self._swapped = self._swapped, asyncio.get_running_loop().create_future()
        swapped.set_result(None)
        self._changed(changes)


async def _in_slices(steps: Iterator[None]) -> bool:
    """Go through steps without holding up the loop. Whether others ran meanwhile."""
    slices = Slices()
    for _ in steps:
        if slices.is_over:
            await slices.rest()
    return slices.count > 0


def _is_down(server: Upstream) -> bool:
    """Whether nothing of it may be listed; before its first connection that may be."""
    is_expected = server.state is ServerState.CONNECTING and not server.settled.is_set()
    return server.state not in SERVING and not is_expected


def _selected(
    upstream: Upstream, offers: tuple[ListItem, ...], selection: ToolSelection
) -> tuple[ListItem, ...]:
    """What the operator lets through, under the names the operator gives."""
    chosen: dict[str, ListItem] = {}
    for offer in offers:
        name = selection.name_for(offer.name)
        if name in chosen:
            words = "server %r: two tools would be called %r; %r is left out"
            warn_once(upstream, words, upstream.key, name, offer.name)
        elif name is not None:
            chosen[name] = ListItem(name, offer.members, offer.headers)
    return tuple(chosen.values())


def _compare(key: str, before: ServerLists | None, after: ServerLists | None) -> list[ListChange]:
    """The lists of a server that differ; None offers nothing."""

    def of(offering: ServerLists | None, kind: ListKind) -> tuple[ListItem, ...]:
        return offering.of(kind) if offering is not None else ()

    changes = (ListChange(kind, key, of(before, kind), of(after, kind)) for kind in ALL)
    return [change for change in changes if change.before != change.after]
