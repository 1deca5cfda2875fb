"""ServerSet: which servers there are now, and the one owner task of each.

Servers are added, started, stopped, renamed, replaced and removed here, one step each. Every step
is a ServerChanged event, and so is what each server says of itself; the catalog follows in the same
step, so no call ever finds a name without its server. Why a step is taken is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.tasks import Supervision, TaskScope
from mcp_junction.upstream.events import (
    ConnectStep,
    Inbox,
    ServerChange,
    ServerChanged,
    ServerListeners,
    ServerSink,
)
from mcp_junction.upstream.upstream import Upstream

log = logging.getLogger("mcp_junction.upstream")

_LOOK: Final = 0.02


class ServerSet(Mapping[str, Upstream]):
    """Every server, by its key, in the order in which they came."""

    def __init__(
        self,
        make: Callable[[ServerDefinition, ServerListeners], Upstream],
        sinks: Sequence[ServerSink],
        steps: Sequence[ConnectStep],
        inbox: Inbox,
        supervision: Supervision | None = None,
    ) -> None:
        self._make = make
        self._sinks = tuple(sinks)
        self._listeners = ServerListeners(self._forward, tuple(steps), inbox)
        self._servers: dict[str, Upstream] = {}
        self._owners = TaskScope("servers", supervision)
        self._running: dict[Upstream, asyncio.Task[None]] = {}

    def __getitem__(self, key: str) -> Upstream:
        return self._servers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    def add(self, definition: ServerDefinition, *, start: bool = True) -> Upstream:
        """Add a server after the others."""
        KNOWN.learn(definition)
        upstream = self._servers[definition.key] = self._make(definition, self._listeners)
        self._emit(upstream, ServerChange.ADDED)
        if start:
            self._run(upstream)
        else:
            upstream.stop()
            upstream.settled.set()
        return upstream

    def is_running(self, key: str) -> bool:
        """Whether a server has an owner task, which connects it and keeps it connected."""
        return self._servers[key] in self._running

    def start(self, key: str) -> None:
        """Connect to a server that is stopped."""
        upstream = self._servers[key]
        if upstream not in self._running:
            upstream.reset_for_run()
            self._emit(upstream, ServerChange.STARTING)
            self._run(upstream)

    async def stop(self, key: str, drain: float = 0.0) -> int:
        """Disconnect a server once its calls are done, at most ``drain`` seconds from now.

        Returns how many calls were under way when it was told.
        """
        upstream = self._servers[key]
        upstream.hold()
        self._emit(upstream, ServerChange.STOPPING)
        pending = upstream.calls
        await self._retire(upstream, drain)
        self._emit(upstream, ServerChange.STOPPED)
        return pending

    def remove(self, key: str, drain: float = 0.0) -> None:
        """Remove a server at once; calls that are under way may end."""
        upstream = self._servers.pop(key)
        upstream.hold()
        upstream.is_removed = True
        self._emit(upstream, ServerChange.REMOVED)
        self._owners.spawn(self._retire(upstream, drain))

    def replace(self, definition: ServerDefinition, drain: float) -> None:
        """Reach a server another way: new calls wait for the new link, the old ones may end."""
        KNOWN.learn(definition)
        old = self._servers[definition.key]
        new = self._servers[definition.key] = self._make(definition, self._listeners)
        self._emit(new, ServerChange.REPLACED)
        self._run(new)
        old.hold()
        self._owners.spawn(self._retire(old, drain))

    def redefine(self, key: str, definition: ServerDefinition) -> None:
        """Give a server another definition, maybe another key; its link and its calls stay."""
        upstream = self._servers[key]
        KNOWN.learn(definition)
        upstream.redefine(definition)
        if definition.key == key:
            self._emit(upstream, ServerChange.REDEFINED)
            return
        self._servers = {(u.key if k == key else k): u for k, u in self._servers.items()}
        self._emit(upstream, ServerChange.RENAMED, previous=key)

    async def close(self, grace: float) -> None:
        """End every server; returns when they are gone."""
        for upstream in self._running:
            upstream.stop()
        await self._owners.settle(grace)
        await self._owners.close()

    # -- events

    def _emit(self, upstream: Upstream, change: ServerChange, **more: Any) -> None:
        self._tell(ServerChanged(upstream, change, upstream.state, **more))

    def _forward(self, event: ServerChanged) -> None:
        """Pass on what a server or one of its extra links says of itself.

        The state of an extra link is no news, nor the end of a server that was replaced.
        """
        source = event.server
        current = self._servers.get(source.key)
        if current is None or (event.change is ServerChange.STATE and current is not source):
            return
        self._tell(msgspec.structs.replace(event, server=current, source=source))

    def _tell(self, event: ServerChanged) -> None:
        for sink in self._sinks:
            try:
                sink(event)
            except Exception:  # the others are told all the same
                log.exception("a sink of server changes failed")

    # -- owner tasks

    def _run(self, upstream: Upstream) -> None:
        owner = self._owners.supervise("server links", upstream.run, is_vital=False)
        self._running[upstream] = owner
        owner.add_done_callback(partial(self._ended, upstream))

    def _ended(self, upstream: Upstream, owner: asyncio.Task[None]) -> None:
        if self._running.get(upstream) is owner:  # else it was started again meanwhile
            del self._running[upstream]

    async def _retire(self, upstream: Upstream, drain: float) -> None:
        """End a server when its calls are done, or after ``drain`` seconds."""
        end = upstream.clock.now() + drain
        while upstream.calls and upstream.clock.now() < end:
            await upstream.clock.sleep(_LOOK)
        upstream.stop()
        running = self._running.get(upstream)
        if running is not None:
            await asyncio.wait({running})
