"""Authorizer: decides by the policy whether a call may be made, and asks again before each attempt.

What an agent does not see looks unknown to it, exactly as ``resolve`` answers an unknown name.
Whoever acts for an agent that it names is told that the call is denied, and why; so is an agent
whose call of a tool that it sees lacks a token. Nothing is spent, counted or stored here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.carried import NOTHING_CARRIED
from mcp_junction.calls.methods import OWN, TASKS
from mcp_junction.calls.stages.authorize import deny
from mcp_junction.calls.stages.resolve import refuse_unknown
from mcp_junction.catalog.items import ListKind, Route
from mcp_junction.governance.tool_facts import ToolFacts, ToolFactsCache
from mcp_junction.policy.decision import TOKEN, PolicyDecision
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.protocol.versions import INVALID_PARAMS, STATELESS
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome

_CONTINUED: Final = "it continues a call that was allowed"
_REVOKED: Final = "what allowed the call was revoked or has expired; ask for a new grant or token"
_NO_STATE: Final = b"null"
_NO_TASK: Final = "there is no such task"


class Authorizer:
    """Asks the policy about calls. Its methods ``authorize`` and ``recheck`` are stages."""

    def __init__(
        self, policy: LivePolicy, facts: ToolFactsCache, now: Callable[[], float] = time.time
    ) -> None:
        self._policy = policy
        self._facts = facts
        self._now = now

    def decide(self, call: Call, route: Route, kind: ListKind) -> tuple[ToolFacts, PolicyDecision]:
        """Decide whether the caller of ``call`` may call something, which may be a fallback."""
        facts = self._facts.of(route, kind)
        return facts, self._decide(call, facts)

    def _decide(self, call: Call, facts: ToolFacts) -> PolicyDecision:
        carried = call.carried
        return self._policy.decide(
            call.caller.principal,
            carried.agent_id,
            facts.target,
            self._now(),
            presented=carried.token,
            has_idempotency_key=carried.idempotency_key is not None,
        )

    # -- before anything else is done

    def authorize(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        """Pass on a call that the policy allows; refuse any other."""
        kind, route, policy = call.address.kind, call.route, self._policy
        if kind is OWN:
            return following(call)
        assert route is not None, "resolve comes first"
        if kind is TASKS:
            return self._authorize_task(call, following)
        call.facts = facts = self._facts.of(route, kind)
        call.policy_version = policy.version
        if call.carried is NOTHING_CARRIED:
            decision = policy.decide(call.caller.principal, None, facts.target, self._now())
        else:
            decision = self._decide(call, facts)
        call.decision = decision
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

    def recheck(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        """Refuse an attempt of a call that is not allowed any more."""
        if call.policy_version == self._policy.version and not (call.attempts or call.is_resume):
            return following(call)
        refusal = self.find_refusal(call)
        return following(call) if refusal is None else refusal

    def find_refusal(self, call: Call) -> Awaitable[Outcome] | None:
        """Ask the policy again; return the answer to a call that it does not allow any more."""
        facts = call.facts
        if facts is None or call.decision is None:  # only who may use all was let pass so
            return None
        call.policy_version = self._policy.version
        decision = self._decide(call, facts)
        if decision.rule == TOKEN and self._has_passed(call, facts, decision.agent_id):
            decision = _continue(decision)
        call.decision = decision
        return None if decision.allowed else deny(call, _REVOKED)

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
    return _refuse_task() if call.address.kind is TASKS else refuse_unknown(call)


async def _refuse_task() -> Outcome:
    return outcomes.failed(INVALID_PARAMS, _NO_TASK, Delivery.NOT_SENT)
