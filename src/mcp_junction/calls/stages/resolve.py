"""Resolve: from the name a caller used to a route. A look-up in the view; no I/O."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec.structs import replace

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import OWN, READ, Address
from mcp_junction.calls.own_arguments import unwrap_call_tool
from mcp_junction.calls.snapshot import Handler
from mcp_junction.catalog.kinds import RESOURCES
from mcp_junction.catalog.resources import read_as
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol.names import beginnings
from mcp_junction.protocol.versions import INVALID_PARAMS, RESOURCE_NOT_FOUND, STATELESS
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import RESULT, Delivery, Outcome
from mcp_junction.upstream.server import Upstream

_QUOTED = 200


def resolve(call: Call, following: Handler) -> Awaitable[Outcome]:
    """Find the route of a call, unless it was remembered; refuse an unknown name."""
    if call.ended_by is not None:  # cancelled while it waited for the servers to come up
        return _return(call.ended_by)
    if call.route is not None:  # remembered from a request like it
        return following(call)
    if call.address.kind is RESOURCES:
        return _resolve_resource(call, following)
    caller = call.caller
    view = call.snapshot.catalog.view(caller.spelling, call.address.kind, caller.scope)
    call.route = view.find(call.address.name)
    if call.route is None and call.address.name in view.own:
        if not unwrap_call_tool(call):
            call.address = Address(OWN, call.address.name)
            return following(call)  # the stage ``own`` answers it
        call.route = view.find(call.address.name)
    if call.route is None:  # its server may have left, and be back in time
        call.route = view.find_departed(call.address.name)
    return following(call) if call.route is not None else _refuse_unknown(call)


async def _return(outcome: Outcome) -> Outcome:
    return outcome


async def _refuse_unknown(call: Call) -> Outcome:
    absent = _absent(call)
    if absent is not None:
        return absent.unavailable()
    name = _short(call.name)
    caller = call.caller
    near = call.snapshot.catalog.show(caller.spelling, call.address.kind, caller.scope).nearest(
        name
    )
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    message = f"unknown {call.address.kind.name[:-1]}: {name}{hint}"
    return outcomes.failed(INVALID_PARAMS, message, Delivery.NOT_SENT, nearest=near)


def _absent(call: Call) -> Upstream | None:
    """The server whose tool it must be by its name, if that has failed and never said what it has.

    For its owner alone: others are told nothing of servers that they may not see.
    """
    caller, catalog = call.caller, call.snapshot.catalog
    if caller.principal is not LOCAL_OWNER or not caller.spelling.prefixed:
        return None
    found = None
    for key, server in call.snapshot.servers.items():
        if server.error is None or catalog.offering(key) is not None:
            continue
        begins = beginnings(key, caller.spelling)
        is_longer = found is None or len(key) > len(found.key)
        if is_longer and caller.endpoint.admits_server(key) and call.name.startswith(begins):
            found = server
    return found


async def _resolve_resource(call: Call, following: Handler) -> Outcome:
    view = call.snapshot.catalog.resources(call.caller.scope)
    find = view.find_template if call.address.is_template else view.find
    call.route = find(call.name)
    if call.route is not None:
        outcome = await following(call)  # if its server has left, it may be back in time
        own = call.route.pair.name
        if call.name == own or call.method != READ or outcome.kind is not RESULT:
            return outcome
        return replace(outcome, payload=read_as(outcome.payload, own, call.name))
    uri = _short(call.name)
    message = f"Resource not found: {uri}"
    code = INVALID_PARAMS if call.caller.era is STATELESS else RESOURCE_NOT_FOUND
    return outcomes.failed(code, message, Delivery.NOT_SENT, uri=uri)


def _short(name: str) -> str:
    return name if len(name) <= _QUOTED else name[:_QUOTED] + "…"
