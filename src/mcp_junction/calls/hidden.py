"""Finds what an unknown name leads to that its caller may not see. For the audit alone.

To the caller, what is hidden looks like what does not exist; the operator wants to know the
difference. Nothing of what is found here may reach the caller.
"""

from __future__ import annotations

from mcp_junction.calls.call import Call
from mcp_junction.catalog.items import PROMPTS, RESOURCES, TOOLS, Route
from mcp_junction.catalog.scope import everything_at
from mcp_junction.catalog.view import View
from mcp_junction.protocol.names import Pair


def find_hidden(call: Call) -> Route | None:
    """Find what a call without a route would have led to, had its caller been allowed to see it."""
    scope = call.caller.scope
    kind = call.address.kind
    if scope.grants is None or kind not in (TOOLS, PROMPTS, RESOURCES):
        return None
    everything, catalog = everything_at(scope.endpoint), call.snapshot.catalog
    if kind is RESOURCES:
        view = catalog.resources(everything)
        find = view.find_template if call.address.is_template else view.find
        found = find(call.name)
    else:
        found = _find_named(call, catalog.view(call.caller.spelling, kind, everything))
    if found is None or scope.admits(kind, found.pair):
        return None
    return found


def _find_named(call: Call, view: View) -> Route | None:
    address = call.address
    name = address.name
    if address.server is not None:
        name = view.name_of(Pair(address.server, name)) or name
    route = view.find(name) or view.find_departed(name)
    if address.server is not None:
        return route if route is not None and route.pair.server == address.server else None
    if route is None and address.takes_own_name:
        for pair in view.pairs_called(name):
            return view.find(view.name_of(pair) or name)
    return route
