"""Admit: stores a high-risk call's intent and spends its token or approval before it is sent.

Its intent is durable, and in the same transaction the store says that the grant is still there and
gives it the single-use token that it carries. Once per call: its attempts pass, and the
continuation of a call spends nothing. All other calls pass by.

Where its grant wants a person's approval, the answer to a call that nobody has approved says how to
get that; the same call again finds the same request. What a server asks in the middle of a call is
not part of what was approved.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

import msgspec

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.calls.stages.authorize import deny
from mcp_junction.calls.stages.validate import refuse as refuse_arguments
from mcp_junction.catalog.pins import define
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import ArgumentsError, StoreError
from mcp_junction.governance.admission import Admission
from mcp_junction.governance.approvals import Approvals, UnapprovedCall
from mcp_junction.policy.approvals import ApprovalState, ApprovedCall
from mcp_junction.policy.decision import PolicyDecision
from mcp_junction.policy.grants import Grant
from mcp_junction.policy.tokens import APPROVAL
from mcp_junction.protocol.versions import APPROVAL_NEEDED, SERVER_UNAVAILABLE
from mcp_junction.store.grants import APPROVED, PENDING, ApprovalRecord
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome

_NO_RECORD: Final = (
    "the token that the call carries was used before, and no result is kept under its idempotency"
    " key; have a new token made"
)
_NO_STORE: Final = "the store cannot be reached, so that nobody can be asked; try again later"
_NOT_IN_PLACE: Final = "nobody is asked to approve a call that is made in place of another"
_TOO_MANY: Final = "too many calls of this agent wait for approval; have some of them decided first"
_HOW: Final = (
    "have it approved (mcp-junction approvals approve {0}, or POST"
    " /api/v1/mcp/approvals/{0}/approve) and make the same call again"
)
_HOW_ON_PAGE: Final = (
    "have it approved at {1} (or by mcp-junction approvals approve {0}, or POST"
    " /api/v1/mcp/approvals/{0}/approve) and make the same call again"
)


class AdmitCalls:
    """The stage of high-risk calls."""

    def __init__(
        self, audit: CallAudit, admission: Admission, approvals: Approvals | None = None
    ) -> None:
        self._audit = audit
        self._admission = admission
        self._approvals = approvals

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        facts = call.facts
        if facts is None or not facts.is_high_risk:
            return following(call)
        return self._admit(call, following)

    async def _admit(self, call: Call, following: Handler) -> Outcome:
        refused = await self.admit(call)
        return await following(call) if refused is None else refused

    async def admit(self, call: Call) -> Outcome | None:
        """Admit a high-risk call; return its answer when it may not be made."""
        decision = call.decision
        assert decision is not None, "authorize comes first"
        if decision.replay_only and not call.is_resume:
            return await deny(call, _NO_RECORD)
        if call.intent is not None:  # a fallback of a call that is on record
            return None
        approved: ApprovedCall | None = None
        if not call.is_resume and any(g.token_mode is APPROVAL for g in decision.grants):
            try:
                approved = _describe_approved(call)
            except ArgumentsError as error:
                return await refuse_arguments(str(error), ())
            unapproved = await self._find_unapproved(call, decision, approved)
            if unapproved is not None:
                return unapproved
        check = self._admission.check(
            decision,
            call.grant,
            call.carried.token,
            is_resume=call.is_resume,
            approved=approved,
        )
        refused = await self._audit.store_intent(call, check)
        if refused is None and check is not None:
            if check.refusal is not None:
                return await deny(call, check.refusal)
            call.passed_by = check.passed_by
        return refused

    async def _find_unapproved(
        self, call: Call, decision: PolicyDecision, approved: ApprovedCall
    ) -> Outcome | None:
        """Return the answer to a call that passes by a grant which wants approval, and has none."""
        grant = call.grant or decision.grants[0]
        if self._approvals is None or grant.token_mode is not APPROVAL:
            return None
        if call.in_place_of is not None:
            return await deny(call, _NOT_IN_PLACE)
        return await _require_approval(self._approvals, call, grant, approved)


def _describe_approved(call: Call) -> ApprovedCall:
    """Describe what an approval of a call is bound to. Raises ArgumentsError."""
    route, decision = call.route, call.decision
    assert route is not None, "resolve comes first"
    assert decision is not None, "authorize comes first"
    members = route.item.members if route.item is not None else {}
    return ApprovedCall(
        decision.agent_id,
        route.upstream.definition.id,
        _hash_connection(route.upstream.definition),
        route.pair.name,
        define(members).hash,
        call.read_arguments().hash,
    )


def _hash_connection(definition: ServerDefinition) -> str:
    """Hash how, and in whose name, a server is connected to: a change is another connection."""
    parts = (
        definition.transport,
        definition.command,
        definition.args,
        sorted(definition.env.items()),
        definition.cwd,
        definition.url,
        sorted(definition.headers.items()),
        definition.auth,
        (definition.tls_ca, definition.tls_cert, definition.tls_key),
    )
    return sha256(msgspec.json.encode(parts)).hexdigest()


async def _require_approval(
    approvals: Approvals, call: Call, grant: Grant, approved: ApprovedCall
) -> Outcome | None:
    """Return the answer to a call that nobody has approved; None for one that may go on."""
    facts = call.facts
    assert facts is not None
    waiting = UnapprovedCall(
        approved,
        grant,
        call.caller.principal,
        facts.target.risk.reason,
        bytes(call.params.get("arguments", b"{}")),
        call.correlation_id,
    )
    try:
        record = await approvals.request(waiting)
        if record is not None:
            record = await approvals.wait_for_decision(record, call.ending)
    except StoreError:
        return outcomes.failed(SERVER_UNAVAILABLE, _NO_STORE, Delivery.NOT_SENT)
    if call.ended_by is not None:
        return call.ended_by
    if record is None:
        return await deny(call, _TOO_MANY)
    if record.state is APPROVED:
        return None
    if record.state is ApprovalState.DENIED:
        return await deny(call, f"a person has denied this call{_quote(record.note)}")
    return _ask(call, record, approvals.page_of(record.id))


def _ask(call: Call, record: ApprovalRecord, url: str) -> Outcome:
    how = _HOW.format(record.id) if not url else _HOW_ON_PAGE.format(record.id, url)
    call.denial = "it waits for approval" if record.state is PENDING else "its approval has ended"
    until = datetime.fromtimestamp(record.expires_at, UTC).isoformat(timespec="seconds")
    data: dict[str, Any] = {"approval_id": record.id, "expires_at": until, "how": how}
    if url:
        data["url"] = url
    message = f"a person has to approve this call, request {record.id}: {how}"
    return outcomes.failed(APPROVAL_NEEDED, message, Delivery.NOT_SENT, **data)


def _quote(note: str | None) -> str:
    return f": {note}" if note else ""
