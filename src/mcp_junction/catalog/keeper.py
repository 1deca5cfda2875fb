"""Keeper: holds the catalog that is current, and brings it up to date when a server says so.

A server's lists are read when it connects and when it announces a change; a change that comes while
they are being read is read after that, not beside it. Who is told that the catalog changed is
decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mcp_junction.catalog.catalog import Catalog, Offering
from mcp_junction.catalog.discovery import Offer, discover
from mcp_junction.catalog.kinds import ALL, TOOLS, Kind
from mcp_junction.config.selection import ToolSelection
from mcp_junction.errors import ServerError
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.server import Upstream

log = logging.getLogger("mcp_junction.catalog")

Changed = Callable[[set[str]], None]


class Keeper:
    """The current catalog."""

    def __init__(
        self, first: Catalog, order: list[str], tasks: TaskScope, timeout: float, changed: Changed
    ) -> None:
        self.catalog = first
        self._order = order
        self._tasks = tasks
        self._timeout = timeout
        self._changed = changed
        self._again: dict[str, bool] = {}
        self._said: dict[str, set[str]] = {}
        self._swapped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def discover(self, upstream: Upstream) -> None:
        """Read everything a server offers and put it on the shelf. Raises ServerError."""
        found = {kind.name: await self._read(upstream, kind) for kind in ALL}
        if upstream.is_open:  # else it went away while it was being read
            self._put(Offering(upstream, **found))

    def announce(self, upstream: Upstream, method: str | None = None) -> None:
        """A server says that its lists have changed; ``method`` is how it said so.

        That is passed on once they are read, even when nothing of it can be seen in them.
        """
        if method is not None:
            self._said.setdefault(upstream.key, set()).add(method)
        running = upstream.key in self._again
        self._again[upstream.key] = running
        if not running:
            self._tasks.spawn(self._reread(upstream))

    def remove(self, upstream: Upstream) -> None:
        if upstream.key in self.catalog.offerings:
            before = self.catalog.offerings[upstream.key]
            self._swap(self.catalog.without(upstream.key), _kinds(before, Offering(upstream)))

    @property
    def swapped(self) -> asyncio.Future[None]:
        """Done when the catalog is no longer the one it is now."""
        return self._swapped

    async def _read(self, upstream: Upstream, kind: Kind) -> tuple[Offer, ...]:
        try:
            offers = await discover(upstream, kind, self._timeout)
        except ServerError as error:
            if kind is TOOLS or not upstream.is_open:
                raise
            log.warning("%s; the rest of it serves", error)
            return ()
        selection = upstream.definition.tools
        return _selected(offers, selection) if kind is TOOLS and selection is not None else offers

    async def _reread(self, upstream: Upstream) -> None:
        try:
            while True:
                self._again[upstream.key] = False
                await self.discover(upstream)
                if not self._again[upstream.key]:
                    return
        except ServerError as error:
            log.warning("%s; its lists stay as they were", error)
        finally:
            del self._again[upstream.key]

    def _put(self, offering: Offering) -> None:
        key = offering.upstream.key
        before = self.catalog.offerings.get(key) or Offering(offering.upstream)
        changed = _kinds(before, offering)
        said = self._said.pop(key, set())
        if changed or key not in self.catalog.offerings:
            self._swap(self.catalog.with_offering(offering, self._order), changed | said)
        elif said:
            self._changed(said)

    def _swap(self, catalog: Catalog, changed: set[str]) -> None:
        self.catalog = catalog
        swapped, self._swapped = self._swapped, asyncio.get_running_loop().create_future()
        swapped.set_result(None)
        self._changed(changed)


def _selected(offers: tuple[Offer, ...], selection: ToolSelection) -> tuple[Offer, ...]:
    """What the operator lets through, under the names the operator gives."""
    chosen: dict[str, Offer] = {}
    for offer in offers:
        name = selection.name_for(offer.name)
        if name in chosen:
            log.warning("two tools would be called %r; %r is left out", name, offer.name)
        elif name is not None:
            chosen[name] = Offer(name, offer.members, offer.headers)
    return tuple(chosen.values())


def _kinds(before: Offering, after: Offering) -> set[str]:
    """Which announcements two offerings differ by."""
    return {kind.changed for kind in ALL if before.of(kind) != after.of(kind)}
