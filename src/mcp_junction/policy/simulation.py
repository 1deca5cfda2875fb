"""Simulation: what other grants would have decided about calls that were made.

The audit does not keep arguments: where a condition reads those, or anything else of the call
itself, the answer is that it depends. Tokens and approvals are taken as given. Pure: the calls and
both sets of grants are passed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from mcp_junction.policy.decision import CallTarget, ConditionSubject
from mcp_junction.policy.grant_set import GrantSet


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
    """Compare two sets of grants over calls that were made."""
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
