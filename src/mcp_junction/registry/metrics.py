"""Collects all metrics for Prometheus, and State for REST.

A scrape reads what is in memory and asks no server. Disconnected servers are only counted, and a
server that does not answer has no response time: an old one would mislead. The metrics of calls
are in ``call_metrics.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import msgspec

from mcp_junction.app import Junction
from mcp_junction.calls.metrics import CallMetrics
from mcp_junction.catalog.exposure import ListedTokens
from mcp_junction.health.verdict import WINDOW, HealthFacts
from mcp_junction.registry.call_metrics import families_of_calls
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.member import Member
from mcp_junction.resilience.breaker import BreakerRow
from mcp_junction.telemetry.exposition import (
    AnyFamily,
    MetricFamily,
    MetricKind,
    format_families,
)
from mcp_junction.upstream.state import ServerState

LABELLED: Final = 250
"""How many servers have series of their own: those that came first, so none is displaced."""
_PREFIX: Final = "mcp_aggregator_"
_CHECK: Final = f"{_PREFIX}health_check_"


def metrics_of(
    context: RegistryContext,
    junction: Junction,
    facts_of: Callable[[Member], HealthFacts],
    calls: CallMetrics,
) -> bytes:
    """Collect all metrics, as Prometheus reads them."""
    families: list[AnyFamily] = [*_servers(context), _sessions(junction)]
    families += [*_health(context, facts_of), *_audit(context), *_tasks(context)]
    families += [_unattributed(junction), *_webhook(junction), *_calls(context, junction, calls)]
    return format_families(families)


def _calls(context: RegistryContext, junction: Junction, calls: CallMetrics) -> list[AnyFamily]:
    def name_of(server_id: str) -> str:
        member = context.members.find(server_id)
        return calls.name_of(server_id) if member is None else member.name

    return families_of_calls(calls, circuits_of(junction), name_of)


def circuits_of(junction: Junction) -> list[BreakerRow]:
    """Return the circuits that there are: none where calls are not governed."""
    governance = junction.governance
    if governance is None or governance.circuits is None:
        return []
    return governance.circuits.breakers.rows()


def _servers(context: RegistryContext) -> list[MetricFamily]:
    count = Counter(member.status for member in context.members)
    tools = sum(member.tool_count for member in context.members)
    return [
        MetricFamily(
            f"{_PREFIX}servers_total",
            "Servers, by their status.",
            {state.value: count[state] for state in ServerState},
            "status",
        ),
        MetricFamily(f"{_PREFIX}tools_total", "Tools of all servers.", {"": tools}),
    ]


def _sessions(junction: Junction) -> MetricFamily:
    count = len(junction.clients.sessions)
    return MetricFamily(f"{_PREFIX}sessions", "Sessions of clients that are open.", {"": count})


def _health(
    context: RegistryContext, facts_of: Callable[[Member], HealthFacts]
) -> list[MetricFamily]:
    seconds: dict[str, float] = {}
    failed: dict[str, float] = {}
    healthy: dict[str, float] = {}
    reachable: dict[str, float] = {}
    wanted = [one for one in context.members if one.status is not ServerState.DISCONNECTED]
    for member in islice(wanted, LABELLED):
        name, facts = member.name, facts_of(member)
        failed[name] = facts.error_rate
        if facts.response_time_ms is not None and member.is_serving:
            seconds[name] = facts.response_time_ms / 1000
        if facts.healthy is not None:
            healthy[name] = int(facts.healthy)
        if facts.reachable is not None:
            reachable[name] = int(facts.reachable)
    omitted = max(0, len(wanted) - LABELLED)
    by_server = "server"
    return [
        MetricFamily(
            f"{_CHECK}response_time_seconds",
            "How long the last health check that was answered took.",
            seconds,
            by_server,
        ),
        MetricFamily(
            f"{_CHECK}error_rate",
            f"The part of the last {WINDOW} calls that failed.",
            failed,
            by_server,
        ),
        MetricFamily(f"{_CHECK}healthy", "1 while checks and calls go well.", healthy, by_server),
        MetricFamily(f"{_CHECK}reachable", "1 while there is an answer.", reachable, by_server),
        MetricFamily(f"{_CHECK}omitted_servers", "Servers beyond those labelled.", {"": omitted}),
    ]


def _audit(context: RegistryContext) -> list[MetricFamily]:
    audit = context.audit
    return [
        MetricFamily(
            f"{_PREFIX}audit_rows_lost_total",
            "Rows of the audit that were never stored.",
            {"": audit.lost},
            kind=MetricKind.COUNTER,
        ),
        MetricFamily(
            f"{_PREFIX}audit_rows_waiting",
            "Rows of the audit that are not stored yet.",
            {"": audit.waiting},
        ),
    ]


def _tasks(context: RegistryContext) -> list[MetricFamily]:
    supervision, label = context.supervision, "task"
    failures = supervision.failures
    down = {name: supervision.down_by_name[name] for name in failures}
    return [
        MetricFamily(
            f"{_PREFIX}task_failures_total",
            "How often long-lived tasks have failed; each time they are run again.",
            failures,
            label,
            MetricKind.COUNTER,
        ),
        MetricFamily(
            f"{_PREFIX}store_rows_unreadable",
            "Rows of the store that cannot be read and are left out.",
            {"": context.store.unreadable},
        ),
        MetricFamily(
            f"{_PREFIX}tool_settings_unverified",
            "Settings of tools whose signature is wrong; their tools are disabled.",
            {"": context.tool_settings.unverified},
        ),
        MetricFamily(f"{_PREFIX}tasks_down", "Long-lived tasks that do not run now.", down, label),
        MetricFamily(
            f"{_PREFIX}events_lost_total",
            "Events that were never stored.",
            {"": context.bus.lost},
            kind=MetricKind.COUNTER,
        ),
    ]


def _webhook(junction: Junction) -> list[MetricFamily]:
    governance = junction.governance
    webhook = None if governance is None else governance.webhook
    if webhook is None:
        return []
    ended = {"delivered": webhook.delivered, "failed": webhook.failed}
    return [
        MetricFamily(
            f"{_PREFIX}webhook_deliveries_total",
            "Deliveries of this process to the webhook that were accepted, or given up.",
            ended,
            "outcome",
            MetricKind.COUNTER,
        ),
        MetricFamily(
            f"{_PREFIX}webhook_deliveries_waiting",
            "Deliveries of this process that were not accepted yet.",
            {"": webhook.waiting},
        ),
    ]


def _unattributed(junction: Junction) -> MetricFamily:
    return MetricFamily(
        f"{_PREFIX}unattributed_messages_total",
        "Messages of servers dropped (log) or refused (question): whose they are is unknown.",
        junction.messages.unattributed,
        "kind",
        kind=MetricKind.COUNTER,
    )


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
    indexed: int = 0,
    classified: int = 0,
    tokens: ListedTokens | None = None,
) -> State:
    every = list(members)
    count = {state: sum(member.status is state for member in every) for state in ServerState}
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
        tokens_saved=0 if tokens is None else tokens.saved,
        tokens_listed=0 if tokens is None else tokens.listed,
        last_sync=None if last_sync is None else datetime.fromtimestamp(last_sync, UTC),
        health_check_interval_seconds=interval,
        uptime_seconds=uptime,
    )
