"""FallbackCalls: calls another tool where the one that was asked for fails (R-FALLBACK).

Targets are tried in the operator's order, once, after all retries. Each is authorized, limited and
validated like a call of its own, and has its own retries and circuits; a target's own fallbacks are
not followed. A target is called by a Call of its own, which shares the caller, the channel and the
deadline of the first; what ends the first ends it, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.events import CallEnded, CallSink
from mcp_junction.calls.failures import conclude, find_failure, is_servers_fault, may_have_run
from mcp_junction.calls.pipeline import Stage, compose
from mcp_junction.calls.stages.authorize import deny
from mcp_junction.calls.stages.judge import Authorizer
from mcp_junction.catalog.items import TOOLS, Route
from mcp_junction.errors import ArgumentsError
from mcp_junction.policy.arguments import map_arguments, read_arguments
from mcp_junction.policy.tool_settings import FallbackTarget
from mcp_junction.protocol.names import Pair
from mcp_junction.resilience.failures import FailureKind
from mcp_junction.upstream.outcome import Delivery, Outcome

_GONE: Final = (
    "the tool that was called in place of this one, and has asked, cannot be called any more; make"
    " the call again without its requestState"
)


class FallbackCalls:
    """The stage around a call and the targets that may take its place."""

    def __init__(
        self,
        authorizer: Authorizer,
        checks: Iterable[Stage] = (),
        close_intent: CallSink | None = None,
    ) -> None:
        """``checks`` are the stages that a target passes beside those that follow this one.

        ``close_intent`` records the end of a call in whose place another was made.
        """
        self._authorizer = authorizer
        self._checks = tuple(checks)
        self._close_intent = close_intent

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        facts = call.facts
        if facts is None:
            return following(call)
        if call.resumed_at is not None:
            return self._resume(call, call.resumed_at, facts.fallbacks, following)
        if not facts.fallbacks or call.is_resume:
            return following(call)
        return self._run(call, facts.fallbacks, following)

    async def _run(
        self, call: Call, targets: Iterable[FallbackTarget], following: Handler
    ) -> Outcome:
        outcome = await following(call)
        facts = call.facts
        assert facts is not None
        is_repeatable = facts.hints.is_repeatable
        last = outcome
        for target in targets:
            if not _may_go_on(call, last, is_repeatable):
                break
            substitute = self._derive(call, target)
            if substitute is None or substitute.facts is None:
                continue
            latest = await self._call(call, outcome, substitute, following)
            if _is_answer(latest) or call.ended_by is not None:
                return latest.counted(call.attempts, latest.target)
            if may_have_run(latest):
                last, is_repeatable = latest, substitute.facts.hints.is_repeatable
        return conclude(call, outcome, outcome.target)

    async def _resume(
        self,
        call: Call,
        where: tuple[str, str],
        targets: Iterable[FallbackTarget],
        following: Handler,
    ) -> Outcome:
        """Go on with a call at the target that asked.

        Its state, and the answers to its questions, are for no other server.
        """
        for target in targets:
            if where == (target.server_id, target.tool_name):
                substitute = self._derive(call, target)
                if substitute is not None:
                    substitute.intent = call.intent
                    return await self._follow(call, substitute, following)
        return await deny(call, _GONE)

    # -- a target

    def _derive(self, call: Call, target: FallbackTarget) -> Call | None:
        """Make the call of a target; None where it cannot be called, or this caller may not."""
        assert call.route is not None, "resolve comes first"
        route = _find_route(call, target)
        if route is None or route.pair == call.route.pair:
            return None
        params, sent = call.params, None
        try:
            if target.arguments is not None:
                arguments = call.arguments or read_arguments(params.get("arguments") or b"")
                raw = Raw(map_arguments(arguments, target.arguments))
                params, sent = {**params, "arguments": raw}, read_arguments(raw)
            facts, decision = self._authorizer.decide(call, route, TOOLS, sent)
        except ArgumentsError:  # they can be read in more than one way
            return None
        if not decision.allowed or facts.target.disabled:
            return None
        if decision.replay_only and not call.is_resume:
            return None
        if decision.needs_approval:  # nobody was asked about the target
            return None
        return msgspec.structs.replace(
            call,
            route=route,
            params=params,
            facts=facts,
            decision=decision,
            in_place_of=(call.route, call.params),
            arguments=sent,
            grant=None,
            flight=None,
            intent=None,
            attempts=0,
            waited=0.0,
            may_have_run=False,
            _ending=None,
        )

    async def _call(
        self, call: Call, outcome: Outcome, substitute: Call, following: Handler
    ) -> Outcome:
        """Call a target, and take over what became of it."""
        path = compose(self._checks, following) if self._checks else following
        latest = await self._follow(call, substitute, path)
        if substitute.intent is not None:
            if call.intent is not None and self._close_intent is not None:
                self._close_intent(_describe_end(call, outcome))
            call.intent = substitute.intent  # the end of the call closes it
        return latest

    @staticmethod
    async def _follow(call: Call, substitute: Call, following: Handler) -> Outcome:
        """Have a target called; what ends the call meanwhile ends that."""
        call.substitute = substitute
        try:
            latest = await following(substitute)
        except BaseException:
            call.may_have_run = call.may_have_run or substitute.delivery is not Delivery.NOT_SENT
            raise
        finally:
            call.substitute = None
            call.spoke = call.spoke or substitute.spoke
            call.attempts += substitute.attempts
            call.waited += substitute.waited
            call.sent_at = call.sent_at or substitute.sent_at
        call.may_have_run = call.may_have_run or (not _is_answer(latest) and may_have_run(latest))
        return latest


def _find_route(call: Call, target: FallbackTarget) -> Route | None:
    """Find a target by the id of its server and its own name, whatever the caller sees."""
    catalog = call.snapshot.catalog
    for key, offering in catalog.offerings.items():
        if offering.upstream.definition.id == target.server_id:
            view = catalog.view(catalog.canonical, TOOLS)
            name = view.name_of(Pair(key, target.tool_name))
            return None if name is None else view.find(name)
    return None


def _may_go_on(call: Call, outcome: Outcome, is_repeatable: bool) -> bool:
    """Whether another tool may be called after this end of the last one."""
    failure = find_failure(outcome)
    if failure is None or not is_servers_fault(failure):
        return False
    if call.spoke or call.ended_by is not None:
        return False
    return is_repeatable or not may_have_run(outcome)


def _is_answer(outcome: Outcome) -> bool:
    """Whether a target has answered, be it with an error of its own."""
    failure = find_failure(outcome)
    if failure is None:
        return True
    return not is_servers_fault(failure) and failure.kind is not FailureKind.OWN_REFUSAL


def _describe_end(call: Call, outcome: Outcome) -> CallEnded:
    return CallEnded(
        principal=call.caller.principal,
        method=call.method,
        name=call.address.name,
        route=call.route,
        is_own=False,
        arguments=call.params.get("arguments"),
        outcome=outcome,
        seconds=0.0,
        waited=call.waited,
        intent=call.intent,
        decision=call.decision,
        carried=call.carried,
        correlation_id=call.correlation_id,
    )
