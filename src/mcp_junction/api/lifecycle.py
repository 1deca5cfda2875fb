"""``/api/v1/aggregator/servers/{id}/connect`` and its kin: what a server is told to do."""

from __future__ import annotations

from litestar import Router, get, post

from mcp_junction.api.access import Right, needs
from mcp_junction.api.bodies import AnyRequest, read_body, shaped
from mcp_junction.api.calling import unavailable
from mcp_junction.api.models import (
    Classifying,
    Connecting,
    Disconnected,
    Refreshed,
    ToolPage,
    shown_tool,
    source,
)
from mcp_junction.api.paging import USUAL, Cursor, Limit, page
from mcp_junction.api.routes import InRoom, caller, options, outcomes
from mcp_junction.api.servers import Ref
from mcp_junction.api.shapes import Disconnection, Nothing
from mcp_junction.api.tools import WithSchemas, by_position
from mcp_junction.upstream.state import ServerState


@post(
    "/connect",
    status_code=200,
    opt=options(needs(Right.CHANGE_SERVERS), Nothing),
    responses=outcomes("SERVER_NOT_FOUND", bodied=True),
    summary="Connect a server",
    description="Answers when it is connected or has failed; `status` says which.",
)
async def connect_server(request: AnyRequest, room: InRoom, server_id: Ref) -> Connecting:
    shaped((await read_body(request, optional=True))[1], Nothing)
    return Connecting(*await room.registry.connect(server_id, caller(request)))


@post(
    "/disconnect",
    status_code=200,
    opt=options(needs(Right.CHANGE_SERVERS), Disconnection),
    responses=outcomes("SERVER_NOT_FOUND", bodied=True),
    summary="Disconnect a server",
    description="Calls under way may finish, for at most 30 s; with `force` they are cancelled.",
)
async def disconnect_server(request: AnyRequest, room: InRoom, server_id: Ref) -> Disconnected:
    how = shaped((await read_body(request, optional=True))[1], Disconnection)
    done = await room.registry.disconnect(server_id, caller(request), force=how.force)
    return Disconnected(*done)


@get(
    "/tools",
    opt=needs(Right.READ_SERVERS),
    responses=outcomes("SERVER_NOT_FOUND"),
    summary="List a server's tools",
    description="As they are stored: also of a server that is not connected.",
)
async def list_server_tools(
    room: InRoom,
    server_id: Ref,
    include_schemas: WithSchemas = False,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> ToolPage:
    whose = source(room.registry.find(server_id))
    tools = sorted(await room.registry.tools(whose.id), key=by_position)
    found = page(tools, by_position, limit, cursor)
    shown = [shown_tool(tool, whose, with_schema=include_schemas) for tool in found.items]
    return ToolPage(found.total, found.next_cursor, shown)


@post(
    "/tools/refresh",
    status_code=200,
    opt=options(needs(Right.REFRESH_TOOLS), Nothing),
    responses=outcomes(
        "SERVER_NOT_FOUND", "SERVER_UNAVAILABLE", "SERVER_CONNECTION_FAILED", bodied=True
    ),
    summary="Discover a server's tools again",
)
async def refresh_tools(request: AnyRequest, room: InRoom, server_id: Ref) -> Refreshed:
    shaped((await read_body(request, optional=True))[1], Nothing)
    record = room.registry.find(server_id)
    if record.status == ServerState.DISCONNECTED:
        raise unavailable(record, "it is disconnected")
    changes = await room.registry.refresh(server_id, caller(request))
    return Refreshed(
        added=[tool.name for tool in changes.added],
        changed=[after.name for _, after in changes.changed],
        removed=[tool.name for tool in changes.removed],
        unchanged=changes.unchanged,
    )


@post(
    "/tools/classify",
    status_code=202,
    opt=options(needs(Right.REFRESH_TOOLS), Nothing),
    responses=outcomes("SERVER_NOT_FOUND", bodied=True),
    summary="Classify a server's tools again",
    description="Answers at once; it goes on in the background, and each tool keeps the skills it"
    " has until it has others. `tool.classified` events tell of them. With the setting"
    " `classifier` at `off` they wait until it is on again.",
)
async def classify_tools(request: AnyRequest, room: InRoom, server_id: Ref) -> Classifying:
    shaped((await read_body(request, optional=True))[1], Nothing)
    return Classifying(await room.registry.skills.classify(server_id, caller(request)))


ROUTES = Router(
    "/api/v1/aggregator/servers/{server_id:str}",
    route_handlers=[
        connect_server,
        disconnect_server,
        list_server_tools,
        refresh_tools,
        classify_tools,
    ],
    tags=["servers"],
)
