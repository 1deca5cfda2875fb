"""Routes ``/api/v1/mcp/circuit-breakers``: the circuits of servers and tools, and their reset."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mcp_junction.api.models import format_time
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    OfServer,
    ServerRef,
    caller,
    find_governed,
    mcp_error_responses,
    page_as_array,
    read_model,
)
from mcp_junction.errors import RequestError
from mcp_junction.governance.circuits import Circuits
from mcp_junction.resilience.breaker import BreakerRow
from mcp_junction.web.messages import Response
from mcp_junction.web.parameters import PathParameter, QueryParameter
from mcp_junction.web.routing import Router, get, post

_RESET: Final = "/reset"
OfTool = Annotated[
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
    tool_name: OfTool = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response[list[CircuitBreakerMetrics]]:
    wanted = None if server_id is None else context.registry.find(server_id).id
    shown = _show(context, _circuits(context).breakers.rows(wanted, tool_name))
    found, headers = page_as_array(request, shown, _key, limit, cursor)
    return Response(list(found), headers=headers)


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
    circuits, server, who = _circuits(context), context.registry.find(server_id), caller(request)
    act = context.registry.audit.act(
        who.id,
        who.role.value,
        "circuit.reset",
        server_id=server.id,
        target=f"{server.name}.{tool}",
        detail={} if given.note is None else {"note": given.note},
    )
    async with act:
        return _show(context, circuits.reset(server.id, tool))


def _circuits(context: Context) -> Circuits:
    otherwise = "calls are not governed here, so there are no circuits"
    return find_governed(context, lambda governance: governance.circuits, otherwise)


def _show(context: Context, rows: list[BreakerRow]) -> list[CircuitBreakerMetrics]:
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
    return sorted(shown, key=_key)


def _key(row: CircuitBreakerMetrics) -> tuple[str, str]:
    return row.server_id, row.tool_name


ROUTES = Router(
    "/api/v1/mcp/circuit-breakers", route_handlers=[list_circuits, reset_circuit], tags=["mcp"]
)
