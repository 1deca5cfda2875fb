"""Forward: put the call on a link of its server and wait for its end.

The one place where params are touched: the name becomes the server's own, and a progress token
becomes ours, because on a shared link two callers may have chosen the same.
"""

from __future__ import annotations

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.catalog.view import Route
from mcp_junction.protocol import encode, frames
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Outcome

_OBJECT = ord("{")


class Forward:
    """The innermost stage."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    async def __call__(self, call: Call) -> Outcome:
        route = call.route
        assert route is not None, "resolve comes first"
        link = route.upstream.link
        if link is None:
            return route.upstream.unavailable()
        flight = Flight(call.method, call)
        flight.params = _params(call, route, flight.wire_id)
        if not call.board(flight):
            return flight.future.result()
        link.send(flight)
        if not route.timeout:
            return await flight.future
        self._deadlines.watch(call, route.timeout)
        try:
            return await flight.future
        finally:
            self._deadlines.forget(call)


def _params(call: Call, route: Route, wire_id: bytes) -> bytes:
    params = call.params
    params["name"] = route.raw_name
    meta = params.get("_meta")
    if meta is not None and memoryview(meta)[0] == _OBJECT:
        members = frames.members(meta)
        token = members.get("progressToken")
        if token is not None:
            call.progress_token = token
            params["_meta"] = Raw(encode.dumps({**members, "progressToken": Raw(wire_id)}))
    return encode.dumps(params)
