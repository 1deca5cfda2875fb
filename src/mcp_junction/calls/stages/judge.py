"""Authorizer: decides by the policy whether a call may be made, and asks again before each attempt.

What an agent does not see looks unknown to it, exactly as ``resolve`` answers an unknown name.
Whoever acts for an agent that it names is told that the call is denied, and why; so is an agent
whose call of a tool that it sees lacks a token. Nothing is spent, counted or stored here.
JudgedCall is what the conditions of grants can read of a call.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from mcp_junction.calls.call import NOTHING_CARRIED, Call, Handler
from mcp_junction.calls.methods import COMPLETE, NAMED, OF_TASKS, OWN, SUBSCRIBING, TASKS
from mcp_junction.calls.stages.authorize import deny
from mcp_junction.calls.stages.resolve import refuse_unknown
from mcp_junction.calls.stages.validate import refuse as refuse_arguments
from mcp_junction.catalog.items import ListKind, Route
from mcp_junction.errors import ArgumentsError
from mcp_junction.governance.tool_facts import ToolFacts, ToolFactsCache
from mcp_junction.policy.arguments import Arguments
from mcp_junction.policy.conditions import GrantCondition
from mcp_junction.policy.decision import (
    FOREVER,
    TOKEN,
    ConditionSubject,
    PolicyDecision,
    deny_by_conditions,
)
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import STATELESS
from mcp_junction.upstream.outcome import Outcome

_CONTINUED: Final = "it continues a call that was allowed"
_REVOKED: Final = "what allowed the call was revoked or has expired; ask for a new grant or token"
_NO_STATE: Final = b"null"
_MAX_DECIDED: Final = 20_000
_UNJUDGED: Final = frozenset((COMPLETE, *OF_TASKS, *SUBSCRIBING))
"""The methods that have no arguments to be judged."""


class JudgedCall(msgspec.Struct, frozen=True):
    """A call as the policy reads it.

    Its arguments are read in one way only, or refused, because they are sent as they are.
    """

    call: Call
    arguments: Arguments | None = None
    """Of a fallback target, what it is sent in place of the caller's."""

    def read_arguments(self) -> Arguments | None:
        """Return the arguments that are sent. Raises ArgumentsError."""
        if self.arguments is not None:
            return self.arguments
        return None if self.call.method in _UNJUDGED else self.call.read_arguments()

    def read_field(self, name: str) -> str | None:
        """Return a field of ``request``."""
        call = self.call
        if name == "endpoint":
            return call.caller.endpoint.name
        if name == "client":
            return frames.text(frames.members(call.caller.hello().client).get("name"))
        if name == "correlation_id":
            return call.correlation_id
        return call.carried.ticket_id if name == "ticket_id" else call.carried.task_id

    def read_claims(self) -> Mapping[str, Any]:
        """Return what the credential of the acting agent claims; nobody speaks for another."""
        principal = self.call.caller.principal
        is_own = self.call.carried.agent_id in (None, principal.id)
        return principal.claims.values if is_own else {}


class _DecisionByRoute(msgspec.Struct, frozen=True, gc=False):
    """What was decided about calls of one principal by one route that carry nothing."""

    version: int
    """That of the policy that decided."""
    generation: int
    """That of the settings of tools."""
    since: float
    until: float
    kind: ListKind
    facts: ToolFacts
    decision: PolicyDecision
    made_of: tuple[Principal, Route]
    """Keeps these alive: it is found by their ids."""
    condition: tuple[GrantCondition, GrantSet] | None = None
    """What each call has to meet, where the one grant that covers them has a condition."""


