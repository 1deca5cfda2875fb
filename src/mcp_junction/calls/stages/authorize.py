"""Authorize, where there is no policy: refuse a call of somebody whose role has no right to call.

It stands after ``resolve``, which has made the call that is asked for out of ``call_tool``; the
tools of Junction's own that are left only search, and anybody may. It reads nothing but the table
of rights: ``judge.py`` takes its place where grants decide.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from mcp_junction.calls.call import NOTHING_CARRIED, Call, Handler
from mcp_junction.calls.methods import OWN
from mcp_junction.policy.principal import RIGHTS, ActingRefusal, Right, resolve_acting_agent
from mcp_junction.protocol.versions import DENIED
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Outcome

_CALLING_THEMSELVES: Final = tuple(role for role, has in RIGHTS.items() if Right.CALL in has)


def authorize(call: Call, following: Handler) -> Awaitable[Outcome]:
    """Pass on a call whose caller has the right to make it; refuse any other."""
    carried = call.carried
    named, is_own = carried.agent_id, call.address.kind is OWN
    if named is None and call.caller.principal.role in _CALLING_THEMSELVES:
        call.is_plain = (
            carried is NOTHING_CARRIED and not is_own and "requestState" not in call.params
        )
        return following(call)
    if is_own:
        return following(call)
    acting = resolve_acting_agent(call.caller.principal, named)
    if not isinstance(acting, ActingRefusal):
        return following(call)
    return deny(call, acting.reason)


async def deny(call: Call, reason: str) -> Outcome:
    """Answer a call that its caller is told to be denied."""
    call.denial = reason
    return outcomes.failed(DENIED, reason, call.delivery)
