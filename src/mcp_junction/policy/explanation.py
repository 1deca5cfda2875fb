"""Explanation and Simulation: why a call is allowed or denied, and what other grants would do.

Both read the same facts as ``decision.py``, once more and at leisure. Nothing is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec

from mcp_junction.policy.conditions import CallReader, PartValue
from mcp_junction.policy.decision import (
    NO_GRANT,
    OWNER_DECISION,
    CallTarget,
    ConditionSubject,
    PolicyDecision,
    covers,
    describe_grant,
)
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.grants import RESOURCES, is_evasive_uri


class ExplainedCondition(msgspec.Struct, frozen=True):
    """A condition of a grant that covers the call, and what its parts come to."""

    grant_id: str
    when: str
    is_met: bool
    parts: tuple[PartValue, ...]


class Explanation(msgspec.Struct, frozen=True):
    """The answer to "why?": the decision, its rule, and what would let a denied call pass."""

    decision: str
    rule: str
    reason: str
    cached: bool
    token_required: bool
    would_pass_if: tuple[str, ...] = ()
    conditions: tuple[ExplainedCondition, ...] = ()


def explain(
    decision: PolicyDecision,
    grants: GrantSet,
    target: CallTarget,
    now: float,
    *,
    agent_id: str,
    server_name: str = "",
    call: CallReader | None = None,
) -> Explanation:
    """Explain a decision about ``agent_id``; ``server_name`` is how people call the server."""
    conditions, reason = list[str](), decision.reason
    if decision.grants and decision is not OWNER_DECISION:
        reason = describe_grant(decision.grants[0], server_name)
    met = tuple(_explain_conditions(grants, target, call, now))
    if decision.rule == NO_GRANT:
        conditions += _missing_grant(grants, target, now, agent_id, server_name or target.server_id)
    elif not decision.allowed:
        conditions.append(decision.reason)
    elif decision.needs_approval:
        conditions.append("a person approves this very call: POST /api/v1/mcp/approvals/ID/approve")
    if target.disabled:
        conditions.append(f"the tool is enabled again; now it is not: {target.disabled}")
    return Explanation(
        decision.word,
        decision.rule,
        reason,
        decision.cached,
        decision.token_required,
        tuple(conditions),
        met,
    )


def explain_owner(target: CallTarget, now: float) -> Explanation:
    """Explain that the local owner may call anything that can be called."""
    owner = OWNER_DECISION.agent_id
    return explain(OWNER_DECISION, GrantSet(owner), target, now, agent_id=owner)


def _explain_conditions(
    grants: GrantSet, target: CallTarget, call: CallReader | None, now: float
) -> Iterator[ExplainedCondition]:
    subject = ConditionSubject(grants, target, call)
    for grant in grants.matching(target.kind, target.server_id, target.name):
        condition = grants.conditions.get(grant.id)
        if condition is not None and grant.is_live(now):
            is_met = condition.find_failure(subject, now) is None
            parts = tuple(condition.explain(subject, now))
            yield ExplainedCondition(grant.id, grant.when, is_met, parts)


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
        f"grant {grant.id} has a condition that can be used; this one cannot: {grant.when}"
        for grant in grants.grants
        if grant.when and grant.id not in grants.conditions and covers(grant, target)
    ]
    if target.kind == RESOURCES and is_evasive_uri(target.name):
        conditions.append("the URI is written without .. segments, encoded / . \\ and spaces")
    what = f"{target.kind[:-1]} {target.name!r} on server {server!r}"
    conditions.append(f"agent {agent_id!r} is granted {what}")
    return conditions


# -- simulating other grants


class SimulatedVerdict(StrEnum):
    """What grants say about a call of which only the target is known."""

    ALLOW = "allow"
    DENY = "deny"
    DEPENDS = "depends"  # on what a condition reads of the call


class PastCalls(NamedTuple):
    """Calls that were made, so often."""

    target: CallTarget
    times: int = 1


class SimulatedChange(NamedTuple):
    """Calls of one target that a change would have decided otherwise."""

    target: CallTarget
    before: SimulatedVerdict
    after: SimulatedVerdict
    times: int


class Simulation(NamedTuple):
    """What a change would have done."""

    changes: list[SimulatedChange]
    calls: int
    unchanged: int


def simulate(
    before: GrantSet, after: GrantSet, calls: Iterable[PastCalls], now: float
) -> Simulation:
    """Compare two sets of grants over calls that were made.

    The audit does not keep arguments: where a condition reads those, or anything else of the call
    itself, the answer is that it depends. Tokens and approvals are taken as given.
    """
    times: Counter[tuple[str, str, str]] = Counter()
    targets: dict[tuple[str, str, str], CallTarget] = {}
    for call in calls:
        key = call.target.kind, call.target.server_id, call.target.name
        targets[key] = call.target
        times[key] += call.times
    changes, unchanged = [], 0
    for key, count in times.items():
        target = targets[key]
        was, is_now = judge(before, target, now), judge(after, target, now)
        if was is is_now:
            unchanged += count
        else:
            changes.append(SimulatedChange(target, was, is_now, count))
    changes.sort(key=lambda one: (-one.times, one.target.server, one.target.name))
    return Simulation(changes, times.total(), unchanged)


def judge(grants: GrantSet, target: CallTarget, now: float) -> SimulatedVerdict:
    """Say what grants decide about any call of a target."""
    where = target.kind, target.server_id, target.name
    found = SimulatedVerdict.DENY
    for grant in grants.matching(*where):
        if not grant.is_live(now):
            continue
        condition = grants.conditions.get(grant.id)
        if condition is None:
            return SimulatedVerdict.ALLOW
        if condition.is_static:
            if condition.find_failure(ConditionSubject(grants, target, None), now) is None:
                return SimulatedVerdict.ALLOW
        elif grants.is_possible(grant, *where):
            found = SimulatedVerdict.DEPENDS
    return found
