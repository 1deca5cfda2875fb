"""Arrivals: wait until the servers are up or have failed, or offer what a call is for.

Only the first arrival of each server is waited for. What a server does later is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import TASKS
from mcp_junction.calls.own import meant
from mcp_junction.catalog.keeper import Keeper
from mcp_junction.catalog.kinds import RESOURCES
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.server import Upstream


class Arrivals:
    """The first arrivals of all servers."""

    def __init__(
        self, keeper: Keeper, servers: Mapping[str, Upstream], tasks: TaskScope, limit: float
    ) -> None:
        self._keeper = keeper
        self._servers = servers
        self._tasks = tasks
        self._limit = limit
        self.are_over = False
        """Whether all of them were seen to be over."""

    def look(self) -> bool:
        """Look whether they are over by now."""
        if not self.are_over and all(map(self._is_known, self._servers.values())):
            self.are_over = True
            self._keeper.catalog.settle()
        return self.are_over

    def _is_known(self, server: Upstream) -> bool:
        """Whether it is up or has failed, or what it offers was known before."""
        return server.settled.is_set() or server.key in self._keeper.catalog.offerings

    async def wait(self) -> None:
        """Wait until they are over, but not for ever."""
        unknown = [server for server in self._servers.values() if not self._is_known(server)]
        waits = [self._tasks.spawn(server.settled.wait()) for server in unknown]
        try:
            if waits:
                await asyncio.wait(waits, timeout=self._limit)
        finally:
            for wait in waits:
                wait.cancel()

    async def wait_for(self, call: Call) -> None:
        """Wait until a server offers what ``call`` is for, or until none of them can any more.

        The call counts as one in flight meanwhile. One that is over its principal's quota does not
        wait: it is refused where it goes on.
        """
        holding = call.caller.holding
        if holding.calls >= holding.quota.calls:
            return
        over = self._tasks.spawn(self.wait())
        holding.calls += 1
        try:
            while not over.done() and not self._has(call):
                either: set[asyncio.Future[None]] = {over, self._keeper.swapped}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            holding.calls -= 1
            over.cancel()

    def _has(self, call: Call) -> bool:
        catalog, caller = self._keeper.catalog, call.caller
        if call.address.kind is RESOURCES or call.address.kind is TASKS:
            return False  # another server may have the same address, and come first
        view = catalog.view(caller.spelling, call.address.kind, caller.endpoint)
        return view.keep_used(meant(call, view))  # else another may come that would have it
