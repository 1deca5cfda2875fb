"""RetryCalls: makes a failed attempt again where that is safe and may help (R-RETRY).

``resilience/retry.py`` decides; this waits and makes the attempt. No link replays a call that comes
through here, so all attempts are counted, checked and audited alike. What any attempt may have done
counts for the whole call: after one that may have run, the call never ends as not sent.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.events import CALL_TOOL
from mcp_junction.calls.failures import conclude, find_failure, may_have_run
from mcp_junction.catalog.items import Route
from mcp_junction.governance.tool_facts import ToolFactsCache
from mcp_junction.resilience.clock import Clock
from mcp_junction.resilience.failures import Failure, FailureKind
from mcp_junction.resilience.retry import (
    REFUSED_BEFORE,
    Retry,
    RetryBudget,
    RetryPolicy,
    decide_retry,
)
from mcp_junction.tasks import wait_unless
from mcp_junction.upstream.outcome import RESULT, Outcome

_REPEATABLE: Final = frozenset(
    ("prompts/get", "resources/read", "completion/complete", "tasks/get", "tasks/cancel")
)
"""The methods, beside calls of tools, that may be made again although they may have run."""
_MAX_BUDGETS: Final = 10_000


class RetryCalls:
    """The stage around the attempts of a call."""

    def __init__(
        self,
        policy: RetryPolicy,
        facts: ToolFactsCache,
        clock: Clock,
        chance: Callable[[], float] = random.random,
        settle: Callable[[Call, Outcome], None] | None = None,
        note_first: Callable[[Call, Outcome | None], None] | None = None,
    ) -> None:
        """``settle`` takes in how an attempt ended whose permit is in the call (``breaker.py``).

        ``note_first`` is told of a first attempt that ended without a result.
        """
        self._policy = policy
        self._facts = facts
        self._clock = clock
        self._chance = chance
        self._settle = settle
        self._note_first = note_first
        self._budgets: dict[str, RetryBudget] = {}

    def bind(self, following: Handler) -> Handler:
        budgets, settle, note_first = self._budgets, self._settle, self._note_first

        async def retry(call: Call) -> Outcome:
            call.is_retried = True
            try:
                outcome = await following(call)
            except BaseException:
                if note_first is not None:
                    note_first(call, None)
                raise
            if call.permit is not None and settle is not None:
                settle(call, outcome)
            route = call.route
            assert route is not None, "resolve comes first"
            budget = budgets.get(route.upstream.definition.id)
            if budget is None:
                budget = self._add_budget(route)
            budget.calls += 1
            if outcome.kind is RESULT:  # as nearly always
                return outcome
            return await self._go_on(call, route, following, outcome, budget)

        return retry

    def _add_budget(self, route: Route) -> RetryBudget:
        if len(self._budgets) >= _MAX_BUDGETS:  # of servers that came and went
            self._budgets.clear()
        budget = RetryBudget(self._clock.now())
        return self._budgets.setdefault(route.upstream.definition.id, budget)

    async def _go_on(
        self, call: Call, route: Route, following: Handler, outcome: Outcome, budget: RetryBudget
    ) -> Outcome:
        """Make further attempts while the last one failed and may be made again."""
        if self._note_first is not None:
            self._note_first(call, outcome)
        was_replayed = False
        failure = find_failure(outcome)
        while failure is not None:
            retry = self._decide(call, route, failure, budget, was_replayed)
            if not retry.again:
                break
            call.may_have_run = call.may_have_run or may_have_run(outcome)
            if retry.delay:
                await wait_unless(call.ending, self._clock.sleep(retry.delay))
            if call.ended_by is not None:
                outcome = call.ended_by
                break
            was_replayed = was_replayed or retry.reason is REFUSED_BEFORE
            latest = await following(call)
            if self._settle is not None:
                self._settle(call, latest)
            failure = find_failure(latest)
            if failure is not None and failure.kind is FailureKind.CIRCUIT_OPEN:
                break  # the failure that opened it says more
            outcome = latest
        return conclude(call, outcome, outcome.target or route.canonical)

    def _decide(
        self, call: Call, route: Route, failure: Failure, budget: RetryBudget, was_replayed: bool
    ) -> Retry:
        is_repeatable = call.method in _REPEATABLE
        if call.method == CALL_TOOL:
            facts = call.facts or self._facts.of(route, call.address.kind)
            is_repeatable = facts.hints.is_repeatable
        return decide_retry(
            failure,
            call.attempts,
            self._policy,
            budget,
            self._clock.now(),
            is_repeatable=is_repeatable,
            random=self._chance,
            deadline=call.deadline or None,
            spoke=call.spoke,
            is_resume=call.is_resume,
            was_replayed=was_replayed,
            trusts_retry_after=route.upstream.definition.trust_retry_after,
        )
