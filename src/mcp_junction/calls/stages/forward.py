"""Forward: put the call on a link of its server and wait for its end.

The one place where params are touched: the name becomes the server's own, and a progress token
becomes ours, because on a shared link two callers may have chosen the same. Where client and server
are of different eras, or the link is not simply the server's, the Crossing takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from mcp_junction.calls.call import Call
from mcp_junction.calls.crossing import Crossing, params_of
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.catalog.routes import Route
from mcp_junction.protocol.versions import STATELESS
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import Outcome


class Forward:
    """The innermost stage."""

    def __init__(self, deadlines: Deadlines, crossing: Crossing) -> None:
        self._deadlines = deadlines
        self._crossing = crossing
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        route = call.route
        assert route is not None, "resolve comes first"
        return self._timed(call, route) if route.timeout else self._way(call, route)

    async def _timed(self, call: Call, route: Route) -> Outcome:
        self._deadlines.watch(call, route.timeout)
        try:
            return await self._way(call, route)
        finally:
            self._deadlines.forget(call)

    def _way(self, call: Call, route: Route) -> Awaitable[Outcome]:
        link: Link | None = route.upstream.link
        if link is None or link.era is not call.caller.era or route.upstream.is_isolated:
            return self._crossing.cross(call, route)
        if link.era is STATELESS:
            return self._crossing.stateless(call, link, route)
        return self._fly(call, link, route)

    async def _fly(self, call: Call, link: Link, route: Route) -> Outcome:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        flight = new_flight(call.method, call, self._loop)
        flight.params = params_of(call, route, flight.wire_id)
        if call.board(flight):
            link.send(flight)
        return await flight.future
