"""Audit: every call leaves a row, whoever made it and however it ended, unknown names too.

``ended`` is shown each call after its end and makes an Entry of it: nothing is encoded or hashed
here, that is done off the loop. ``intend`` is the stage of strict mode: it stands next to the wire,
and nothing is sent before the audit has it. Parameters and results are never stored as they are.
"""

from __future__ import annotations

from mcp_junction.audit.chain import Entry
from mcp_junction.audit.log import AuditLog
from mcp_junction.audit.redact import LOOKED_AT
from mcp_junction.calls.call import Call
from mcp_junction.calls.snapshot import Handler
from mcp_junction.errors import StoreUnavailable
from mcp_junction.protocol.versions import SERVER_UNAVAILABLE
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Kind, Outcome

_OUTCOMES = {
    Kind.RESULT: "success",
    Kind.SUSPENDED: "input_required",
    Kind.ERROR: "error",
    Kind.CANCELLED: "cancelled",
}


class CallAudit:
    """What the audit is told of calls."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def ended(self, call: Call, outcome: Outcome, seconds: float) -> None:
        """A call has its answer."""
        entry = self._entry("call" if call.intent is None else "outcome", call)
        entry.outcome = _OUTCOMES[outcome.kind]
        if outcome.delivery is not None:
            entry.delivery = outcome.delivery.value
        entry.latency_ms = seconds * 1000
        entry.result = bytes(memoryview(outcome.payload)[:LOOKED_AT])
        entry.closes = call.intent
        self._log.record(entry)

    async def intend(self, call: Call, following: Handler) -> Outcome:
        """Have it written that a call will be made, before it is."""
        try:
            call.intent = await self._log.intent(self._entry("intent", call))
        except StoreUnavailable:
            message = "the audit cannot be written, so nothing is called"
            return outcomes.failed(SERVER_UNAVAILABLE, message, Delivery.NOT_SENT)
        return await following(call)

    def _entry(self, kind: str, call: Call) -> Entry:
        principal, route = call.caller.principal, call.route
        arguments = call.params.get("arguments")
        return self._log.entry(
            kind,
            principal.id,
            call.method,
            role=principal.role.value,
            server_id=route.upstream.definition.id or None if route is not None else None,
            target=route.canonical if route is not None else call.name,
            decision="allowed" if route is not None else "unknown",
            params=bytes(arguments) if arguments is not None else None,
            attempts=0 if call.flight is None else 1,
        )
