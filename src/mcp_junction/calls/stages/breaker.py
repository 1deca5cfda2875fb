"""CircuitBreaker: lets an attempt pass while its server and its tool work (R-BREAKER).

The machine is ``resilience/breaker.py``; states at run time are kept by ``governance/failures.py``.
Whatever becomes of an attempt, it leaves its circuits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.events import CALL_TOOL
from mcp_junction.calls.failures import find_failure
from mcp_junction.catalog.items import Route
from mcp_junction.governance.failures import Circuits
from mcp_junction.protocol.versions import CIRCUIT_OPEN
from mcp_junction.resilience.breaker import WHOLE_SERVER
from mcp_junction.resilience.breakers import CircuitOpen, CircuitPair, Permit
from mcp_junction.resilience.failures import Failure, FailureKind
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import RESULT, Delivery, Outcome

_REFUSED: Final = Failure(FailureKind.CIRCUIT_OPEN, was_sent=False)
_ABANDONED: Final = Failure(FailureKind.CANCELLED)
_MAX_CACHED: Final = 20_000


class CircuitBreaker:
    """The stage around one attempt."""

    def __init__(
        self,
        circuits: Circuits,
        now: Callable[[], float] = time.time,
        *,
        is_settled: bool = False,
    ) -> None:
        """``is_settled``: ``retry`` settles calls of tools, so that most need no frame here."""
        self._is_settled = is_settled
        self._circuits = circuits
        self._breakers = circuits.breakers
        self._now = now
        self._pairs: dict[Route | str, CircuitPair] = {}
        """The circuits of tools that were called before, by their routes; of all other calls, by
        the id of their server."""

    def bind(self, following: Handler) -> Handler:
        pairs, admit, now, is_settled = (
            self._pairs,
            self._breakers.admit,
            self._now,
            self._is_settled,
        )

        def breaker(call: Call) -> Awaitable[Outcome]:
            route = call.route
            assert route is not None, "resolve comes first"
            pair = pairs.get(route)
            if pair is None:
                pair = self._find_pair(call, route)
            permit = admit(pair, call.carried.agent_id or call.caller.principal.id, now())
            if isinstance(permit, CircuitOpen):
                return _refuse(permit, route, call.attempts)
            if (
                pair.server.is_calm
                and pair.tool.is_calm
                and is_settled
                and call.method == CALL_TOOL
            ):
                call.permit = permit  # an attempt that is abandoned then changes nothing
                return following(call)
            return self._attempt(call, following, permit)

        return breaker

    async def _attempt(self, call: Call, following: Handler, permit: Permit) -> Outcome:
        """Make an attempt; whatever becomes of it, it leaves its circuits."""
        try:
            outcome = await following(call)
        except BaseException:
            self._end(permit, _ABANDONED)
            raise
        if outcome.kind is not RESULT or not permit.is_calm:
            self._end(permit, find_failure(outcome))
        return outcome

    def settle(self, call: Call, outcome: Outcome) -> None:
        """Take in how an attempt ended that has its permit in the call."""
        permit, call.permit = call.permit, None
        if permit is None or (
            outcome.kind is RESULT and permit.server.is_calm and permit.tool.is_calm
        ):
            return
        self._end(permit, find_failure(outcome))

    def _end(self, permit: Permit, failure: Failure | None) -> None:
        """Take in how an attempt ended, and have a change of state told."""
        self._breakers.end(permit, failure, self._now())
        if self._breakers.has_changes:
            self._circuits.announce_changes()

    def _find_pair(self, call: Call, route: Route) -> CircuitPair:
        # Only tools have circuits of their own: URIs and ids of tasks are chosen by callers.
        is_tool, server_id = call.method == CALL_TOOL, route.upstream.definition.id
        key = route if is_tool else server_id
        pair = self._pairs.get(key)
        if pair is None:
            if len(self._pairs) >= _MAX_CACHED:
                self._pairs.clear()
            name = route.pair.name if is_tool else None
            pair = self._pairs[key] = self._breakers.pair(server_id, name)
        return pair


async def _refuse(refusal: CircuitOpen, route: Route, attempts: int) -> Outcome:
    server, tool = route.pair
    is_whole = refusal.circuit.tool_name == WHOLE_SERVER
    what = f"server {server!r}" if is_whole else f"tool {tool!r} of server {server!r}"
    wait = max(refusal.wait, 1.0)  # while it is tested, nobody knows how long that takes
    hint = f"try again in {math.ceil(wait)} s, or have the circuit reset"
    refused = outcomes.failed(
        CIRCUIT_OPEN,
        f"{what} has failed too often, and is given a rest; {hint}",
        Delivery.NOT_SENT,
        failure=_REFUSED,
        retry_after_ms=math.ceil(wait * 1000),
        server=server,
        tool=refusal.circuit.tool_name,
        hint=hint,
    )
    return refused.counted(attempts, route.canonical)
