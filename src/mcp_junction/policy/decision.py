"""PolicyDecision: whether a call is allowed, and by which rule.

Facts in, decision out: the principal, the agent that it names, that agent's grants and their
tokens, what the tool is, and the time. Nothing is looked up, spent, counted or written here; limits
and breakers come later in the pipeline. Remembering decisions is ``live_policy.py``,
explaining them ``explanation.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from mcp_junction.policy.arguments import Arguments
from mcp_junction.policy.conditions import CallReader, read_annotations
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.grants import (
    ANY,
    OWNER_GRANT,
    TOOLS,
    Grant,
)
from mcp_junction.policy.patterns import compile_pattern
from mcp_junction.policy.principal import (
    ROLE_RULE,
    ActingAgent,
    ActingRefusal,
    Principal,
    Role,
    resolve_acting_agent,
)
from mcp_junction.policy.risk import NO_RISK, Risk
from mcp_junction.policy.tokens import (
    APPROVAL,
    NONE,
    PresentedToken,
    Token,
    TokenCheck,
    check_tokens,
)

ALLOW: Final = "ALLOW"
DENY: Final = "DENY"
NO_GRANT: Final = "default"
"""The rule that denies what no grant allows."""
CONDITION: Final = "condition"
"""The rule that denies a call that meets no condition of the grants that cover it."""
TOKEN: Final = "token"
"""The rule that denies a high-risk call without the token that its grant wants."""
FOREVER: Final = float("inf")
_TOLD: Final = 3
"""Conditions that a denied caller is told of."""

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
    server: str = ""
    """The server's name, for conditions."""
    annotations: Raw | None = None
    """What the server says of a tool, for conditions."""


class PolicyDecision(msgspec.Struct, frozen=True):
    """Whether a call is allowed, and why."""

    allowed: bool
    rule: str
    """What decided: ``grant:ID``, ``role``, ``agent_id``, ``default``, ``condition``, ``token``."""
    reason: str
    agent_id: str = ""
    """Under whose name the call is made; empty when it is made under nobody's."""
    is_visible: bool = True
    """Whether the agent sees the target at all. What it does not see looks unknown."""
    token_required: bool = False
    grants: tuple[Grant, ...] = ()
    """Every grant that allows it, the most lenient first, and those that want a person's approval
    last: a limit that is used up on one may have room on the next."""
    spends: Mapping[str, str] = {}
    """For each of those grants that needs it, the id of the token that ``admit`` spends."""
    replay_only: bool = False
    """Whether it may only be answered from its idempotency record."""
    valid_until: float = 0.0
    """Until when the same facts lead to the same decision; 0 when it must not be remembered."""
    cached: bool = False

    @property
    def needs_approval(self) -> bool:
        """Whether it passes only by grants that want a person to approve the call."""
        return self.token_required and all(g.token_mode is APPROVAL for g in self.grants)

    @property
    def word(self) -> str:
        """The decision as the audit and REST name it."""
        return ALLOW if self.allowed else DENY


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
        return OWNER_DECISION
    return PolicyDecision(
        True, ROLE_RULE, "an administrator that calls as itself may call everything", acting.id
    )


