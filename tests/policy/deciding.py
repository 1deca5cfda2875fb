"""Decides about a call by the two rules that LivePolicy composes, without remembering anything."""

from mcp_junction.policy.decision import (
    CallTarget,
    PolicyDecision,
    decide_by_grants,
    decide_by_role,
)
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.principal import Principal


def decide(
    principal: Principal,
    named: str | None,
    grants: GrantSet,
    target: CallTarget,
    now: float,
    **carried,
) -> PolicyDecision:
    """Decide by the role of a principal, then by the grants, which are the acting agent's."""
    acting = decide_by_role(principal, named)
    if isinstance(acting, PolicyDecision):
        return acting
    assert grants.agent_id == acting.id, "a test's mistake"
    return decide_by_grants(grants, target, now, **carried)
