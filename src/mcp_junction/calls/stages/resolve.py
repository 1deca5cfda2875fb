"""Resolve: from the name a caller used to a route. A look-up in the view; no I/O."""

from __future__ import annotations

from mcp_junction.calls.call import Call
from mcp_junction.calls.snapshot import Handler
from mcp_junction.protocol.versions import INVALID_PARAMS
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome

_QUOTED = 200


async def resolve(call: Call, following: Handler) -> Outcome:
    if call.ended_by is not None:  # cancelled while it waited for the servers to come up
        return call.ended_by
    view = call.snapshot.catalog.view(call.caller.spelling)
    call.route = view.find(call.name)
    if call.route is not None:
        return await following(call)
    left = view.departed(call.name)
    if left is not None:
        return left.upstream.unavailable()
    name = call.name if len(call.name) <= _QUOTED else call.name[:_QUOTED] + "…"
    near = view.nearest(name)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    message = f"unknown tool: {name}{hint}"
    return outcomes.failed(INVALID_PARAMS, message, Delivery.NOT_SENT, nearest=near)
