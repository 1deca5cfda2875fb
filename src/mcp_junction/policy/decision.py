"""PolicyDecision: whether a call is allowed, by which rule, and what would change it.

Facts in, decision out: the principal, the agent that it names, that agent's grants and their
tokens, what the tool is, and the time. Nothing is looked up, spent, counted or written here; limits
and breakers come later in the pipeline. Remembering decisions is ``decision_cache.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mcp_junction.policy.acting import ROLE, ActingAgent, ActingRefusal, resolve_acting_agent
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.grants import (
    ANY,
    OWNER_GRANT,
    RESOURCES,
    TOOLS,
    Grant,
    is_devious_uri,
)
from mcp_junction.policy.patterns import compile_pattern
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.risk import NO_RISK, Risk
from mcp_junction.policy.tokens import NONE, PresentedToken, Token, TokenCheck, check_tokens

ALLOW: Final = "ALLOW"
DENY: Final = "DENY"
NO_GRANT: Final = "default"
"""The rule that denies what no grant allows."""
TOKEN: Final = "token"
"""The rule that denies a high-risk call without the token that its grant wants."""
FOREVER: Final = float("inf")

Tokens = Mapping[str, Sequence[Token]]
"""The tokens of each grant, by its id."""
_NO_TOKENS: Final[Tokens] = {}


class CallTarget(msgspec.Struct, frozen=True):
    """What a call is for: something that a server offers."""

    server_id: str
    name: str
    """The server's own name for it, or the URI."""
    kind: str = TOOLS
    risk: Risk = NO_RISK
    disabled: str = ""
    """Why it cannot be called by anybody, if it cannot."""


class PolicyDecision(msgspec.Struct, frozen=True):
    """Whether a call is allowed, and why."""

    allowed: bool
    rule: str
    """What decided: ``grant:ID``, ``role``, ``agent_id``, ``default`` or ``token``."""
    reason: str
    agent_id: str = ""
    """Under whose name the call is made; empty when it is made under nobody's."""
    is_visible: bool = True
    """Whether the agent sees the target at all. What it does not see looks unknown."""
    token_required: bool = False
    grants: tuple[Grant, ...] = ()
    """Every grant that allows it, the most lenient first: a limit that is used up on one may have
    room on the next."""
    spends: Mapping[str, str] = {}
    """For each of those grants that needs it, the id of the token that ``admit`` spends."""
    replay_only: bool = False
    """Whether it may only be answered from its idempotency record."""
    valid_until: float = 0.0
    """Until when the same facts lead to the same decision; 0 when it must not be remembered."""
    cached: bool = False

    @property
    def word(self) -> str:
        """The decision as the audit and REST name it."""
        return ALLOW if self.allowed else DENY


class Explanation(msgspec.Struct, frozen=True):
    """The answer to "why?": the decision, its rule, and what would let a denied call pass."""

    decision: str
    rule: str
    reason: str
    cached: bool
    token_required: bool
    would_pass_if: tuple[str, ...] = ()


def decide(
    principal: Principal,
    named: str | None,
    grants: GrantSet,
    target: CallTarget,
    now: float,
    *,
    tokens: Tokens = _NO_TOKENS,
    presented: PresentedToken | None = None,
    has_idempotency_key: bool = False,
) -> PolicyDecision:
    """Decide about one call. ``grants`` are those of the agent under whose name it is made."""
    acting = decide_by_role(principal, named)
    if isinstance(acting, PolicyDecision):
        return acting
    if grants.agent_id != acting.id:
        raise ValueError(f"the grants are those of {grants.agent_id!r}, not of {acting.id!r}")
    return decide_by_grants(
        grants,
        target,
        now,
        tokens=tokens,
        presented=presented,
        has_idempotency_key=has_idempotency_key,
    )


def decide_by_role(principal: Principal, named: str | None) -> PolicyDecision | ActingAgent:
    """Decide about a call that needs no look at grants; else return whose grants are needed.

    Nothing of this is remembered: an agent may have the id of an administrator.
    """
    acting = resolve_acting_agent(principal, named)
    if isinstance(acting, ActingRefusal):
        return PolicyDecision(False, acting.rule, acting.reason)
    if not acting.has_all:
        return acting
    if acting.id == OWNER_GRANT.agent_id and principal.role is _OWNER:
        return _OWNER_DECISION
    return PolicyDecision(
        True, ROLE, "an administrator that calls as itself may call everything", acting.id
    )


