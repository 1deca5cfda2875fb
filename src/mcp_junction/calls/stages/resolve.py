"""Resolve: from the name a caller used to a route. A look-up in the view; no I/O.

``find_hidden`` finds what an unknown name leads to that its caller may not see, for the audit
alone: nothing of what it finds may reach the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from msgspec.structs import replace

from mcp_junction.calls.call import Call, Handler, answer_with
from mcp_junction.calls.methods import OWN, READ, TASKS, Address
from mcp_junction.calls.stages.own import unwrap_call_tool
from mcp_junction.catalog.items import PROMPTS, RESOURCES, TOOLS, Route
from mcp_junction.catalog.own_tools import SIGN_IN, SIGNED_IN
from mcp_junction.catalog.resources import rewrite_contents
from mcp_junction.catalog.scope import everything_at
from mcp_junction.catalog.view import View
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol.names import Pair, name_prefixes
from mcp_junction.protocol.versions import INVALID_PARAMS, RESOURCE_NOT_FOUND, STATELESS
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import RESULT, Delivery, Outcome
from mcp_junction.upstream.state import SERVING
from mcp_junction.upstream.upstream import Upstream

_QUOTED = 200
_SHOWN_CANDIDATES = 20


class ResolveCall:
    """The stage. Nearly all calls come with the route of a request like them."""

    def bind(self, following: Handler) -> Handler:
        def resolve_call(call: Call) -> Awaitable[Outcome]:
            if call.route is not None and call.ended_by is None:
                return following(call)
            return resolve(call, following)

        return resolve_call


def resolve(call: Call, following: Handler) -> Awaitable[Outcome]:
    """Find the route of a call; refuse an unknown name."""
    if call.ended_by is not None:  # cancelled while it waited for the servers to come up
        return answer_with(call.ended_by)
    caller, address = call.caller, call.address
    if address.kind is RESOURCES:
        return _resolve_resource(call, following)
    if address.server is not None:
        return _resolve_at_server(call, address.server, following)
    view = call.snapshot.catalog.view(caller.spelling, address.kind, caller.scope)
    call.route = view.find(address.name)
    if call.route is not None and not address.takes_own_name:
        return following(call)
    return _resolve_further(call, view, following)


def _resolve_further(call: Call, view: View, following: Handler) -> Awaitable[Outcome]:
    """Find own tools, wrapped calls, departed tools and servers' own names."""
    name, takes_own_name = call.address.name, call.address.takes_own_name
    if call.route is None and name in view.own:
        if not unwrap_call_tool(call):
            call.address = Address(OWN, name)
            return following(call)  # the stage ``own`` answers it
        name, takes_own_name = call.address.name, False
        call.route = view.find(name)
    if call.route is None:  # its server may have left, and be back in time
        call.route = view.find_departed(name)
    if takes_own_name:
        return _resolve_own_name(call, following)
    return following(call) if call.route is not None else refuse_unknown(call)


def _resolve_at_server(call: Call, server: str, following: Handler) -> Awaitable[Outcome]:
    """Find the tool that a server has under its own name for it, or under the caller's."""
    upstream = call.snapshot.servers.get(server)
    if upstream is None or not call.snapshot.catalog.has_server(call.caller.scope, server):
        message = f"there is no server {server!r}"
        return answer_with(
            outcomes.failed(INVALID_PARAMS, message, Delivery.NOT_SENT, server=server)
        )
    view, name = _shown(call), call.address.name
    call.route = _find_at_server(view, server, name)
    if call.route is not None:
        return following(call)
    if upstream.state in SERVING:
        return refuse_unknown(call)
    return answer_with(upstream.unavailable())


def _find_at_server(view: View, server: str, name: str) -> Route | None:
    spelled = view.name_of(Pair(server, name))
    known = name if spelled is None else spelled
    route = view.find(known) or view.find_departed(known)  # it may be back in time
    return route if route is not None and route.pair.server == server else None


def _resolve_own_name(call: Call, following: Handler) -> Awaitable[Outcome]:
    """Find the one tool that has a name at its server, where no other name was meant."""
    caller, name = call.caller, call.address.name
    if call.route is not None:
        call.snapshot.catalog.note_used(name, caller.spelling, TOOLS, caller.scope)
        return following(call)
    view = _shown(call)
    pairs = view.pairs_called(name)
    if len(pairs) > 1:
        candidates = [view.name_of(pair) for pair in pairs[:_SHOWN_CANDIDATES]]
        message = f"{len(pairs)} servers have a tool of this name; use its namespaced name"
        facts: dict[str, Any] = {"candidates": candidates, "total": len(pairs)}
        return answer_with(outcomes.failed(INVALID_PARAMS, message, Delivery.NOT_SENT, **facts))
    if pairs:
        known = view.name_of(pairs[0]) or name
        call.route = view.find(known) or view.find_departed(known)
    return following(call) if call.route is not None else refuse_unknown(call)


