"""ResolveTask: finds the server that made a task by the task's sealed id.

Ids are given to clients sealed, with the server, whose they are and which tool, prompt or resource
made them, so that no table is needed and no one can use another's.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from msgspec import Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import PROMPTS, RESOURCES, TOOLS, ListKind, Route, timeout_for
from mcp_junction.eras.tickets import Seal, SealedTask, server_ref
from mcp_junction.errors import RequestStateError
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import Pair
from mcp_junction.protocol.versions import INVALID_PARAMS
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome
from mcp_junction.upstream.upstream import Upstream

_KINDS: Final = {kind.name: kind for kind in (TOOLS, PROMPTS, RESOURCES)}


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
            task = self._seal.open_task(call.name, call.user, caller.endpoint.name)
        except RequestStateError:
            return None
        catalog = call.snapshot.catalog
        upstream = _find_server(catalog, task.server)
        if upstream is None or not catalog.has_server(caller.scope, upstream.key):
            return None
        timeout = timeout_for(upstream, catalog.timeout)
        kind = _KINDS.get(task.kind)
        if kind is not None:
            call.origin = _find_origin(call, kind, task, upstream, timeout), kind
        raw = Raw(encode.dumps(task.id))
        return Route(upstream, Pair(upstream.key, task.id), f"{upstream.key} task", raw, timeout)


def _find_server(catalog: Catalog, ref: str) -> Upstream | None:
    """Find the server that a sealed id names."""
    upstreams = (offering.upstream for offering in catalog.offerings.values())
    return next((one for one in upstreams if server_ref(one.definition) == ref), None)


def _find_origin(
    call: Call, kind: ListKind, task: SealedTask, upstream: Upstream, timeout: float
) -> Route:
    """Find the route of what made a task; one without an item when it is not listed any more."""
    caller, catalog, pair = call.caller, call.snapshot.catalog, Pair(upstream.key, task.name)
    if kind is RESOURCES:
        found = catalog.resources(caller.scope).find(task.name)
    else:
        view = catalog.view(caller.spelling, kind, caller.scope)
        name = view.name_of(pair)
        found = view.find(name) if name is not None else None
    if found is not None and found.pair == pair:
        return found
    raw = Raw(encode.dumps(task.name))
    return Route(upstream, pair, f"{upstream.key} {task.name}", raw, timeout)


async def _unknown(call: Call) -> Outcome:
    no_task = outcomes.failed(INVALID_PARAMS, "there is no such task", Delivery.NOT_SENT)
    return call.ended_by or no_task
