"""Limit: counts a call against its agent's, server's and tool's rates, and its grant's limit.

Who starts the process has no limits. A continued call was counted when it began. What is asked of a
task, or ends a subscription, belongs to a call that its grant has counted: it meets rates alone.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Final

from mcp_junction.calls.call import Call, Handler, answer_with
from mcp_junction.calls.methods import OF_TASKS
from mcp_junction.governance.call_limits import CallLimits
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol.versions import RATE_LIMITED
from mcp_junction.resilience.buckets import Limited
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome

_OF_EARLIER_CALLS: Final = OF_TASKS | {"resources/unsubscribe"}


class LimitCalls:
    """The stage of limits."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits

    def bind(self, following: Handler) -> Handler:
        take, has_rates = self._limits.take, self._limits.has_rates

        def limit(call: Call) -> Awaitable[Outcome]:
            decision, facts = call.decision, call.facts
            if decision is None or facts is None:
                return following(call)
            grants = decision.grants
            # Grants without a limit come first.
            if not has_rates and (not grants or grants[0].limits is None):
                return following(call)
            if call.is_resume or call.caller.principal is LOCAL_OWNER:
                return following(call)
            if call.method in _OF_EARLIER_CALLS:
                grants = ()
            target = facts.target
            found = take(decision.agent_id, target.server_id, target.name, grants)
            if isinstance(found, Limited):
                return answer_with(rate_limited(found))
            call.grant = found
            return following(call)

        return limit


def rate_limited(limited: Limited) -> Outcome:
    """Make the outcome for a call that a limit does not allow now."""
    wait_ms = max(1, math.ceil(limited.wait * 1000))
    message = (
        f"{limited.name} has had as many calls as it may have in this time;"
        f" make the call again in {wait_ms / 1000:g} s"
    )
    return outcomes.failed(
        RATE_LIMITED, message, Delivery.NOT_SENT, retry_after_ms=wait_ms, limit=limited.name
    )
