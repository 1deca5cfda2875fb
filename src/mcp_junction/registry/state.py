"""State: all servers in one look. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from mcp_junction.catalog.tokens import ListedTokens
from mcp_junction.registry.member import Member
from mcp_junction.upstream.state import ServerState


class State(msgspec.Struct, frozen=True):
    """The aggregate, as it is answered."""

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
