"""The metrics of calls, as Prometheus reads them: read at each scrape from what was counted.

Labels are names of servers and tools that exist. The number of series is bounded: the busiest
pairs have series of their own, all others share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from mcp_junction.calls.metrics import ROUTING_BOUNDS, CallMetrics
from mcp_junction.resilience.breaker import BreakerRow, BreakerState
from mcp_junction.telemetry.exposition import (
    AnyFamily,
    HistogramFamily,
    HistogramSample,
    LabelledFamily,
    MetricFamily,
)
from mcp_junction.telemetry.tallies import BUCKETS, Tally, count_in_buckets

CIRCUITS: Final = 300
"""Circuits that have series: those that are not closed come first."""
_OF_TOOL: Final = ("server_id", "tool_name")
_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 2}

Labels = tuple[str, ...]


def families_of_calls(
    metrics: CallMetrics, circuits: Iterable[BreakerRow], name_of: Callable[[str], str]
) -> list[AnyFamily]:
    """Make the families; ``name_of`` names a server by its id."""
    counts, seconds = metrics.routing()
    return [
        *_families_of_tools(_by_label(metrics, name_of)),
        MetricFamily(
            "mcp_circuit_state",
            "The state of each circuit: 0 closed, 1 open, 2 half-open.",
            _states(circuits, name_of),
            "circuit_key",
        ),
        HistogramFamily(
            "mcp_aggregator_routing_duration_seconds",
            "How long it took until a call was sent to its server, in seconds.",
            (),
            ROUTING_BOUNDS,
            {(): HistogramSample(counts, seconds)},
        ),
    ]


def _families_of_tools(tallies: dict[Labels, Tally]) -> list[AnyFamily]:
    return [
        LabelledFamily(
            "mcp_invocations_total",
            "Calls of tools, by how they ended.",
            (*_OF_TOOL, "status"),
            _by_status(tallies),
        ),
        HistogramFamily(
            "mcp_invocation_latency_ms",
            "How long calls of tools took, in milliseconds.",
            _OF_TOOL,
            BUCKETS,
            {
                labels: HistogramSample(count_in_buckets(tally.bins), tally.total_ms)
                for labels, tally in tallies.items()
            },
        ),
        LabelledFamily(
            "mcp_retries_total",
            "Attempts of calls beyond the first.",
            _OF_TOOL,
            {labels: tally.retries for labels, tally in tallies.items()},
        ),
        LabelledFamily(
            "mcp_errors_total",
            "Calls of tools that failed, by the type of error.",
            (*_OF_TOOL, "error_type"),
            {
                (*labels, error): count
                for labels, tally in tallies.items()
                for error, count in tally.errors.items()
            },
        ),
    ]


def _by_label(metrics: CallMetrics, name_of: Callable[[str], str]) -> dict[Labels, Tally]:
    """Return the tallies by the names that label them: two servers may have had one name."""
    found: dict[Labels, Tally] = {}
    for (server_id, tool), tally in metrics.tallies.totals().items():
        name = name_of(server_id) if server_id else ""
        found.setdefault((name, tool), Tally()).add(tally)
    return found


def _by_status(tallies: dict[Labels, Tally]) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for labels, tally in tallies.items():
        found[*labels, "success"] = tally.calls - tally.failed
        found[*labels, "error"] = tally.failed
    return found


def _states(circuits: Iterable[BreakerRow], name_of: Callable[[str], str]) -> dict[str, float]:
    rows = sorted(circuits, key=lambda row: (row.state is BreakerState.CLOSED, row.circuit_key))
    return {
        f"{name_of(row.server_id)}:{row.tool_name}": _STATES[row.state] for row in rows[:CIRCUITS]
    }
