"""Fleet: which servers there are now, and the one owner task of each.

Servers are added, started, stopped, renamed, replaced and removed here, one step each, with the
catalog following in the same step: no call ever finds a name without its server. Why that is done
is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import msgspec

from mcp_junction.catalog.live_catalog import LiveCatalog
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.redaction.known import KNOWN
from mcp_junction.tasks import Supervision, TaskScope
from mcp_junction.upstream.server import Upstream

_LOOK: Final = 0.02


class Followers(Protocol):
    """What else is kept under the key of a server."""

    def rename(self, old: str, new: str) -> None: ...

    def forget(self, server: str) -> None: ...


class Fleet:
    """Every server, by its key."""

    def __init__(
        self,
        live_catalog: LiveCatalog,
        make: Callable[[ServerDefinition], Upstream],
        followers: Followers,
        supervision: Supervision | None = None,
    ) -> None:
        self.servers: dict[str, Upstream] = {}
        self._live_catalog = live_catalog
        self._make = make
        self._followers = followers
        self._owners = TaskScope("servers", supervision)
        self._running: dict[Upstream, asyncio.Task[None]] = {}

    def add(self, definition: ServerDefinition, *, start: bool = True) -> Upstream:
        """One more server, after the others."""
        KNOWN.learn(definition)
        upstream = self.servers[definition.key] = self._make(definition)
        self._live_catalog.place(definition.key)
        if start:
            self._run(upstream)
        else:
            upstream.stop()
            upstream.settled.set()
        return upstream

    def is_running(self, key: str) -> bool:
        """Whether somebody sees to it that a server is connected, and stays so."""
        return self.servers[key] in self._running

    def start(self, key: str) -> None:
        """Connect to a server that is stopped. What it is known to offer is listed at once."""
        upstream = self.servers[key]
        if upstream not in self._running:
            upstream.prepare()
            known = self._live_catalog.offering(key)
            if known is not None:
                self._live_catalog.expect(known, listed=True)
            self._run(upstream)

    async def stop(self, key: str, drain: float = 0.0) -> int:
        """Disconnect a server once its calls are done, at most so many seconds from now; how
        many calls were under way when it was told."""
        upstream = self.servers[key]
        upstream.hold()
        self._live_catalog.remove(upstream)
        pending = upstream.calls
        await self._retire(upstream, drain)
        return pending

    def remove(self, key: str, drain: float = 0.0) -> None:
        """A server less: at once for everybody, and in the end for those who still call it."""
        upstream = self.servers.pop(key)
        upstream.hold()
        self._live_catalog.forget(upstream)
        self._followers.forget(key)
        self._owners.spawn(self._retire(upstream, drain))

    def replace(self, definition: ServerDefinition, drain: float) -> Upstream:
        """Reach a server another way: new calls wait for the new link, the old ones may end."""
        KNOWN.learn(definition)
        old = self.servers[definition.key]
        new = self.servers[definition.key] = self._make(definition)
        known = self._live_catalog.offering(definition.key)
        if known is not None:
            self._live_catalog.expect(msgspec.structs.replace(known, upstream=new), listed=True)
        self._run(new)
        old.hold()
        self._owners.spawn(self._retire(old, drain))
        return new

    def rename(self, old: str, new: str) -> None:
        """Another key for a server; its link and its calls stay."""
        kept = {(new if key == old else key): u for key, u in self.servers.items()}
        self.servers.clear()
        self.servers.update(kept)
        upstream = self.servers[new]
        upstream.redefine(upstream.definition._replace(key=new))
        self._followers.rename(old, new)
        self._live_catalog.rename(old, new)

    async def close(self, grace: float) -> None:
        """End every server; returns when they are gone."""
        for upstream in self._running:
            upstream.stop()
        await self._owners.settle(grace)
        await self._owners.close()

    def _run(self, upstream: Upstream) -> None:
        owner = self._owners.supervise("server links", upstream.run, is_vital=False)
        self._running[upstream] = owner
        owner.add_done_callback(partial(self._ended, upstream))

    def _ended(self, upstream: Upstream, owner: asyncio.Task[None]) -> None:
        if self._running.get(upstream) is owner:  # else it was started again meanwhile
            del self._running[upstream]

    async def _retire(self, upstream: Upstream, drain: float) -> None:
        """Let its calls end, but not wait for them for ever; then end it."""
        end = upstream.clock.now() + drain
        while upstream.calls and upstream.clock.now() < end:
            await upstream.clock.sleep(_LOOK)
        upstream.stop()
        running = self._running.get(upstream)
        if running is not None:
            await asyncio.wait({running})
