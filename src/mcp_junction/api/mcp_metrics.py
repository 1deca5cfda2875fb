"""Routes ``/api/v1/mcp/metrics`` and ``/circuit-breakers``: how calls go, over a time and now."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from mcp_junction.api.conventions import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    OfServer,
    ServerRef,
    caller,
    find_server_id,
    mcp_error_responses,
    parse_time,
    read_model,
    respond_with_page,
)
from mcp_junction.api.errors import field_error
from mcp_junction.api.models import format_time
from mcp_junction.api.rights import Right, needs
from mcp_junction.errors import RequestError
from mcp_junction.resilience.breaker import BreakerRow, BreakerState
from mcp_junction.telemetry.tallies import Tally, ToolKey, percentiles
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import PathParameter, QueryParameter, Router, get, post

RANGES: Final = {"15m": 900, "1h": 3_600, "24h": 86_400, "7d": 604_800}
"""The named ranges of time, in seconds."""
SHOWN: Final = 500
"""Tools that are listed one by one, the busiest first."""
_SHARES: Final = (0.5, 0.95, 0.99)

OfTool = Annotated[
    str | None, QueryParameter(max_length=1_000, description="Only tools with this name.")
]
TimeRange = Annotated[
    str,
    QueryParameter(
        max_length=90,
        description="`15m`, `1h`, `24h`, `7d`, or two times, `FROM/TO`. By the minute; by the hour"
        " where it is more than two days ago.",
    ),
]


class CallCounts(msgspec.Struct):
    """How many calls there were, how they ended, and how long they took."""

    calls: int
    errors: Annotated[dict[str, int], Meta(description="By type.", examples=[{"timeout": 2}])]
    error_rate: Annotated[float, Meta(description="Failed calls of all, 0 to 1.")]
    retries: int
    fallbacks: Annotated[int, Meta(description="Calls that another tool answered.")]
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class ToolCounts(CallCounts, kw_only=True):
    """The calls of one tool. Those that are not counted one by one: no server, `other`."""

    server_id: Annotated[str, Meta(description="The server's name.", examples=["context7"])]
    tool_name: Annotated[str, Meta(examples=["search"])]


class MetricsResponse(CallCounts, kw_only=True):
    """The calls of a time, in all and by tool, and the circuits that are open now."""

    since: str | None
    until: str | None
    open_circuits: Annotated[list[str], Meta(examples=[["context7:search"]])]
    tools: Annotated[list[ToolCounts], Meta(description="The busiest first.")]


@get(
    opt=needs(Right.READ_METRICS),
    responses=mcp_error_responses("SERVER_NOT_FOUND"),
    summary="Count calls over a time",
    description="What all processes on this store have counted; percentiles are right within 5 %.",
)
async def show_call_metrics(
    context: Context,
    server_id: OfServer = None,
    tool_name: OfTool = None,
    time_range: TimeRange = "1h",
) -> MetricsResponse:
    since, until = parse_range(time_range, time.time())
    names = context.server_names
    server = find_server_id(server_id, names)
    tallies = await context.registry.metrics_history.read(since, until, server, tool_name)
    if server is not None and server not in names and not tallies:
        raise RequestError("SERVER_NOT_FOUND", "there is no such server, nor calls of one")
    whole = Tally()
    for tally in tallies.values():
        whole.add(tally)
    return MetricsResponse(
        since=format_time(since),
        until=format_time(until),
        open_circuits=_open_circuits(context, names, server, tool_name),
        tools=_tools(tallies, names),
        **_counts(whole),
    )


def parse_range(text: str, now: float) -> tuple[float, float]:
    """Read a range of time: a named one, or two times."""
    if text in RANGES:
        return now - RANGES[text], now
    begin, _, end = text.partition("/")
    if not begin or not end:
        words = f"must be one of {', '.join(RANGES)}, or two times with a / between"
        raise field_error("time_range", words)
    since, until = (parse_time("time_range", part) or 0.0 for part in (begin, end))
    if until <= since:
        raise field_error("time_range", "must end after it begins")
    return since, until


def _tools(tallies: dict[ToolKey, Tally], names: dict[str, str]) -> list[ToolCounts]:
    busiest = sorted(tallies.items(), key=lambda item: (-item[1].calls, item[0]))[:SHOWN]
    return [
        ToolCounts(server_id=names.get(server, server), tool_name=tool, **_counts(tally))
        for (server, tool), tally in busiest
    ]


def _counts(tally: Tally) -> dict[str, Any]:
    calls, failed = tally.calls, tally.failed
    p50, p95, p99 = (_round(found) for found in percentiles(tally.bins, _SHARES))
    return {
        "calls": calls,
        "errors": dict(sorted(tally.errors.items())),
        "error_rate": round(failed / calls, 6) if calls else 0.0,
        "retries": tally.retries,
        "fallbacks": tally.fallbacks,
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
    }


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _open_circuits(
    context: Context, names: dict[str, str], server: str | None, tool: str | None
) -> list[str]:
    return sorted(
        f"{names.get(row.server_id, row.server_id)}:{row.tool_name}"
        for row in context.governance.circuits.breakers.rows()
        if row.state is BreakerState.OPEN
        and server in (None, row.server_id)
        and tool in (None, row.tool_name)
    )


# -- circuits

_RESET: Final = "/reset"
CircuitsOfTool = Annotated[
    str | None,
    QueryParameter(
        max_length=1_000, description="Only this tool's circuits; `*` is that of a whole server."
    ),
]
ResetPath = Annotated[
    str,
    PathParameter(
        description="The server's own name of the tool, which may hold `/`, and then `/reset`;"
        " `*/reset` closes all circuits of the server."
    ),
]


class CircuitBreakerMetrics(msgspec.Struct):
    """The state of one circuit."""

    server_id: Annotated[str, Meta(description="The server's name.", examples=["context7"])]
    tool_name: Annotated[
        str, Meta(description="`*` is the circuit of the whole server.", examples=["search"])
    ]
    circuit_key: Annotated[str, Meta(examples=["context7:search"])]
    state: Annotated[str, Meta(description="CLOSED, OPEN or HALF_OPEN.", examples=["OPEN"])]
    failure_count: Annotated[int, Meta(description="Failures in a row.", examples=[5])]
    success_count: Annotated[int, Meta(description="Successes while half-open.", examples=[0])]
    last_failure_time: Annotated[str | None, Meta(examples=["2026-02-03T04:05:06.789Z"])]
    opened_at: Annotated[str | None, Meta(examples=["2026-02-03T04:05:06.789Z"])]
    retry_at: Annotated[
        str | None,
        Meta(description="When calls pass again, to test it.", examples=["2026-02-03T04:06:06Z"]),
    ]


class CircuitReset(msgspec.Struct, forbid_unknown_fields=True):
    """Who resets a circuit may say why."""

    note: Annotated[
        Annotated[str, Meta(max_length=2_000)] | None,
        Meta(description="For the audit.", examples=["the server was repaired"]),
    ] = None


@get(
    opt=needs(Right.READ_POLICY),
    responses=mcp_error_responses("SERVER_NOT_FOUND"),
    summary="List circuits and their states",
    description="Those of tools that were called since the service started or that are not closed,"
    " in this process. The header `Link` leads to the next page.",
)
async def list_circuits(
    request: AnyRequest,
    context: Context,
    server_id: OfServer = None,
    tool_name: CircuitsOfTool = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response[list[CircuitBreakerMetrics]]:
    wanted = None if server_id is None else context.registry.find(server_id).id
    shown = _show_circuits(context, context.governance.circuits.breakers.rows(wanted, tool_name))
    return respond_with_page(request, shown, _circuit_key, limit, cursor, lambda one: one)


@post(
    "/{server_id:str}/{tool_path:path}",
    opt=needs(Right.CHANGE_POLICY, CircuitReset),
    status_code=200,
    responses=mcp_error_responses("SERVER_NOT_FOUND", has_body=True),
    summary="Close a circuit, or all of a server",
    description="Calls pass again at once. Answers with the circuits that were meant.",
)
async def reset_circuit(
    request: AnyRequest, context: Context, server_id: ServerRef, tool_path: ResetPath
) -> list[CircuitBreakerMetrics]:
    if not tool_path.endswith(_RESET) or len(tool_path) <= len(_RESET) + 1:
        raise RequestError("NOT_FOUND", "there is nothing here; see /api/v1/docs")
    tool = tool_path.removeprefix("/").removesuffix(_RESET)
    given = await read_model(request, CircuitReset, optional=True)
    circuits, who = context.governance.circuits, caller(request)
    server = context.registry.find(server_id)
    async with context.registry.audit.act(
        who.id,
        who.role.value,
        "circuit.reset",
        server_id=server.id,
        target=f"{server.name}.{tool}",
        detail={} if given.note is None else {"note": given.note},
    ):
        return _show_circuits(context, circuits.reset(server.id, tool))


def _show_circuits(context: Context, rows: list[BreakerRow]) -> list[CircuitBreakerMetrics]:
    """Make models with the names of servers, sorted by them; leave out servers that are gone."""
    names = context.server_names
    shown = [
        CircuitBreakerMetrics(
            names[row.server_id],
            row.tool_name,
            f"{names[row.server_id]}:{row.tool_name}",
            row.state.value,
            row.failure_count,
            row.success_count,
            format_time(row.last_failure_time),
            format_time(row.opened_at),
            format_time(row.retry_at),
        )
        for row in rows
        if row.server_id in names
    ]
    return sorted(shown, key=_circuit_key)


def _circuit_key(row: CircuitBreakerMetrics) -> tuple[str, str]:
    return row.server_id, row.tool_name


ROUTES = Router(
    "/api/v1/mcp",
    route_handlers=[
        Router("/metrics", route_handlers=[show_call_metrics], tags=["metrics"]),
        Router("/circuit-breakers", route_handlers=[list_circuits, reset_circuit], tags=["mcp"]),
    ],
)
