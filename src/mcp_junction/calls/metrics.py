"""CallMetrics: counts every call of a tool as it ends, by its route. A sink of calls.

It costs half a microsecond a call. Labels come from the registry: servers and tools that exist. A
name that leads nowhere is counted without it. What the counts are used for: ``registry/metrics.py``
shows them to Prometheus, ``telemetry/metrics_history.py`` stores them.
"""

from __future__ import annotations

from typing import Final

from mcp_junction.calls.events import CALL_TOOL, CallEnded
from mcp_junction.catalog.items import Route
from mcp_junction.protocol.versions import (
    APPROVAL_NEEDED,
    CALL_TIMEOUT,
    CIRCUIT_OPEN,
    DENIED,
    LINK_LOST,
    RATE_LIMITED,
    SERVER_UNAVAILABLE,
    SIGN_IN_NEEDED,
)
from mcp_junction.resilience.failures import FailureKind
from mcp_junction.telemetry.tallies import (
    OTHER,
    CallTallies,
    Tally,
    ToolKey,
    add_bins,
    count_in_bins,
)
from mcp_junction.upstream.outcome import CANCELLED, RESULT, SUSPENDED

TOOL_FAILED: Final = "tool"
_ELSE: Final = "other"
ERROR_TYPES: Final = (
    "timeout",
    "authorization",
    "circuit_breaker",
    "not_found",
    "rate_limit",
    "transport",
    TOOL_FAILED,
    _ELSE,
)
"""The types of errors that are told apart."""
_SETTLED: Final = 500
"""Calls after which what was collected is put into bins."""
ROUTING_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
"""Seconds."""

_BY_FAILURE: Final = {
    FailureKind.LINK: "transport",
    FailureKind.UNAVAILABLE: "transport",
    FailureKind.SERVER_FAULT: "transport",
    FailureKind.BUSY: "transport",
    FailureKind.SESSION_LOST: "transport",
    FailureKind.TIMEOUT: "timeout",
    FailureKind.CALLER_DEADLINE: "timeout",
    FailureKind.RATE_LIMITED: "rate_limit",
    FailureKind.CREDENTIAL: "authorization",
    FailureKind.CIRCUIT_OPEN: "circuit_breaker",
    FailureKind.REFUSED: TOOL_FAILED,
    FailureKind.TOOL_ERROR: TOOL_FAILED,
    FailureKind.CANCELLED: _ELSE,
}
_BY_CODE: Final = {
    CALL_TIMEOUT: "timeout",
    DENIED: "authorization",
    APPROVAL_NEEDED: "authorization",
    SIGN_IN_NEEDED: "authorization",
    CIRCUIT_OPEN: "circuit_breaker",
    RATE_LIMITED: "rate_limit",
    LINK_LOST: "transport",
    SERVER_UNAVAILABLE: "transport",
}


class CallMetrics:
    """Counts calls."""

    def __init__(self) -> None:
        self.tallies = CallTallies()
        self._routings: list[float] = []
        self._routing_bins: dict[int, int] = {}
        self._routing_seconds = 0.0
        self._by_route: dict[Route | None, Tally] = {}
        self._server_names: dict[str, str] = {}

    def observe(self, ended: CallEnded) -> None:
        """Count a call that has ended; one that asks its client something goes on."""
        if ended.method != CALL_TOOL:
            return
        tally = self._by_route.get(ended.route) or self._open(ended)
        if tally is None:
            return
        outcome, routings = ended.outcome, self._routings
        if outcome.kind is not RESULT:
            if outcome.kind is SUSPENDED:
                return
            tally.count_error(classify_error(ended))
        elif ended.read_tool_error or (ended.read_tool_error is None and ended.is_tool_error):
            tally.count_error(TOOL_FAILED)
        tally.times.append(ended.seconds * 1000)
        routings.append(ended.routing_seconds)
        if outcome.attempts != 1:
            _count_attempts(tally, ended)
        if len(routings) >= _SETTLED:
            self._settle()

    def take_minute(self) -> dict[ToolKey, Tally]:
        """Return what was counted since the last time, by server and tool."""
        self._by_route = {}  # which also lets go of routes that nobody has any more
        return self.tallies.take_minute()

    def routing(self) -> tuple[list[int], float]:
        """Return how many calls were sent within each of ``ROUTING_BOUNDS`` and ever; their sum."""
        self._settle()
        bins = self._routing_bins
        ends = range(len(ROUTING_BOUNDS) + 1)
        counts = [sum(n for place, n in bins.items() if place <= end) for end in ends]
        return counts, self._routing_seconds

    def _settle(self) -> None:
        """Put what was collected into bins."""
        taken, self._routings = self._routings, []
        sent = [seconds for seconds in taken if seconds >= 0]
        self._routing_seconds += sum(sent)
        add_bins(self._routing_bins, count_in_bins(sent, ROUTING_BOUNDS))
        for tally in self._by_route.values():
            tally.settle()

    def name_of(self, server_id: str) -> str:
        """Return the name of a server whose tools were called, with which they are labelled."""
        return self._server_names.get(server_id, server_id)

    def _open(self, ended: CallEnded) -> Tally | None:
        """Return the tally of a route that has none yet; None where nothing is counted."""
        route = ended.route
        if route is None:
            return None if ended.is_own else self.tallies.open(OTHER)
        definition = route.upstream.definition
        self._server_names[definition.id] = definition.key
        tally = self._by_route[route] = self.tallies.open((definition.id, route.pair.name))
        return tally


def _count_attempts(tally: Tally, ended: CallEnded) -> None:
    """Count the attempts beyond the first, and whether another tool was called in its place."""
    is_fallback = ended.fallback is not None
    tally.fallbacks += is_fallback
    tally.retries += max(0, ended.outcome.attempts - 1 - is_fallback)


def classify_error(ended: CallEnded) -> str:
    """Return the type of error of a call that failed."""
    outcome = ended.outcome
    if ended.denial is not None or ended.hidden is not None:
        return "authorization"
    if outcome.kind is CANCELLED:
        return _ELSE
    if ended.is_unknown:
        return "not_found"
    failure = outcome.failure
    found = None if failure is None else _BY_FAILURE.get(failure.kind)
    if found is not None:
        return found
    if outcome.delivery is None and outcome.attempts:  # the server's own error
        return TOOL_FAILED
    return _BY_CODE.get(outcome.code, _ELSE)
