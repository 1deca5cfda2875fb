"""ServerStartup: waits until all servers are up or have failed, or one offers what a call needs.

Only the first start of each server is waited for. What a server does later is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import TASKS
from mcp_junction.calls.stages.own import name_of_tool
from mcp_junction.catalog.items import RESOURCES
from mcp_junction.catalog.live_catalog import LiveCatalog
from mcp_junction.catalog.scope import Scope
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.upstream import Upstream


class ServerStartup:
    """The first start of all servers, and waiting for it."""

    def __init__(
        self,
        live_catalog: LiveCatalog,
        servers: Mapping[str, Upstream],
        tasks: TaskScope,
        limit: float,
    ) -> None:
        self._live_catalog = live_catalog
        self._servers = servers
        self._tasks = tasks
        self._limit = limit
        self.is_over = False
        """Whether ``check`` has found that every server is up, has failed or was known before."""

    def check(self) -> bool:
        """Check whether every server is up, has failed or was known before."""
        if not self.is_over and all(map(self._is_known, self._servers.values())):
            self.is_over = True
            self._live_catalog.catalog.settle()
        return self.is_over

    def _is_known(self, server: Upstream) -> bool:
        """Whether it is up or has failed, or what it offers was known before."""
        return server.settled.is_set() or server.key in self._live_catalog.catalog.offerings

    async def wait(self, scope: Scope | None = None) -> None:
        """Wait for every server, or those that a Scope may show, at most ``limit`` seconds."""
        unknown = [
            server
            for key, server in self._servers.items()
            if not self._is_known(server) and (scope is None or scope.could_see(key))
        ]
        waits = [self._tasks.spawn(server.settled.wait()) for server in unknown]
        try:
            if waits:
                await asyncio.wait(waits, timeout=self._limit)
        finally:
            for wait in waits:
                wait.cancel()

    async def wait_for(self, call: Call) -> None:
        """Wait until a server offers the target of ``call``, or all that it may see have started.

        The call counts as one in flight meanwhile. One that is over its principal's quota does not
        wait: it is refused where it goes on.
        """
        usage = call.caller.usage
        if usage.calls >= usage.quota.calls:
            return
        over = self._tasks.spawn(self.wait(call.caller.scope))
        usage.calls += 1
        try:
            while not over.done() and not self._is_offered(call):
                either: set[asyncio.Future[None]] = {over, self._live_catalog.swapped}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            usage.calls -= 1
            over.cancel()

    def _is_offered(self, call: Call) -> bool:
        catalog, caller = self._live_catalog.catalog, call.caller
        if call.address.kind is RESOURCES or call.address.kind is TASKS:
            return False  # another server may have the same address, and come first
        view = catalog.view(caller.spelling, call.address.kind, caller.scope)
        name = name_of_tool(call, view)  # noted: another server may come that would have it
        return catalog.note_used(name, caller.spelling, call.address.kind, caller.scope)
