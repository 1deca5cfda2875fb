"""Admission: asks the store, at the last moment, whether a high-risk call may be made.

The policy in memory may be half a second old, and of two racing calls only the store can tell which
one has a single-use token. So the check runs in the transaction that stores the call's intent. What
it spends is spent; what it refuses has changed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from mcp_junction.policy.approvals import ApprovedCall
from mcp_junction.policy.decision import PolicyDecision
from mcp_junction.policy.grants import Grant, GrantSource
from mcp_junction.policy.tokens import APPROVAL, NONE, SINGLE_USE, WINDOW, PresentedToken
from mcp_junction.store.audit import IntentCheck
from mcp_junction.store.database import Script
from mcp_junction.store.grants import ApprovalTable
from mcp_junction.store.policy import PolicyTables

_REVOKED: Final = "the grant was revoked or has expired; ask for a new one"
_CHANGED: Final = "the grant was changed at this moment; make the call again"
_USED: Final = "the token that the call carries was used before; have a new one made"
_EXPIRED: Final = "the token of the grant has expired or was revoked; have it renewed"
_SPENT: Final = (
    "the approval of this call was used, or has ended; make the call again to ask for another"
)
_OWNER: Final = GrantSource.OWNER


class Admission:
    """Makes the checks of high-risk calls."""

    def __init__(
        self,
        tables: PolicyTables,
        approvals: ApprovalTable,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._approvals = approvals
        self._grants = tables.grants
        self._tokens = tables.tokens
        self._now = now

    def check(
        self,
        decision: PolicyDecision,
        chosen: Grant | None,
        presented: PresentedToken | None,
        *,
        is_resume: bool = False,
        approved: ApprovedCall | None = None,
    ) -> IntentCheck | None:
        """Make the check of a call; None for one that needs no grant.

        ``chosen`` is the grant whose limit has room; ``approved`` is what an approval is bound to.
        A resumed call has spent its token before.
        """
        if not decision.grants or decision.grants[0].source is _OWNER:
            return None
        grants = decision.grants if is_resume else _candidates(decision, chosen)

        def run() -> Script[str | None]:
            refusal: str | None = _REVOKED
            for grant in grants:
                refusal = yield from self._admit(grant, presented, is_resume, approved)
                if refusal is None:
                    check.passed_by = grant.id
                    break
            return refusal

        order = presented.id if presented is not None else ""
        if approved is not None and not order:
            order = approved.arguments
        check = IntentCheck(run, order)
        return check

    def _admit(
        self,
        grant: Grant,
        presented: PresentedToken | None,
        is_resume: bool,
        approved: ApprovedCall | None,
    ) -> Script[str | None]:
        """Return why a grant does not let the call pass; None when it does."""
        now = self._now()
        stored = yield from self._grants.read_one("WHERE id = ?", grant.id)
        if stored is None or not stored.is_live(now):
            return _REVOKED
        if stored.version != grant.version:
            return _CHANGED
        if is_resume or grant.token_mode is NONE:
            return None
        if grant.token_mode is WINDOW:
            tokens = yield from self._tokens.read_many("WHERE grant_id = ?", grant.id)
            return None if any(token.is_live(now) for token in tokens) else _EXPIRED
        if grant.token_mode is APPROVAL:
            binding = "" if approved is None else approved.bind(grant)
            return None if (yield from self._approvals.spend(binding, now)) else _SPENT
        if presented is None:
            return _EXPIRED
        if grant.token_mode is SINGLE_USE:
            return None if (yield from self._tokens.spend(presented.id, now)) else _USED
        token = yield from self._tokens.read_one("WHERE id = ?", presented.id)
        return None if token is not None and token.is_live(now) else _EXPIRED


def _candidates(decision: PolicyDecision, chosen: Grant | None) -> Sequence[Grant]:
    """Return the grants to try: the chosen one, then others that count no calls.

    Where none was chosen there is nothing to count by the first.
    """
    chosen = chosen or decision.grants[0]
    others = (g for g in decision.grants if g is not chosen and g.limits is None)
    return (chosen, *others)
