"""``/api/v1/aggregator/tools``: every tool of every server, grouped by server."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any

from litestar import Router, get
from litestar.params import QueryParameter

from mcp_junction.api.access import Right, needs
from mcp_junction.api.bodies import AnyRequest
from mcp_junction.api.models import SourceServer, ToolGroup, ToolGroupPage, shown_tool, source
from mcp_junction.api.paging import USUAL, Cursor, Limit, page
from mcp_junction.api.routes import InRoom, caller, outcomes
from mcp_junction.policy.roles import has_right
from mcp_junction.store.records import ToolRecord
from mcp_junction.upstream.state import ServerState

WithSchemas = Annotated[bool, QueryParameter(description="Show each tool's `input_schema` too.")]
OfServer = Annotated[
    str | None, QueryParameter(max_length=300, description="Only this server's: its id or name.")
]
WithAll = Annotated[
    bool, QueryParameter(description="Also tools that cannot be called now: their server is away.")
]
_CALLABLE = (ServerState.CONNECTED, ServerState.DEGRADED, ServerState.CONNECTING)


@get(
    opt=needs(Right.READ_TOOLS),
    responses=outcomes("SERVER_NOT_FOUND"),
    summary="List all tools, grouped by server",
    description="Those that are disabled or quarantined only to who may read servers.",
)
async def list_tools(
    request: AnyRequest,
    room: InRoom,
    server: OfServer = None,
    include_unavailable: WithAll = False,
    include_schemas: WithSchemas = False,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> ToolGroupPage:
    registry = room.registry
    shows_all = has_right(caller(request), Right.READ_SERVERS)
    records = registry.all() if server is None else [registry.find(server)]
    sources = {
        record.id: source(record)
        for record in sorted(records, key=lambda one: (one.name, one.id))
        if include_unavailable or record.status in _CALLABLE
    }
    tools = [
        one
        for server_id in sources
        for one in sorted(await registry.tools(server_id), key=by_position)
        if shows_all or is_offered(one)
    ]

    def place(tool: ToolRecord) -> tuple[Any, ...]:
        return (sources[tool.server_id].name, *by_position(tool))

    found = page(tools, place, limit, cursor)
    groups = [
        _group(sources[server_id], list(each), include_schemas)
        for server_id, each in groupby(found.items, lambda tool: tool.server_id)
    ]
    return ToolGroupPage(found.total, found.next_cursor, groups)


def is_offered(tool: ToolRecord) -> bool:
    """Whether a tool may be called: to who only calls, any other does not exist."""
    return tool.enabled and not tool.quarantined


def by_position(tool: ToolRecord) -> tuple[Any, ...]:
    """The order in which a server lists its tools."""
    return tool.position, tool.name


def _group(server: SourceServer, tools: list[ToolRecord], with_schema: bool) -> ToolGroup:
    return ToolGroup(server, [shown_tool(one, server, with_schema=with_schema) for one in tools])


ROUTES = Router("/api/v1/aggregator/tools", route_handlers=[list_tools], tags=["tools"])