def decide_by_grants(
    grants: GrantSet,
    target: CallTarget,
    now: float,
    *,
    tokens: Tokens = _NO_TOKENS,
    presented: PresentedToken | None = None,
    has_idempotency_key: bool = False,
) -> PolicyDecision:
    """Decide about a call under the name of the agent whose grants these are."""
    matching = grants.matching(target.kind, target.server_id, target.name)
    live = tuple(grant for grant in matching if grant.is_live(now))
    if not live:
        return deny_by_default(grants.agent_id)
    until = min(FOREVER if g.expires_at is None else g.expires_at for g in live)
    if not target.risk.is_high:
        return PolicyDecision(
            True,
            _rule(live[0]),
            _describe(live[0]),
            grants.agent_id,
            grants=live,
            valid_until=until,
        )
    checks = [
        check_tokens(
            grant.token_mode,
            tokens.get(grant.id, ()),
            presented,
            now,
            has_idempotency_key=has_idempotency_key,
        )
        for grant in live
    ]
    return _decide_high_risk(grants.agent_id, target, live, checks, until)


def can_see(principal: Principal, grants: GrantSet, target: CallTarget, now: float) -> bool:
    """Whether something is listed to a principal: agents see what they may call, others all."""
    if principal.role is not Role.AGENT:
        return True
    return grants.admits(target.kind, target.server_id, target.name, now) is not None


def explain(
    decision: PolicyDecision,
    grants: GrantSet,
    target: CallTarget,
    now: float,
    *,
    agent_id: str,
    server_name: str = "",
) -> Explanation:
    """Explain a decision about ``agent_id``; ``server_name`` is how people call the server."""
    conditions: list[str] = []
    if decision.rule == NO_GRANT:
        conditions += _missing_grant(grants, target, now, agent_id, server_name or target.server_id)
    elif not decision.allowed:
        conditions.append(decision.reason)
    if target.disabled:
        conditions.append(f"the tool is enabled again; now it is not: {target.disabled}")
    return Explanation(
        decision.word,
        decision.rule,
        decision.reason,
        decision.cached,
        decision.token_required,
        tuple(conditions),
    )


def deny_by_default(agent_id: str) -> PolicyDecision:
    """Deny what no grant of an agent allows."""
    reason = f"no grant of agent {agent_id!r} allows it"
    return PolicyDecision(False, NO_GRANT, reason, agent_id, is_visible=False, valid_until=FOREVER)


def _decide_high_risk(
    agent_id: str,
    target: CallTarget,
    live: tuple[Grant, ...],
    checks: list[TokenCheck],
    until: float,
) -> PolicyDecision:
    token_required = any(grant.token_mode is not NONE for grant in live)
    passing = [(g, check) for g, check in zip(live, checks, strict=True) if check.passes]
    fresh = [(grant, check) for grant, check in passing if not check.replay_only]
    if not passing:
        reason = f"high-risk ({target.risk.reason}): {checks[0].missing}"
        return PolicyDecision(False, TOKEN, reason, agent_id, token_required=token_required)
    chosen = fresh or passing
    grant = chosen[0][0]
    remembered = min(until, *(c.until if c.until is not None else 0.0 for _, c in chosen))
    return PolicyDecision(
        True,
        _rule(grant),
        _describe(grant),
        agent_id,
        token_required=grant.token_mode is not NONE,
        grants=tuple(g for g, _ in chosen),
        spends={g.id: c.token for g, c in chosen if c.spends},
        replay_only=not fresh,
        valid_until=remembered,
    )


_OWNER: Final = Role.OWNER
_OWNER_DECISION: Final = PolicyDecision(
    True,
    f"grant:{OWNER_GRANT.id}",
    OWNER_GRANT.note,
    OWNER_GRANT.agent_id,
    grants=(OWNER_GRANT,),
)


def _rule(grant: Grant) -> str:
    return f"grant:{grant.id}"


def _describe(grant: Grant) -> str:
    return f"grant {grant.id} ({grant.source}): {grant.tool_name!r} on server {grant.server_id!r}"


def _covers(grant: Grant, target: CallTarget) -> bool:
    return (
        target.kind in grant.kinds
        and grant.server_id in (ANY, target.server_id)
        and compile_pattern(grant.tool_name).matches(target.name)
    )


def _missing_grant(
    grants: GrantSet, target: CallTarget, now: float, agent_id: str, server: str
) -> list[str]:
    """Say what would let a call pass that no grant allows: what nearly does, first."""
    conditions = [
        f"grant {grant.id}, which expired, is given again"
        for grant in grants.matching(target.kind, target.server_id, target.name)
        if not grant.is_live(now)
    ]
    conditions += [
        f"grant {grant.id} has no condition; none can be evaluated yet"
        for grant in grants.grants
        if grant.when and _covers(grant, target)
    ]
    if target.kind == RESOURCES and is_devious_uri(target.name):
        conditions.append("the URI is written without .. segments, encoded / . \\ and spaces")
    what = f"{target.kind[:-1]} {target.name!r} on server {server!r}"
    conditions.append(f"agent {agent_id!r} is granted {what}")
    return conditions
