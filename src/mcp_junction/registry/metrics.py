"""Collects all metrics for Prometheus, and State for REST.

A scrape reads what is in memory and asks no server. Disconnected servers are only counted, and a
server that does not answer has no response time: an old one would mislead. Labels are names of
servers and tools that exist, and the number of series is bounded: of calls the busiest pairs have
series of their own, all others share one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import msgspec

from mcp_junction.app import Junction
from mcp_junction.calls.metrics import ROUTING_BOUNDS, CallMetrics
from mcp_junction.catalog.own_tools import ListedTokens
from mcp_junction.health.verdict import WINDOW, HealthFacts
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.member import Member
from mcp_junction.resilience.breaker import BreakerRow, BreakerState
from mcp_junction.telemetry.exposition import (
    AnyFamily,
    HistogramFamily,
    HistogramSample,
    LabelledFamily,
    MetricFamily,
    MetricKind,
    format_families,
)
from mcp_junction.telemetry.tallies import BUCKETS, Tally, count_in_buckets
from mcp_junction.upstream.state import ServerState

LABELLED: Final = 250
"""How many servers have series of their own: those that came first, so none is displaced."""
CIRCUITS: Final = 300
"""Circuits that have series: those that are not closed come first."""
_PREFIX: Final = "mcp_aggregator_"
_OF_TOOL: Final = ("server_id", "tool_name")
_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 2}

Labels = tuple[str, ...]


def metrics_of(
    context: RegistryContext,
    junction: Junction,
    facts_of: Callable[[Member], HealthFacts],
    calls: CallMetrics,
) -> bytes:
    """Collect all metrics, as Prometheus reads them."""

    def name_of(server_id: str) -> str:
        member = context.members.find(server_id)
        return calls.name_of(server_id) if member is None else member.name

    return format_families(
        [
            *_servers(context),
            _sessions(junction),
            *_health(context, facts_of),
            *_audit(context),
            *_tasks(context),
            _unattributed(junction),
            *_webhook(junction),
            *families_of_calls(calls, circuits_of(junction), name_of),
        ]
    )


def circuits_of(junction: Junction) -> list[BreakerRow]:
    """Return the circuits that there are: none where calls are not governed."""
    return [] if junction.governance is None else junction.governance.circuits.breakers.rows()


def _gauge(
    name: str, words: str, samples: Mapping[str, float] | float, label: str = ""
) -> MetricFamily:
    """Make a family of the service: of samples by the value of a label, or of a single one."""
    by_label = samples if isinstance(samples, Mapping) else {"": samples}
    return MetricFamily(f"{_PREFIX}{name}", words, by_label, label)


def _counter(
    name: str, words: str, samples: Mapping[str, float] | float, label: str = ""
) -> MetricFamily:
    family = _gauge(name, words, samples, label)
    return msgspec.structs.replace(family, kind=MetricKind.COUNTER)


# -- the service


def _servers(context: RegistryContext) -> list[MetricFamily]:
    count = Counter(member.status for member in context.members)
    by_status = {state.value: count[state] for state in ServerState}
    tools = sum(member.tool_count for member in context.members)
    return [
        _gauge("servers_total", "Servers, by their status.", by_status, "status"),
        _gauge("tools_total", "Tools of all servers.", tools),
    ]


def _sessions(junction: Junction) -> MetricFamily:
    return _gauge("sessions", "Sessions of clients that are open.", len(junction.clients.sessions))


def _health(
    context: RegistryContext, facts_of: Callable[[Member], HealthFacts]
) -> list[MetricFamily]:
    wanted = [one for one in context.members if one.status is not ServerState.DISCONNECTED]
    shown = [(one, facts_of(one)) for one in islice(wanted, LABELLED)]
    seconds = {
        member.name: facts.response_time_ms / 1000
        for member, facts in shown
        if facts.response_time_ms is not None and member.is_serving
    }
    failed = {member.name: facts.error_rate for member, facts in shown}
    healthy = {one.name: int(facts.healthy) for one, facts in shown if facts.healthy is not None}
    reachable = {
        one.name: int(facts.reachable) for one, facts in shown if facts.reachable is not None
    }
    check, label = "health_check_", "server"
    took = "How long the last health check that was answered took."
    rate = f"The part of the last {WINDOW} calls that failed."
    omitted = max(0, len(wanted) - LABELLED)
    return [
        _gauge(f"{check}response_time_seconds", took, seconds, label),
        _gauge(f"{check}error_rate", rate, failed, label),
        _gauge(f"{check}healthy", "1 while checks and calls go well.", healthy, label),
        _gauge(f"{check}reachable", "1 while there is an answer.", reachable, label),
        _gauge(f"{check}omitted_servers", "Servers beyond those labelled.", omitted),
    ]


def _audit(context: RegistryContext) -> list[MetricFamily]:
    lost, waiting = context.audit.lost, context.audit.waiting
    return [
        _counter("audit_rows_lost_total", "Rows of the audit that were never stored.", lost),
        _gauge("audit_rows_waiting", "Rows of the audit that are not stored yet.", waiting),
    ]


def _tasks(context: RegistryContext) -> list[MetricFamily]:
    supervision, label = context.supervision, "task"
    failures = supervision.failures
    down = {name: supervision.down_by_name[name] for name in failures}
    return [
        _counter(
            "task_failures_total",
            "How often long-lived tasks have failed; each time they are run again.",
            failures,
            label,
        ),
        _gauge(
            "store_rows_unreadable",
            "Rows of the store that cannot be read and are left out.",
            context.store.unreadable,
        ),
        _gauge(
            "tool_settings_unverified",
            "Settings of tools whose signature is wrong; their tools are disabled.",
            context.tool_settings.unverified,
        ),
        _gauge("tasks_down", "Long-lived tasks that do not run now.", down, label),
        _counter("events_lost_total", "Events that were never stored.", context.bus.lost),
    ]


def _webhook(junction: Junction) -> list[MetricFamily]:
    governance = junction.governance
    webhook = None if governance is None else governance.webhook
    if webhook is None:
        return []
    return [
        _counter(
            "webhook_deliveries_total",
            "Deliveries of this process to the webhook that were accepted, or given up.",
            {"delivered": webhook.delivered, "failed": webhook.failed},
            "outcome",
        ),
        _gauge(
            "webhook_deliveries_waiting",
            "Deliveries of this process that were not accepted yet.",
            webhook.waiting,
        ),
    ]


def _unattributed(junction: Junction) -> MetricFamily:
    return _counter(
        "unattributed_messages_total",
        "Messages of servers dropped (log) or refused (question): whose they are is unknown.",
        junction.messages.unattributed,
        "kind",
    )


# -- calls


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


class State(msgspec.Struct, frozen=True):
    """Totals over all servers, as REST answers them."""

    total_servers: int
    connected_servers: int
    degraded_servers: int
    disconnected_servers: int
    error_servers: int
    connecting_servers: int
    total_tools: int
    indexed_tools: int
    unindexed_tools: int
    classified_tools: int
    unclassified_tools: int
    tokens_saved: int
    tokens_listed: int
    last_sync: datetime | None
    health_check_interval_seconds: float
    uptime_seconds: float


def state_of(
    members: Iterable[Member],
    last_sync: float | None,
    interval: float,
    uptime: float,
    indexed: int,
    classified: int,
    tokens: ListedTokens,
) -> State:
    every = list(members)
    count = Counter(member.status for member in every)
    tools = sum(member.tool_count for member in every)
    return State(
        total_servers=len(every),
        connected_servers=count[ServerState.CONNECTED],
        degraded_servers=count[ServerState.DEGRADED],
        disconnected_servers=count[ServerState.DISCONNECTED],
        error_servers=count[ServerState.ERROR],
        connecting_servers=count[ServerState.CONNECTING],
        total_tools=tools,
        indexed_tools=min(indexed, tools),
        unindexed_tools=max(0, tools - indexed),
        classified_tools=min(classified, tools),
        unclassified_tools=max(0, tools - classified),
        tokens_saved=tokens.saved,
        tokens_listed=tokens.listed,
        last_sync=None if last_sync is None else datetime.fromtimestamp(last_sync, UTC),
        health_check_interval_seconds=interval,
        uptime_seconds=uptime,
    )
