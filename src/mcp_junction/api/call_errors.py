"""CallErrors: the error answers of ``tools/call`` and ``invoke`` for calls without a result.

What a caller may not see is unknown to it, here too.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.api.models import reachable_status
from mcp_junction.app import Junction
from mcp_junction.calls.call import Call
from mcp_junction.calls.stages.judge import JudgedCall
from mcp_junction.catalog.items import TOOLS
from mcp_junction.catalog.scope import OPEN, Scope
from mcp_junction.errors import JunctionError, NotFound, RequestError
from mcp_junction.policy.decision import CallTarget, PolicyDecision
from mcp_junction.policy.principal import ROLE_RULE, Role
from mcp_junction.policy.risk import assess
from mcp_junction.protocol.names import Pair
from mcp_junction.protocol.versions import (
    APPROVAL_NEEDED,
    CALL_TIMEOUT,
    CIRCUIT_OPEN,
    DENIED,
    IDEMPOTENCY_CONFLICT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LINK_LOST,
    RATE_LIMITED,
    SERVER_UNAVAILABLE,
    SIGN_IN_NEEDED,
)
from mcp_junction.registry.known_tools import KnownTool
from mcp_junction.registry.registry import Registry
from mcp_junction.store.records import ServerRecord
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind
from mcp_junction.upstream.state import ServerState

_ERROR_CODES: Final = {
    SERVER_UNAVAILABLE: "SERVER_UNAVAILABLE",
    CALL_TIMEOUT: "TIMEOUT",
    RATE_LIMITED: "RATE_LIMITED",
    DENIED: "DENIED",
    SIGN_IN_NEEDED: "SIGN_IN_NEEDED",
    APPROVAL_NEEDED: "APPROVAL_REQUIRED",
    CIRCUIT_OPEN: "CIRCUIT_OPEN",
    IDEMPOTENCY_CONFLICT: "IDEMPOTENCY_CONFLICT",
    LINK_LOST: "EXECUTION_FAILED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
_STATUS_CODES: Final[dict[Any, str]] = {404: "SESSION_NOT_FOUND", 429: "RATE_LIMITED"}
"""Codes for what an HTTP server refused before it ran anything."""
_APPROVAL: Final = ("approval_id", "expires_at", "how", "url")
_TOLD: Final = ("errors", "retry_after_ms", "limit", "sign_in", *_APPROVAL)
"""Members of an error's data that the context repeats."""
_TOLD_BY_INVOKE: Final = ("errors", *_APPROVAL)
_UNRESOLVED: Final = (INVALID_PARAMS, SERVER_UNAVAILABLE)
_UNREACHABLE: Final = ("SERVER_CONNECTION_FAILED", "SESSION_NOT_FOUND")
_QUOTED: Final = 200
REVOKED: Final = "the key was revoked"


class _ErrorObject(msgspec.Struct):
    """The data of an error object of ours."""

    data: dict[str, Any] = {}


