"""Forward: make one attempt of a call. It may run more than once for one call.

It has the link and the adapter chosen; the adapter sends the attempt and reads the answer. The time
that is spent waiting for a link is not the attempt's: its timeout begins when there is one.
"""

from __future__ import annotations

from collections.abc import Awaitable

from mcp_junction.calls.attempt import Adapter, Attempt, LinkChoice, timeout_of
from mcp_junction.calls.call import Call, answer_with
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.catalog.items import Route
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.upstream import Upstream


class Forward:
    """The innermost stage."""

    def __init__(self, clock: Clock, deadlines: Deadlines, links: LinkChoice) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self._links = links

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        route = call.route
        assert route is not None, "resolve comes first"
        if call.ended_by is not None:  # between two attempts: there is no further one
            return answer_with(call.ended_by.counted(call.attempts, route.canonical))
        upstream = route.upstream
        link: Link | None = upstream.link
        if link is not None:
            adapter = self._links.adapter_for(call, upstream, link)
            if adapter is not None:
                return self._attempt(call, route, adapter, upstream, link)
        return self._wait(call, route)

    async def _wait(self, call: Call, route: Route) -> Outcome:
        """Wait for the link that this call takes, and make the attempt on it."""
        began = self._clock.now()
        chosen = await self._links.choose(call, route)
        call.waited += self._clock.now() - began
        if isinstance(chosen, Outcome):
            return chosen.counted(call.attempts, route.canonical)
        return await self._attempt(call, route, *chosen)

    def _attempt(
        self, call: Call, route: Route, adapter: Adapter, upstream: Upstream, link: Link
    ) -> Awaitable[Outcome]:
        call.attempts += 1
        call.sent_at = call.sent_at or self._clock.now()
        attempt = adapter.attempt(call, route)
        timeout = timeout_of(call, route)
        if not timeout and not self._deadlines.idle:
            return adapter.send(attempt, upstream, link)
        self._deadlines.begin(attempt, timeout)
        return self._until_done(adapter, attempt, upstream, link)

    async def _until_done(
        self, adapter: Adapter, attempt: Attempt, upstream: Upstream, link: Link
    ) -> Outcome:
        try:
            return await adapter.send(attempt, upstream, link)
        finally:
            self._deadlines.end(attempt)
