"""InvocationErrors: why a call of ``POST /api/v1/mcp/invoke`` has no result, by the error table.

An agent's unknown and forbidden tools answer the same. Whoever acts for an agent is told which of
them it was. Authorization comes before a disabled tool and before a server that is away.
"""

from __future__ import annotations

import time
from typing import Any, Final

from mcp_junction.api.call_errors import (
    REVOKED,
    CallErrors,
    find_error_code,
    read_error_data,
    wait_header,
)
from mcp_junction.api.calling import RestOutcome, RestRequest
from mcp_junction.app import Junction
from mcp_junction.calls.call import Call
from mcp_junction.calls.stages.judge import JudgedCall
from mcp_junction.errors import RequestError
from mcp_junction.policy.acting import ROLE
from mcp_junction.policy.decision import CallTarget, PolicyDecision
from mcp_junction.policy.grants import TOOLS
from mcp_junction.policy.principal import Role
from mcp_junction.policy.risk import assess
from mcp_junction.protocol.versions import DENIED, INVALID_PARAMS, SERVER_UNAVAILABLE
from mcp_junction.registry.known_tools import KnownTool
from mcp_junction.registry.registry import Registry
from mcp_junction.store.records import ServerRecord
from mcp_junction.upstream.outcome import Outcome, OutcomeKind

_QUOTED: Final = 200
_TOLD: Final = ("errors", "approval_id", "expires_at", "how", "url")
"""Members of an error's data that the answer repeats."""
_UNRESOLVED: Final = (INVALID_PARAMS, SERVER_UNAVAILABLE)
_UNREACHABLE: Final = ("SERVER_CONNECTION_FAILED", "SESSION_NOT_FOUND")


class InvocationErrors:
    """Makes the errors of invocations."""

    def __init__(self, junction: Junction, registry: Registry, errors: CallErrors) -> None:
        self._junction = junction
        self._registry = registry
        self._errors = errors

    def make(self, asked: RestRequest, end: RestOutcome) -> RequestError:
        """Make the error of a call without a result."""
        call, outcome = end.call, end.outcome
        if call.denial == REVOKED:
            return RequestError("UNAUTHENTICATED", REVOKED)
        is_unresolved = call.route is None and call.ended_by is None and call.denial is None
        if is_unresolved and outcome.code in _UNRESOLVED:
            return self._explain_unresolved(asked, call, outcome)
        if outcome.delivery is None and outcome.kind is OutcomeKind.ERROR:
            return RequestError("EXECUTION_FAILED", outcome.message)  # the server's own error
        told = read_error_data(outcome)
        if outcome.code == DENIED and call.decision is not None:
            return _denied(call.decision, outcome.message)
        code = find_error_code(outcome)
        if code == "INTERNAL_ERROR":
            code = "EXECUTION_FAILED"
        elif code in _UNREACHABLE:
            code = "SERVER_UNAVAILABLE"
        context: dict[str, object] = {name: told[name] for name in _TOLD if name in told}
        return RequestError(code, outcome.message, context, wait_header(told))

    def _explain_unresolved(self, asked: RestRequest, call: Call, outcome: Outcome) -> RequestError:
        """Say why a tool is not in the caller's list: unknown, forbidden, disabled or away."""
        assert asked.server is not None, "invoke names the server"
        hides = asked.principal.role is Role.AGENT
        unknown = _unknown(asked.name, asked.server, hides)
        record = self._errors.find_server(asked.server)
        tool = None if record is None else self._registry.tools.known.find(record.id, asked.name)
        if record is None or (tool is None and not hides):
            return unknown
        decision = self._decide(call, record, tool, asked.name)
        if decision is not None and not decision.allowed:
            is_hidden = hides and not decision.is_visible
            return unknown if is_hidden else _denied(decision, decision.reason)
        if tool is None:
            return unknown
        if tool.reason is not None:
            words = f"the tool is disabled ({tool.reason.value}); see GET /api/v1/mcp/tools"
            return RequestError("TOOL_DISABLED", words)
        is_away = outcome.code == SERVER_UNAVAILABLE
        why = outcome.message if is_away else f"server {record.name!r} does not serve its tools now"
        return RequestError("SERVER_UNAVAILABLE", why)

    def _decide(
        self, call: Call, record: ServerRecord, tool: KnownTool | None, name: str
    ) -> PolicyDecision | None:
        governance, carried = self._junction.governance, call.carried
        if governance is None:
            return None
        risk = tool.state.risk if tool is not None else assess(name)
        return governance.policy.decide(
            call.caller.principal,
            carried.agent_id,
            CallTarget(record.id, name, TOOLS, risk, server=record.name),
            time.time(),
            presented=carried.token,
            has_idempotency_key=carried.idempotency_key is not None,
            call=JudgedCall(call),
        )


def _unknown(name: str, server: str, hides: bool) -> RequestError:
    words = f"there is no tool {name[:_QUOTED]!r} at server {server[:_QUOTED]!r}"
    if hides:
        return RequestError("DENIED", f"{words} that this agent may call")
    return RequestError("TOOL_NOT_FOUND", f"{words}; see GET /api/v1/mcp/tools")


def _denied(decision: PolicyDecision, words: str) -> RequestError:
    return RequestError("FORBIDDEN" if decision.rule == ROLE else "DENIED", words)


def describe_end(end: RestOutcome) -> dict[str, Any]:
    """Return what every answer says about a call, whether it has a result or not."""
    outcome = end.outcome
    delivery = outcome.delivery.value if outcome.delivery is not None else "executed"
    return {
        "attempts": outcome.attempts,
        "latency_ms": round((end.ended - end.began) * 1000, 3),
        "delivery": delivery,
        "completed_at": format_time(time.time()),
    }


def format_time(at: float) -> str:
    """Write a time as ISO 8601, in UTC, to the millisecond."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    return f"{whole}.{int(at % 1 * 1000):03}Z"
