"""Audit: every call leaves a row, whoever made it and however it ended, unknown names too.

``record`` is the sink that makes an Entry of each call's end: nothing is encoded or hashed here,
that is done for many rows at a time (``audit/entries.py``). ``intend`` is the stage of strict mode:
it stands next to the wire, and nothing is sent before the audit has it. Parameters and results are
never stored as they are.
Refused calls go to ``audit/denials.py``, where those that repeat share a row.
"""

from __future__ import annotations

from time import time
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from mcp_junction.audit.denials import Denial
from mcp_junction.audit.entries import Entry
from mcp_junction.audit.log import AuditLog
from mcp_junction.calls.audit_rows import make_row
from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.events import CallEnded
from mcp_junction.errors import StoreUnavailable
from mcp_junction.policy.decision import ALLOW, DENY, NO_GRANT
from mcp_junction.policy.principal import ROLE_RULE, Role
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.frames import octets
from mcp_junction.protocol.versions import SERVER_UNAVAILABLE
from mcp_junction.redaction.payloads import LOOKED_AT
from mcp_junction.store.audit import IntentCheck
from mcp_junction.store.audit_records import UNKNOWN
from mcp_junction.telemetry.events import OutcomeName
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import RESULT, SUSPENDED, Delivery, Outcome

_AGENT: Final = Role.AGENT


class CallAudit:
    """Writes calls to the audit."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def record(self, ended: CallEnded) -> None:
        """Write the end of a call to the audit. Called for every call: it must cost little."""
        route, denial, outcome = ended.route, ended.denial, ended.outcome
        if (
            outcome.kind is RESULT
            and route is not None
            and denial is None
            and len(outcome.payload) <= LOOKED_AT
            and ended.carried.agent_id is None
            and outcome.target == route.canonical
            and ended.correlation_id
        ):  # as nearly always
            self._log.record_untrimmed(make_row(ended, time()))
            return
        if denial is not None and not outcome.attempts and ended.intent is None:
            self._log.denials.add(_describe_denial(ended, denial))
            return
        if route is None and ended.is_unknown and ended.principal.role is _AGENT:
            self._log.denials.add(_describe_unknown(ended))
            return
        self._log.record(_describe_call(ended))

    async def intend(self, call: Call, following: Handler) -> Outcome:
        """Store the intent of a call before it is sent."""
        if call.intent is not None:  # for an earlier attempt
            return await following(call)
        refused = await self.store_intent(call)
        return await following(call) if refused is None else refused

    async def store_intent(self, call: Call, check: IntentCheck | None = None) -> Outcome | None:
        """Store the intent of a call; return the call's answer when that is not possible."""
        try:
            call.intent = await self._log.intent(self._intent(call), check)
        except StoreUnavailable:
            message = "the audit cannot be written, so nothing is called"
            return outcomes.failed(SERVER_UNAVAILABLE, message, Delivery.NOT_SENT)
        return None

    def _intent(self, call: Call) -> Entry:
        principal, route = call.caller.principal, call.route
        assert route is not None, "resolve comes first"
        arguments, decision, carried = call.params.get("arguments"), call.decision, call.carried
        agent = call.agent_id
        return Entry(
            kind="intent",
            actor=principal.id,
            action=call.method,
            at=time(),
            role=principal.role,
            correlation_id=call.correlation_id,
            server_id=route.upstream.definition.id,
            target=route.canonical,
            decision=ALLOW,
            cached=decision is not None and decision.cached,
            params=None if arguments is None else bytes(arguments),
            agent_id=None if agent == principal.id else agent,
            tool_name=route.pair.name,
            rule=None if decision is None else decision.rule,
            ticket_id=carried.ticket_id,
            task_id=carried.task_id,
        )


def _describe_call(ended: CallEnded) -> Entry:
    principal, intent, carried = ended.principal, ended.intent, ended.carried
    decision, denial, outcome, route = ended.decision, ended.denial, ended.outcome, ended.route
    payload = _questions(outcome.payload) if outcome.kind is SUSPENDED else outcome.payload
    is_short = len(payload) <= LOOKED_AT
    return Entry(
        kind="call" if intent is None else "outcome",
        actor=principal.id,
        action=ended.method,
        at=time(),
        role=principal.role,
        correlation_id=ended.correlation_id or None,
        server_id=ended.server_id,
        target=ended.target,
        decision=_decision(ended),
        cached=decision is not None and decision.cached,
        params=None if ended.arguments is None else octets(ended.arguments),
        outcome=OutcomeName.DENIED if denial is not None else ended.outcome_name,
        delivery=outcome.delivery,
        attempts=outcome.attempts,
        latency_ms=ended.seconds * 1000,
        # A long result must not be kept until the row is encoded.
        result=octets(payload) if is_short else bytes(memoryview(payload)[:LOOKED_AT]),
        detail=None if denial is None else {"reason": denial, "count": 1},
        closes=intent,
        agent_id=None if carried.agent_id is None else _acting_agent(ended),
        tool_name=None if route is None else route.pair.name,
        rule=None if decision is None else decision.rule,
        ticket_id=carried.ticket_id,
        task_id=carried.task_id,
    )


def _decision(ended: CallEnded) -> str:
    if ended.denial is not None:  # after its intent, or after it had been sent
        return DENY
    return ALLOW if ended.route is not None or ended.is_own else UNKNOWN


def _describe_denial(ended: CallEnded, reason: str) -> Denial:
    who, decision, route = ended.principal, ended.decision, ended.route
    return Denial(
        "call",
        who.id,
        ended.method,
        ended.target,
        reason,
        who.role,
        ended.server_id,
        agent_id=_acting_agent(ended),
        tool_name=None if route is None else route.pair.name,
        rule=ROLE_RULE if decision is None else decision.rule,
        correlation_id=ended.correlation_id,
        ticket_id=ended.carried.ticket_id,
        task_id=ended.carried.task_id,
    )


def _describe_unknown(ended: CallEnded) -> Denial:
    """Describe a call for a name that does not exist, or that the agent may not see.

    The agent may read its own rows: what it may not see is beside what it asked for, in fields of
    their own, and both kinds of calls leave equally many rows.
    """
    who, hidden, carried = ended.principal, ended.hidden, ended.carried
    denial = Denial(
        "call",
        who.id,
        ended.method,
        ended.name,
        "there is no such thing",
        who.role,
        correlation_id=ended.correlation_id,
        ticket_id=carried.ticket_id,
        task_id=carried.task_id,
        decision=UNKNOWN,
    )
    decision = ended.decision
    if hidden is None:
        if decision is None or decision.allowed:
            return denial
        return replace(denial, rule=decision.rule, decision=DENY)
    return replace(
        denial,
        reason=f"it is hidden from the agent: {hidden.canonical}",
        server_id=hidden.upstream.definition.id,
        tool_name=hidden.pair.name,
        rule=NO_GRANT,
        decision=DENY,
    )


def _acting_agent(ended: CallEnded) -> str | None:
    """Return the agent in whose name a call was made, where that is not the principal."""
    agent = ended.agent_id
    return None if agent == ended.principal.id else agent


def _questions(payload: Raw | bytes) -> bytes:
    """The questions of a suspended call, without the client's ``requestState``."""
    asked = frames.members(payload)
    asked.pop("requestState", None)
    return encode.dumps(asked)