def _shown(call: Call) -> View:
    """The view of a caller, for names that the answer mentions."""
    caller = call.caller
    return call.snapshot.catalog.show(caller.spelling, call.address.kind, caller.scope)


async def refuse_unknown(call: Call) -> Outcome:
    """Answer a call for what there is not, or what its caller does not see."""
    if call.address.kind is RESOURCES:
        return _refuse_resource(call)
    if call.address.kind is TASKS:
        return outcomes.failed(INVALID_PARAMS, "there is no such task", Delivery.NOT_SENT)
    absent = _absent(call)
    if absent is not None:
        return absent.unavailable()
    if call.name.endswith(SIGN_IN) and _is_signed_in(call):
        return outcomes.result(SIGNED_IN)
    name = _shorten(call.name)
    near = _shown(call).nearest(name)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    message = f"unknown {call.address.kind.name[:-1]}: {name}{hint}"
    return outcomes.failed(INVALID_PARAMS, message, Delivery.NOT_SENT, nearest=near)


def _is_signed_in(call: Call) -> bool:
    """Whether a call is the ``sign_in`` of a server that has its own tools by now."""
    caller, catalog = call.caller, call.snapshot.catalog
    return any(
        server.tokens is not None
        and server.link is not None
        and catalog.has_server(caller.scope, key)
        and call.name
        in (SIGN_IN, *(f"{one}{SIGN_IN}" for one in name_prefixes(key, caller.spelling)))
        for key, server in call.snapshot.servers.items()
    )


def _absent(call: Call) -> Upstream | None:
    """Find the failed server that an unknown name must belong to, by its prefix.

    For the owner alone: others do not learn of servers that they may not see.
    """
    caller, catalog = call.caller, call.snapshot.catalog
    if caller.principal is not LOCAL_OWNER or not caller.spelling.prefixed:
        return None
    found = None
    for key, server in call.snapshot.servers.items():
        if server.error is None or catalog.offering(key) is not None:
            continue
        begins = name_prefixes(key, caller.spelling)
        is_longer = found is None or len(key) > len(found.key)
        if is_longer and caller.endpoint.admits_server(key) and call.name.startswith(begins):
            found = server
    return found


async def _resolve_resource(call: Call, following: Handler) -> Outcome:
    view = call.snapshot.catalog.resources(call.caller.scope)
    find = view.find_template if call.address.is_template else view.find
    call.route = route = find(call.name)
    if route is not None:
        outcome = await following(call)  # if its server has left, it may be back in time
        own = route.pair.name
        if call.name == own or call.method != READ or outcome.kind is not RESULT:
            return outcome
        return replace(outcome, payload=rewrite_contents(outcome.payload, own, call.name))
    return _refuse_resource(call)


def _refuse_resource(call: Call) -> Outcome:
    uri = _shorten(call.name)
    message = f"Resource not found: {uri}"
    code = INVALID_PARAMS if call.caller.era is STATELESS else RESOURCE_NOT_FOUND
    return outcomes.failed(code, message, Delivery.NOT_SENT, uri=uri)


def _shorten(name: str) -> str:
    return name if len(name) <= _QUOTED else name[:_QUOTED] + "…"


# -- for the audit


def find_hidden(call: Call) -> Route | None:
    """Find what a call without a route would have led to, had its caller been allowed to see it."""
    scope, kind = call.caller.scope, call.address.kind
    if scope.grants is None or kind not in (TOOLS, PROMPTS, RESOURCES):
        return None
    everything, catalog = everything_at(scope.endpoint), call.snapshot.catalog
    if kind is RESOURCES:
        view = catalog.resources(everything)
        find = view.find_template if call.address.is_template else view.find
        found = find(call.name)
    else:
        found = _find_named(call.address, catalog.view(call.caller.spelling, kind, everything))
    return None if found is None or scope.admits(kind, found.pair) else found


def _find_named(address: Address, view: View) -> Route | None:
    name = address.name
    if address.server is not None:
        return _find_at_server(view, address.server, name)
    route = view.find(name) or view.find_departed(name)
    if route is None and address.takes_own_name:
        for pair in view.pairs_called(name):
            return view.find(view.name_of(pair) or name)
    return route
