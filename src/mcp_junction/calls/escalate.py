"""EscalateFailures: a sink that escalates tool calls which failed although all was tried.

By the end of a call its retries and fallbacks are over. What says nothing against the server
(denials, wrong arguments, a tool's own errors, the caller's own deadline) is not escalated.
"""

from __future__ import annotations

from mcp_junction.calls.events import CALL_TOOL, CallEnded
from mcp_junction.calls.failures import is_servers_fault
from mcp_junction.governance.escalations import Escalations, FailedCall
from mcp_junction.upstream.outcome import ERROR


class EscalateFailures:
    """A sink of calls."""

    def __init__(self, escalations: Escalations) -> None:
        self._escalations = escalations

    def __call__(self, ended: CallEnded) -> None:
        outcome = ended.outcome
        if outcome.kind is not ERROR or outcome.failure is None:  # as nearly always
            return
        route, failure = ended.route, outcome.failure
        if route is None or ended.method != CALL_TOOL or not is_servers_fault(failure):
            return
        self._escalations.escalate(
            FailedCall(
                ended.agent_id,
                route.upstream.definition.id,
                route.pair.name,
                failure.kind.value,
                outcome.message,
                None if outcome.delivery is None else outcome.delivery.value,
                outcome.attempts,
                ended.correlation_id or None,
            )
        )
