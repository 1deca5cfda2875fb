"""ResolveTask: the id of a task leads back to the server that made it, and to nobody else's.

Ids are given to clients sealed, with the server and whose they are, so that no table is needed and
no one can use another's. Everything but the methods of tasks passes.
"""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import TASKS
from mcp_junction.calls.snapshot import Handler
from mcp_junction.catalog.routes import Route, timeout_for
from mcp_junction.eras.tickets import Seal
from mcp_junction.errors import StateError
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import Pair
from mcp_junction.protocol.versions import INVALID_PARAMS
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome


class ResolveTask:
    """Finds the route of a task."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        if call.address.kind is TASKS:
            call.route = self._route(call)
            if call.route is None:
                return _unknown()
        return following(call)

    def _route(self, call: Call) -> Route | None:
        caller = call.caller
        try:
            server, task = self._seal.task(call.name, caller.principal, caller.endpoint.name)
        except StateError:
            return None
        offering = call.snapshot.catalog.offerings.get(server)
        if offering is None or not caller.endpoint.admits_server(server):
            return None
        upstream = offering.upstream
        timeout = timeout_for(upstream, call.snapshot.catalog.timeout)
        raw = Raw(encode.dumps(task))
        return Route(upstream, Pair(server, task), f"{server} task", raw, timeout)


async def _unknown() -> Outcome:
    return outcomes.failed(INVALID_PARAMS, "there is no such task", Delivery.NOT_SENT)
