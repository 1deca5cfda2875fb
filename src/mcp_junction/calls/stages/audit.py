"""Audit: every call leaves a row, whoever made it and however it ended, unknown names too.

``record`` is the sink that makes an Entry of each call's end: nothing is encoded or hashed here,
that is done off the loop. ``intend`` is the stage of strict mode: it stands next to the wire,
and nothing is sent before the audit has it. Parameters and results are never stored as they are.
Refused calls go to ``audit/denials.py``, where those that repeat share a row.
"""

from __future__ import annotations

from time import time

from msgspec import Raw

from mcp_junction.audit.chain import Entry
from mcp_junction.audit.denials import Denial
from mcp_junction.audit.log import AuditLog
from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.events import CALL_TOOL, CallEnded
from mcp_junction.errors import StoreUnavailable
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.frames import octets
from mcp_junction.protocol.versions import SERVER_UNAVAILABLE
from mcp_junction.redaction.payloads import LOOKED_AT
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import RESULT, SUSPENDED, Delivery, Outcome


class CallAudit:
    """Writes calls to the audit."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def record(self, ended: CallEnded) -> None:
        """Write the end of a call to the audit. Called for every call: it must cost little."""
        if ended.denial is not None:
            self._log.denials.add(_describe_denial(ended, ended.denial))
            return
        principal, route, intent, outcome = (
            ended.principal,
            ended.route,
            ended.intent,
            ended.outcome,
        )
        payload = outcome.payload
        if outcome.kind is SUSPENDED:
            payload = _questions(payload)
        is_short = len(payload) <= LOOKED_AT
        self._log.record(
            Entry(
                kind="call" if intent is None else "outcome",
                actor=principal.id,
                action=ended.method,
                at=time(),
                role=principal.role,
                server_id=ended.server_id,
                target=ended.target,
                decision="allowed" if route is not None or ended.is_own else "unknown",
                params=None if ended.arguments is None else octets(ended.arguments),
                # A short result is read off the loop; a long one must not be kept until then.
                outcome=ended.outcome_name_unread if is_short else ended.outcome_name,
                is_tool_result=is_short and outcome.kind is RESULT and ended.method == CALL_TOOL,
                delivery=outcome.delivery,
                attempts=outcome.attempts,
                latency_ms=ended.seconds * 1000,
                result=octets(payload) if is_short else _beginning(payload),
                closes=intent,
            )
        )

    async def intend(self, call: Call, following: Handler) -> Outcome:
        """Store the intent of a call before it is sent."""
        if call.intent is not None:  # for an earlier attempt
            return await following(call)
        try:
            call.intent = await self._log.intent(self._intent(call))
        except StoreUnavailable:
            message = "the audit cannot be written, so nothing is called"
            return outcomes.failed(SERVER_UNAVAILABLE, message, Delivery.NOT_SENT)
        return await following(call)

    def _intent(self, call: Call) -> Entry:
        principal, route = call.caller.principal, call.route
        assert route is not None, "resolve comes first"
        arguments = call.params.get("arguments")
        return Entry(
            kind="intent",
            actor=principal.id,
            action=call.method,
            at=time(),
            role=principal.role,
            server_id=route.upstream.definition.id,
            target=route.canonical,
            decision="allowed",
            params=None if arguments is None else bytes(arguments),
        )


def _describe_denial(ended: CallEnded, reason: str) -> Denial:
    who, server = ended.principal, ended.server_id
    return Denial("call", who.id, ended.method, ended.target, reason, who.role, server)


def _questions(payload: Raw | bytes) -> bytes:
    """The questions of a suspended call, without the client's ``requestState``."""
    asked = frames.members(payload)
    asked.pop("requestState", None)
    return encode.dumps(asked)


def _beginning(payload: Raw | bytes) -> bytes:
    return bytes(memoryview(payload)[:LOOKED_AT])