class CallErrors:
    """Makes the error answers of calls."""

    def __init__(self, junction: Junction, registry: Registry) -> None:
        self._junction = junction
        self._registry = registry

    def find_server(self, server: str, scope: Scope = OPEN) -> ServerRecord | None:
        """Find a server by id or name, if it exists in a Scope."""
        try:
            record = self._registry.find(server)
        except NotFound:
            return None
        exists = self._junction.snapshot.catalog.has_server(scope, record.name)
        return record if exists else None

    async def make(self, call: Call, outcome: Outcome, name: str) -> JunctionError:
        """Make the error for a call without a result."""
        if call.denial == REVOKED:
            return RequestError("UNAUTHENTICATED", REVOKED)
        facts, address = _read_error_data(outcome), call.address
        server = address.server if call.route is None else call.route.pair.server
        record = self.find_server(server or facts.get("server", ""), call.caller.scope)
        if call.route is None and outcome.code == INVALID_PARAMS and name == address.name:
            return await self._not_found_error(call, record, facts)
        if record is None:
            return _own_tool_error(outcome)
        if outcome.code == SERVER_UNAVAILABLE and record.status == ServerState.DISCONNECTED:
            return unavailable_error(record, "it is disconnected")
        if outcome.code == SERVER_UNAVAILABLE and call.route is None and call.ended_by is None:
            return self._away_error(record)
        return self._failure_error(outcome, record)

    async def _not_found_error(
        self, call: Call, record: ServerRecord | None, facts: dict[str, Any]
    ) -> JunctionError:
        """Make the error for a name that no tool has, or several."""
        address = call.address
        if address.server is not None and record is None:
            return NotFound(f"there is no server {address.server!r}")
        if "candidates" in facts:
            words = f"{facts['total']} servers have a tool of this name; use its namespaced name,"
            return RequestError("TOOL_AMBIGUOUS", f"{words} or server_id", facts)
        away = await self._find_storing_server(call.caller.scope, address.name, record)
        if away is not None:
            return self._away_error(away)
        short = address.name[:_QUOTED] + "…" * (len(address.name) > _QUOTED)
        context = {"nearest": facts.get("nearest", []), "delivery": Delivery.NOT_SENT.value}
        return RequestError("TOOL_NOT_FOUND", f"there is no tool {short!r}", context)

    async def _find_storing_server(
        self, scope: Scope, name: str, record: ServerRecord | None
    ) -> ServerRecord | None:
        """Find the server that has a tool in the store, though it is not listed now."""
        if record is not None:
            return record if await self._has_stored_tool(scope, record, name) else None
        for other in self._registry.all():
            own = name.removeprefix(f"{other.name}.")
            if own != name and await self._has_stored_tool(scope, other, own):
                return other
        return None

    async def _has_stored_tool(self, scope: Scope, record: ServerRecord, name: str) -> bool:
        if not scope.admits(TOOLS, Pair(record.name, name)):
            return False
        try:
            found = await self._registry.tools.get(record.id, name)
        except NotFound:
            return False
        return found.gone_at is None and self._registry.tools.state_of(found).enabled

    def _away_error(self, record: ServerRecord) -> RequestError:
        """Make the error for a server whose tools are not listed now."""
        if record.status == ServerState.DISCONNECTED:
            return unavailable_error(record, "it is disconnected")
        words = f"server {record.name!r} is not available: {record.error_message or 'not yet'}"
        return self._unreachable_error(record, words, Delivery.NOT_SENT.value)

    def _failure_error(self, outcome: Outcome, record: ServerRecord) -> RequestError:
        """Make the error for a call that failed at a server."""
        delivery = outcome.delivery
        if delivery is None and outcome.kind is OutcomeKind.ERROR:  # the server's own
            executed = {
                "server": _describe_server(record),
                "delivery": Delivery.EXECUTED.value,
                "error": Raw(bytes(outcome.payload)),
            }
            return RequestError("EXECUTION_FAILED", outcome.message, executed)
        told = delivery.value if delivery is not None else None
        code = _find_error_code(outcome)
        if code == "SERVER_UNAVAILABLE":
            return self._unreachable_error(record, outcome.message, told)
        data = _read_error_data(outcome)
        context = {"server": _describe_server(record), "delivery": told}
        context |= {name: data[name] for name in _TOLD if name in data}
        return RequestError(code, outcome.message, context, _wait_header(data))

    def _unreachable_error(
        self, record: ServerRecord, words: str, delivery: str | None
    ) -> RequestError:
        try:
            record = self._registry.find(record.id)  # as it is now
        except NotFound:
            pass
        code = {
            ServerState.ERROR: "SERVER_CONNECTION_FAILED",
            ServerState.CONNECTED: "SESSION_NOT_FOUND",
            ServerState.DEGRADED: "SESSION_NOT_FOUND",
        }.get(ServerState(record.status), "SERVER_UNAVAILABLE")
        return RequestError(code, words, {"server": _describe_server(record), "delivery": delivery})

    # -- invoke

    def make_for_invoke(self, call: Call, outcome: Outcome, name: str, server: str) -> RequestError:
        """Make the error for a call without a result of a tool, by what ``invoke`` names it."""
        if call.denial == REVOKED:
            return RequestError("UNAUTHENTICATED", REVOKED)
        is_unresolved = call.route is None and call.ended_by is None and call.denial is None
        if is_unresolved and outcome.code in _UNRESOLVED:
            return self._explain_unresolved(call, outcome, name, server)
        if outcome.delivery is None and outcome.kind is OutcomeKind.ERROR:
            return RequestError("EXECUTION_FAILED", outcome.message)  # the server's own error
        told = _read_error_data(outcome)
        if outcome.code == DENIED and call.decision is not None:
            return _denied_error(call.decision, outcome.message)
        code = _find_error_code(outcome)
        if code == "INTERNAL_ERROR":
            code = "EXECUTION_FAILED"
        elif code in _UNREACHABLE:
            code = "SERVER_UNAVAILABLE"
        context: dict[str, object] = {key: told[key] for key in _TOLD_BY_INVOKE if key in told}
        return RequestError(code, outcome.message, context, _wait_header(told))

    def _explain_unresolved(
        self, call: Call, outcome: Outcome, name: str, server: str
    ) -> RequestError:
        """Say why a tool is not in the caller's list: unknown, forbidden, disabled or away.

        An agent's unknown and forbidden tools answer the same; whoever acts for an agent is told
        which of them it was. Authorization comes before a disabled tool and a server that is away.
        """
        hides = call.caller.principal.role is Role.AGENT
        unknown = _unknown_error(name, server, hides)
        record = self.find_server(server)
        tool = None if record is None else self._registry.tools.known.find(record.id, name)
        if record is None or (tool is None and not hides):
            return unknown
        decision = call.decision or self._decide(call, record, tool, name)
        if not decision.allowed:
            is_hidden = hides and not decision.is_visible
            return unknown if is_hidden else _denied_error(decision, decision.reason)
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
    ) -> PolicyDecision:
        governance, carried = self._junction.governance, call.carried
        assert governance is not None, "the service has a policy"
        risk = tool.state.risk if tool is not None else assess(name)
        return governance.policy.decide(
            call.caller.principal,
            carried.agent_id,
            CallTarget(record.id, name, TOOLS.name, risk, server=record.name),
            time.time(),
            presented=carried.token,
            has_idempotency_key=carried.idempotency_key is not None,
            call=JudgedCall(call),
        )


