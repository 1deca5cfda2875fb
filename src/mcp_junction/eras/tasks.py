"""ResolveTask: finds the server that made a task by the task's sealed id.

Ids are given to clients sealed, with the server and whose they are, so that no table is needed and
no one can use another's.
"""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec import Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.catalog.items import Route, timeout_for
from mcp_junction.eras.tickets import Seal
from mcp_junction.errors import RequestStateError
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import Pair
from mcp_junction.protocol.versions import INVALID_PARAMS
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome


class ResolveTask:
    """The stage that takes the place of ``resolve`` for the methods of tasks."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        if call.ended_by is None:
            call.route = self._route(call)
        return following(call) if call.route is not None else _unknown(call)

    def _route(self, call: Call) -> Route | None:
        caller = call.caller
        try:
            server, task = self._seal.open_task(call.name, call.user, caller.endpoint.name)
        except RequestStateError:
            return None
        catalog = call.snapshot.catalog
        offering = catalog.offerings.get(server)
        if offering is None or not catalog.has_server(caller.scope, server):
            return None
        upstream = offering.upstream
        timeout = timeout_for(upstream, catalog.timeout)
        raw = Raw(encode.dumps(task))
        return Route(upstream, Pair(server, task), f"{server} task", raw, timeout)


async def _unknown(call: Call) -> Outcome:
    no_task = outcomes.failed(INVALID_PARAMS, "there is no such task", Delivery.NOT_SENT)
    return call.ended_by or no_task
