"""Admit: stores a high-risk call's intent and spends its token or approval before it is sent.

Its intent is durable, and in the same transaction the store says that the grant is still there and
gives it the single-use token that it carries. Once per call: its attempts pass, and the
continuation of a call spends nothing. All other calls pass by.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from mcp_junction.calls.approving import describe_approved, require_approval
from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.calls.stages.authorize import deny
from mcp_junction.calls.stages.validate import refuse as refuse_arguments
from mcp_junction.errors import ArgumentsError
from mcp_junction.governance.admission import Admission
from mcp_junction.governance.approvals import Approvals
from mcp_junction.policy.approvals import ApprovedCall
from mcp_junction.policy.tokens import APPROVAL
from mcp_junction.upstream.outcome import Outcome

_NO_RECORD: Final = (
    "the token that the call carries was used before, and no result is kept under its idempotency"
    " key; have a new token made"
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
                approved = describe_approved(call)
            except ArgumentsError as error:
                return await refuse_arguments(str(error), ())
            if self._approvals is not None and decision.needs_approval:
                unapproved = await require_approval(self._approvals, call, approved)
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
