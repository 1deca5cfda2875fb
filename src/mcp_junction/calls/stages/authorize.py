"""Authorize: refuse a call of somebody whose role has no right to call.

It stands after ``resolve``, which has made the call that is asked for out of ``call_tool``; the
tools of Junction's own that are left only search, and anybody may. It reads nothing but the table
of rights: what a role may call of what there is, is not decided here.
"""

from __future__ import annotations

from collections.abc import Awaitable

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.methods import OWN
from mcp_junction.policy.principal import CALLING_ROLES, Right, explain_refusal
from mcp_junction.protocol.versions import DENIED
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome


def authorize(call: Call, following: Handler) -> Awaitable[Outcome]:
    """Pass on a call whose caller has the right to call; refuse any other."""
    if call.caller.principal.role in CALLING_ROLES or call.address.kind is OWN:
        return following(call)
    return _refuse(call)


async def _refuse(call: Call) -> Outcome:
    call.denial = explain_refusal(call.caller.principal, Right.CALL)
    return outcomes.failed(DENIED, call.denial, Delivery.NOT_SENT)