def _find_error_code(outcome: Outcome) -> str:
    """Choose the code for a failure."""
    if outcome.kind is OutcomeKind.CANCELLED:
        return "TIMEOUT"
    told = _read_error_data(outcome)
    found = _STATUS_CODES.get(told.get("http_status"))
    if found is not None and outcome.delivery is Delivery.NOT_SENT:
        return found
    if outcome.code == INVALID_PARAMS and "errors" in told:
        return "INVALID_ARGUMENTS"
    code = _ERROR_CODES.get(outcome.code, "EXECUTION_FAILED")
    if code == "EXECUTION_FAILED" and outcome.delivery is Delivery.NOT_SENT:
        return "SERVER_UNAVAILABLE"
    if code == "INTERNAL_ERROR" and "server" in told:
        return "EXECUTION_FAILED"  # the server's, not ours
    return code


def _read_error_data(outcome: Outcome) -> dict[str, Any]:
    """Read the data of an error object of ours."""
    try:
        return msgspec.json.decode(outcome.payload, type=_ErrorObject).data
    except msgspec.DecodeError:
        return {}


def _describe_server(record: ServerRecord) -> dict[str, Any]:
    return {"id": record.id, "name": record.name, "status": reachable_status(record)}


def _wait_header(told: dict[str, Any]) -> dict[str, str]:
    """Make the header that says how long to wait, if an error's data does."""
    wait = told.get("retry_after_ms")
    return {"retry-after": str(math.ceil(wait / 1000))} if isinstance(wait, int) else {}


def unavailable_error(record: ServerRecord, why: str) -> RequestError:
    """Make the error for a server that cannot be reached now."""
    context = {"server": _describe_server(record), "delivery": Delivery.NOT_SENT.value}
    words = f"server {record.name!r} is not available: {why}"
    return RequestError("SERVER_UNAVAILABLE", words, context)


def _own_tool_error(outcome: Outcome) -> RequestError:
    """Make the error for a call of Junction's own tools that reached no server."""
    code = "TOOL_NOT_FOUND" if outcome.code == INVALID_PARAMS else _find_error_code(outcome)
    told = outcome.delivery.value if outcome.delivery is not None else None
    return RequestError(code, outcome.message, {"delivery": told})


def _unknown_error(name: str, server: str, hides: bool) -> RequestError:
    words = f"there is no tool {name[:_QUOTED]!r} at server {server[:_QUOTED]!r}"
    if hides:
        return RequestError("DENIED", f"{words} that this agent may call")
    return RequestError("TOOL_NOT_FOUND", f"{words}; see GET /api/v1/mcp/tools")


def _denied_error(decision: PolicyDecision, words: str) -> RequestError:
    return RequestError("FORBIDDEN" if decision.rule == ROLE_RULE else "DENIED", words)
