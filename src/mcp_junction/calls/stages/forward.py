"""Forward: put the call on a link of its server and wait for its end.

The one place where params are touched: the name becomes the server's own, and a progress token
becomes ours, because on a shared link two callers may have chosen the same.
"""

from __future__ import annotations

import asyncio

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.methods import readdressed
from mcp_junction.catalog.routes import Route
from mcp_junction.protocol import encode, frames
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import Outcome

_OBJECT = ord("{")


class Forward:
    """The innermost stage."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, call: Call) -> Outcome:
        route = call.route
        assert route is not None, "resolve comes first"
        if route.timeout:
            self._deadlines.watch(call, route.timeout)
        try:
            link: Link | None = route.upstream.link
            if link is None or route.upstream.is_isolated:
                upstream = route.upstream.for_session(call.caller, call.caller.hello)
                link = await upstream.link_in_time(route.timeout)
                if link is None:
                    return call.ended_by or upstream.unavailable()
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            flight = Flight(call.method, call, self._loop)
            flight.params = _params(call, route, flight.wire_id)
            if call.board(flight):
                link.send(flight)
            return await flight.future
        finally:
            if route.timeout:
                self._deadlines.forget(call)


def _params(call: Call, route: Route, wire_id: bytes) -> bytes:
    params = readdressed(call.method, call.params, route.raw_name)
    meta = params.get("_meta")
    if meta is not None and memoryview(meta)[0] == _OBJECT:
        members = frames.members(meta)
        token = members.get("progressToken")
        if token is not None:
            call.progress_token = token
            params["_meta"] = Raw(encode.dumps({**members, "progressToken": Raw(wire_id)}))
    return encode.dumps(params)