def decide_by_grants(
    grants: GrantSet,
    target: CallTarget,
    now: float,
    *,
    tokens: Tokens = _NO_TOKENS,
    presented: PresentedToken | None = None,
    has_idempotency_key: bool = False,
    call: CallReader | None = None,
) -> PolicyDecision:
    """Decide about a call under the name of the agent whose grants these are.

    Raises ArgumentsError where a condition reads arguments that can be read in more than one way.
    """
    matching = grants.matching(target.kind, target.server_id, target.name)
    live = tuple(grant for grant in matching if grant.is_live(now))
    if not live:
        return deny_by_default(grants.agent_id)
    until = min(FOREVER if g.expires_at is None else g.expires_at for g in live)
    if grants.conditions and any(grant.when for grant in live):
        applied = _apply_conditions(grants, live, target, call, now)
        if isinstance(applied, PolicyDecision):
            return applied
        live, until = applied.grants, until if applied.is_static else 0.0
    if not target.risk.is_high:
        return PolicyDecision(
            True,
            _rule(live[0]),
            describe_grant(live[0]),
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


def deny_by_default(agent_id: str) -> PolicyDecision:
    """Deny what no grant of an agent allows."""
    reason = f"no grant of agent {agent_id!r} allows it"
    return PolicyDecision(False, NO_GRANT, reason, agent_id, is_visible=False, valid_until=FOREVER)


# -- conditions


class _Applied(NamedTuple):
    """The grants whose conditions a call meets."""

    grants: tuple[Grant, ...]
    is_static: bool
    """Whether the same agent and tool lead to the same again."""


class ConditionSubject(msgspec.Struct, frozen=True):
    """What conditions read: an agent, a target, and the call itself."""

    grants: GrantSet
    target: CallTarget
    call: CallReader | None

    def read_arguments(self) -> Arguments | None:
        return None if self.call is None else self.call.read_arguments()

    def read_field(self, root: str, name: str) -> Any:
        if root == "agent":
            if name == "claims":
                return {} if self.call is None else self.call.read_claims()
            return self.grants.agent_id if name == "id" else self.grants.agent_type
        target = self.target
        if root == "request":
            return None if self.call is None else self.call.read_field(name)
        if name == "annotations":
            return read_annotations(target.annotations)
        if name == "risk":
            return "high" if target.risk.is_high else "low"
        return {"server": target.server, "name": target.name, "kind": target.kind}[name]


def _apply_conditions(
    grants: GrantSet,
    live: tuple[Grant, ...],
    target: CallTarget,
    call: CallReader | None,
    now: float,
) -> _Applied | PolicyDecision:
    """Find the grants whose conditions a call meets, or deny it."""
    subject, passing = ConditionSubject(grants, target, call), []
    failures, is_static = list[tuple[Grant, str]](), True
    for grant in live:
        condition = grants.conditions.get(grant.id)
        if condition is not None:
            is_static = is_static and condition.is_static
            failure = condition.find_failure(subject, now)
            if failure is not None:
                failures.append((grant, failure))
                continue
        passing.append(grant)
    if passing:
        return _Applied(tuple(passing), is_static)
    return deny_by_conditions(grants, target, failures)


def deny_by_conditions(
    grants: GrantSet, target: CallTarget, failures: Sequence[tuple[Grant, str]]
) -> PolicyDecision:
    """Deny a call that fails the conditions of all the grants that cover it, and say why."""
    where = target.kind, target.server_id, target.name
    is_visible = any(grants.is_possible(grant, *where) for grant, _ in failures)
    if not is_visible:
        return msgspec.structs.replace(deny_by_default(grants.agent_id), valid_until=0.0)
    told = "; ".join(f"that of grant {grant.id}: {why}" for grant, why in failures[:_TOLD])
    reason = f"the call does not meet the condition of a grant; {told}"
    return PolicyDecision(False, CONDITION, reason, grants.agent_id)


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
    chosen = sorted(fresh or passing, key=_wants_approval)  # the others ask nobody
    grant = chosen[0][0]
    remembered = min(until, *(c.until if c.until is not None else 0.0 for _, c in chosen))
    return PolicyDecision(
        True,
        _rule(grant),
        describe_grant(grant),
        agent_id,
        token_required=grant.token_mode is not NONE,
        grants=tuple(g for g, _ in chosen),
        spends={g.id: c.token for g, c in chosen if c.spends},
        replay_only=not fresh,
        valid_until=remembered,
    )


_OWNER: Final = Role.OWNER
OWNER_DECISION: Final = PolicyDecision(
    True,
    f"grant:{OWNER_GRANT.id}",
    OWNER_GRANT.note,
    OWNER_GRANT.agent_id,
    grants=(OWNER_GRANT,),
)


def _wants_approval(one: tuple[Grant, TokenCheck]) -> bool:
    return one[0].token_mode is APPROVAL


def _rule(grant: Grant) -> str:
    return f"grant:{grant.id}"


def describe_grant(grant: Grant, server_name: str = "") -> str:
    """Describe what a grant allows; ``server_name`` is how people call its server."""
    server = server_name or grant.server_id
    where = "every server" if grant.server_id == ANY else f"server {server!r}"
    return f"grant {grant.id} ({grant.source}): {grant.tool_name!r} on {where}"


def covers(grant: Grant, target: CallTarget) -> bool:
    """Whether a grant is for a target."""
    return (
        target.kind in grant.kinds
        and grant.server_id in (ANY, target.server_id)
        and compile_pattern(grant.tool_name).matches(target.name)
    )