class Authorizer:
    """Asks the policy about calls; has the stages ``authorize`` and ``recheck``."""

    def __init__(
        self, policy: LivePolicy, facts: ToolFactsCache, now: Callable[[], float] = time.time
    ) -> None:
        self._policy = policy
        self._facts = facts
        self._now = now
        self._decided: dict[tuple[int, int], _DecisionByRoute] = {}
        """What was decided by the policy and the settings of tools as they were last."""
        self._decided_by = 0, 0

    def decide(
        self, call: Call, route: Route, kind: ListKind, arguments: Arguments | None = None
    ) -> tuple[ToolFacts, PolicyDecision]:
        """Decide whether the caller of ``call`` may call a fallback, with other ``arguments``.

        Raises ArgumentsError where a condition cannot judge the arguments.
        """
        facts = self._facts.of(route, kind)
        decision = self._decide(call, facts, arguments)
        return facts, self._continue(call, facts, decision) if call.is_resume else decision

    def _decide(
        self, call: Call, facts: ToolFacts, arguments: Arguments | None = None
    ) -> PolicyDecision:
        carried = call.carried
        return self._policy.decide(
            call.caller.principal,
            carried.agent_id,
            facts.target,
            self._now(),
            presented=carried.token,
            has_idempotency_key=carried.idempotency_key is not None,
            call=JudgedCall(call, arguments) if self._policy.conditional else None,
        )

    # -- before anything else is done

    def bind_authorize(self, following: Handler) -> Handler:
        """Bind the stage that passes on a call that the policy allows, and refuses any other."""
        decided, policy, now = self._decided, self._policy, self._now
        settings = self._facts.settings

        def authorize(call: Call) -> Awaitable[Outcome]:
            known = decided.get((id(call.caller.principal), id(call.route)))
            if (
                known is not None
                and known.version == policy.version
                and known.generation == settings.generation
                and known.since <= now() < known.until
                and call.address.kind is known.kind
                and call.carried is NOTHING_CARRIED
            ):
                if known.condition is not None:
                    return self._authorize_by_condition(call, known, *known.condition, following)
                call.facts = facts = known.facts
                call.decision, call.policy_version = known.decision, known.version
                call.is_plain = facts.is_plain and "requestState" not in call.params
                return following(call)
            if call.address.kind is OWN:
                return following(call)
            if call.address.kind is TASKS:
                return self._authorize_task(call, following)
            return self._authorize_anew(call, following)

        return authorize

    def _authorize_by_condition(
        self,
        call: Call,
        known: _DecisionByRoute,
        condition: GrantCondition,
        grants: GrantSet,
        following: Handler,
    ) -> Awaitable[Outcome]:
        """Decide about a call by the condition of the one grant that covers it."""
        call.facts, call.policy_version = known.facts, known.version
        target = known.facts.target
        subject = ConditionSubject(grants, target, JudgedCall(call))
        try:
            failure = condition.find_failure(subject, self._now())
        except ArgumentsError as error:
            return refuse_arguments(str(error), ())
        if failure is None:
            call.decision = known.decision
            call.is_plain = known.facts.is_plain and "requestState" not in call.params
            return following(call)
        (grant,) = known.decision.grants
        call.decision = denied = deny_by_conditions(grants, target, [(grant, failure)])
        return refuse(call, denied)

    def _keep(self, call: Call, route: Route, decision: PolicyDecision, now: float) -> None:
        """Remember a decision that holds for calls like this one, or does if a condition is met."""
        principal, facts = call.caller.principal, call.facts
        assert facts is not None
        until, condition = decision.valid_until, None
        if not decision.cached:
            condition = self._find_condition(call, facts, decision)
            if condition is None:
                return
            (grant,) = decision.grants
            until = FOREVER if grant.expires_at is None else grant.expires_at
        by = call.policy_version, self._facts.settings.generation
        if by != self._decided_by or len(self._decided) >= _MAX_DECIDED:
            self._decided.clear()  # some hold all grants of their agents, as they were
            self._decided_by = by
        made_of = principal, route
        self._decided[id(principal), id(route)] = _DecisionByRoute(
            *by, now, until, call.address.kind, facts, decision, made_of, condition
        )

    def _find_condition(
        self, call: Call, facts: ToolFacts, decision: PolicyDecision
    ) -> tuple[GrantCondition, GrantSet] | None:
        """Find the condition that has led to a decision, if one grant alone covers the call."""
        principal, target = call.caller.principal, facts.target
        is_usual = call.method in NAMED and not facts.is_high_risk
        if not self._policy.conditional or not is_usual or len(decision.grants) != 1:
            return None
        grants = self._policy.of(principal.grantee or principal.id)
        condition = grants.conditions.get(decision.grants[0].id)
        covering = grants.matching(target.kind, target.server_id, target.name)
        if condition is None or len(covering) != 1 or grants.agent_id != decision.agent_id:
            return None
        return condition, grants

    def _authorize_anew(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        """Ask the policy about a call, and keep the answer where that is good for the next one."""
        route, kind, now = call.route, call.address.kind, self._now()
        assert route is not None, "resolve comes first"
        call.policy_version = self._policy.version
        call.facts = facts = self._facts.of(route, kind)
        try:
            call.decision = decision = self._decide(call, facts)
        except ArgumentsError as error:
            return refuse_arguments(str(error), ())
        if call.carried is NOTHING_CARRIED:
            call.is_plain = facts.is_plain and "requestState" not in call.params
            if decision.allowed and route.item is not None:
                self._keep(call, route, decision, now)
        if decision.allowed or (decision.rule == TOKEN and _brings_ticket(call)):
            return following(call)
        return refuse(call, decision)

    def _authorize_task(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        """Decide about a task as about the call that made it, which had its token then."""
        if call.origin is None:  # its id is from before ids said what made it
            named = call.carried.agent_id
            decision = self._policy.decide_by_role(call.caller.principal, named)
        else:
            route, kind = call.origin
            call.facts = facts = self._facts.of(route, kind)
            decision = self._decide(call, facts)
        call.policy_version = self._policy.version
        if decision.rule == TOKEN:
            decision = _continue(decision)
        call.decision = decision
        return following(call) if decision.allowed else refuse(call, decision)

    # -- before each attempt, and before a parked call goes on

    def bind_recheck(self, following: Handler) -> Handler:
        """Bind the stage that refuses an attempt of a call that is not allowed any more."""
        policy = self._policy

        def recheck(call: Call) -> Awaitable[Outcome]:
            if call.policy_version == policy.version and not (call.attempts or call.is_resume):
                return following(call)
            refusal = self.find_refusal(call)
            return following(call) if refusal is None else refusal

        return recheck

    def find_refusal(self, call: Call) -> Awaitable[Outcome] | None:
        """Ask the policy again; return the answer to a call that it does not allow any more."""
        facts = call.facts
        if facts is None or call.decision is None:  # only who may use all was let pass so
            return None
        call.policy_version = self._policy.version
        try:
            decision = self._decide(call, facts)
        except ArgumentsError as error:
            return refuse_arguments(str(error), ())
        call.decision = decision = self._continue(call, facts, decision)
        return None if decision.allowed else deny(call, _REVOKED)

    def _continue(self, call: Call, facts: ToolFacts, decision: PolicyDecision) -> PolicyDecision:
        """Let a call go on that lacks only the token which it had when it was let pass."""
        if decision.rule == TOKEN and self._has_passed(call, facts, decision.agent_id):
            return _continue(decision)
        return decision

    def _has_passed(self, call: Call, facts: ToolFacts, agent_id: str) -> bool:
        """Whether the grant that let a call pass, with a token then, is still there."""
        if call.address.kind is TASKS:
            return True
        target, now = facts.target, self._now()
        grants = self._policy.of(agent_id).matching(target.kind, target.server_id, target.name)
        return any(grant.id == call.passed_by and grant.is_live(now) for grant in grants)


def _brings_ticket(call: Call) -> bool:
    """Whether a call says that it continues another one; ``resume`` checks that it does."""
    state = call.params.get("requestState")
    return state is not None and call.caller.era is STATELESS and bytes(state) != _NO_STATE


def _continue(decision: PolicyDecision) -> PolicyDecision:
    """Let what was begun go on though its token was used or has expired since."""
    return replace(decision, allowed=True, reason=_CONTINUED)


def refuse(call: Call, decision: PolicyDecision) -> Awaitable[Outcome]:
    """Answer a call that the policy does not allow."""
    if decision.is_visible or call.carried.agent_id is not None:
        return deny(call, decision.reason)
    call.route = None  # for the audit, too: it finds what was hidden by itself
    return refuse_unknown(call)
