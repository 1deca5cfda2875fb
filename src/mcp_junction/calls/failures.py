"""Finds which Failure an attempt's Outcome is, for what retries, breaks, falls back and escalates.

Most failures are known where the outcome is made, which says so (``Outcome.failure``). Here is what
follows for the others, without a look at payloads or messages. EscalateFailures is the sink that
escalates tool calls which failed although all was tried.
"""

from __future__ import annotations

from typing import Final

from mcp_junction.calls.call import Call
from mcp_junction.calls.events import CALL_TOOL, CallEnded
from mcp_junction.governance.failures import Escalations, FailedCall
from mcp_junction.resilience.failures import REFUSED_BEFORE_RUNNING, Failure, FailureKind
from mcp_junction.upstream.outcome import ERROR, RESULT, SUSPENDED, Delivery, Outcome

_ANSWERED: Final = Failure(FailureKind.REFUSED)
_NOT_SENT: Final = Failure(FailureKind.OWN_REFUSAL, was_sent=False)
_USELESS: Final = frozenset(
    {
        FailureKind.REFUSED,
        FailureKind.TOOL_ERROR,
        FailureKind.CALLER_DEADLINE,
        FailureKind.CANCELLED,
        FailureKind.OWN_REFUSAL,
    }
)
"""Failures that say nothing against the server: another one would do no better."""


def find_failure(outcome: Outcome) -> Failure | None:
    """Return how an attempt failed; None when it was answered with a result.

    A tool's own error is a result, and is not looked for: it shows, as any result does, that the
    server answers.
    """
    if outcome.kind is RESULT or outcome.kind is SUSPENDED:
        return None
    if outcome.failure is not None:
        return outcome.failure
    return _NOT_SENT if outcome.delivery is Delivery.NOT_SENT else _ANSWERED


def is_servers_fault(failure: Failure) -> bool:
    """Whether the server, or the way to it, failed: another server might do better."""
    return failure.kind not in _USELESS


def was_answered(outcome: Outcome) -> bool:
    """Whether the server has run the call and answered it, be it with an error."""
    if outcome.kind is RESULT:
        return True
    return outcome.delivery is None and not _is_refused_before(outcome)


def may_have_run(outcome: Outcome) -> bool:
    """Whether a call that ended so may have run."""
    if outcome.delivery is None:
        return not _is_refused_before(outcome)
    return outcome.delivery is not Delivery.NOT_SENT


def conclude(call: Call, outcome: Outcome, target: str) -> Outcome:
    """Return the outcome of all attempts of a call together: what any may have done counts."""
    if call.may_have_run and outcome.delivery is Delivery.NOT_SENT:
        outcome = outcome.with_delivery(Delivery.UNKNOWN)
    return outcome.counted(call.attempts, target)


def _is_refused_before(outcome: Outcome) -> bool:
    """Whether the server's own error says that the call did not run."""
    return outcome.failure is not None and outcome.failure.kind in REFUSED_BEFORE_RUNNING


class EscalateFailures:
    """A sink of calls. By the end of a call its retries and fallbacks are over.

    What says nothing against the server (denials, wrong arguments, a tool's own errors, the
    caller's own deadline) is not escalated.
    """

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
