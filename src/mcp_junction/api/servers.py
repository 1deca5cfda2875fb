"""``/api/v1/aggregator``: registering, changing, connecting servers; ``/state``, ``/health``."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, post
from litestar.params import PathParameter, QueryParameter

from mcp_junction.api.calling import unavailable
from mcp_junction.api.errors import invalid, wrong
from mcp_junction.api.models import (
    Classifying,
    Connecting,
    Disconnected,
    Health,
    HistoryPage,
    Refreshed,
    Server,
    ServerPage,
    ToolPage,
    shown_health,
    shown_history,
    shown_server,
    shown_tool,
    source,
)
from mcp_junction.api.paging import USUAL, Cursor, Limit, page, read_cursor, write_cursor
from mcp_junction.api.requests import (
    AnyRequest,
    Disconnection,
    IfMatch,
    Nothing,
    ServerChange,
    ServerRegistration,
    etag,
    read_body,
    shaped,
    version_in,
)
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import InRoom, caller, options, outcomes
from mcp_junction.api.tools import WithSchemas, by_position
from mcp_junction.config.registration import read_registration
from mcp_junction.errors import CursorError, NotFound
from mcp_junction.listener.capabilities import server_instructions
from mcp_junction.redaction.texts import redact_text
from mcp_junction.registry.state import State
from mcp_junction.store.records import ServerRecord
from mcp_junction.upstream.server import Upstream
from mcp_junction.upstream.state import ServerState, parse_state

Ref = Annotated[
    str, PathParameter(max_length=300, description="The server's id (a UUID) or its name.")
]
Status = Annotated[
    str | None,
    QueryParameter(
        name="status", max_length=40, description="Only servers in this state; any case."
    ),
]
WithTools = Annotated[bool, QueryParameter(description="Show each server's tools too.")]
WithAbsent = Annotated[
    bool,
    QueryParameter(
        description="Also servers of an earlier config file that the current one does not name:"
        " they are kept with their pins, and are in no other list."
    ),
]


@post(
    opt=options(needs(Right.CHANGE_SERVERS), ServerRegistration),
    responses=outcomes("SERVER_ALREADY_EXISTS", bodied=True),
    summary="Register a server",
    description="Answers at once; the connection goes on in the background.",
)
async def register_server(request: AnyRequest, room: InRoom) -> Response[Server]:
    _, value = await read_body(request)
    made, problems = read_registration(value)
    if made is None:
        raise invalid(problems)
    record = await room.registry.register(
        made, caller(request), auto_connect=made.auto_connect and made.enabled
    )
    return _tagged(record, status=201)


@get(
    opt=needs(Right.READ_SERVERS),
    responses=outcomes(),
    summary="List servers",
)
async def list_servers(
    room: InRoom,
    status: Status = None,
    include_tools: WithTools = False,
    include_absent: WithAbsent = False,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> ServerPage:
    wanted = None if status is None else _state(status)
    absent: dict[str, ServerRecord] = {}
    if include_absent and wanted in (None, ServerState.DISCONNECTED):
        absent = {record.id: record for record in await room.registry.absent.all()}
    records = sorted([*room.registry.all(wanted), *absent.values()], key=_by_name)
    found = page(records, _by_name, limit, cursor)
    shown = [await _shown(room, one, include_tools, one.id in absent) for one in found.items]
    return ServerPage(found.total, found.next_cursor, shown, shown)


@get(
    "/{server_id:str}",
    opt=needs(Right.READ_SERVERS),
    responses=outcomes("SERVER_NOT_FOUND"),
    summary="Show a server",
)
async def show_server(
    room: InRoom,
    server_id: Ref,
    include_tools: WithTools = False,
    include_absent: WithAbsent = False,
) -> Response[Server]:
    try:
        record, absent = room.registry.find(server_id), False
    except NotFound:
        if not include_absent:
            raise
        record, absent = await room.registry.absent.get(server_id), True
    shown = await _shown(room, record, include_tools, absent)
    server = None if absent else room.junction.servers.get(record.name)
    shown.instructions = None if server is None else _instructions(server)
    return _tagged(record, shown=shown)


@patch(
    "/{server_id:str}",
    opt=options(needs(Right.CHANGE_SERVERS), ServerChange),
    responses=outcomes(
        "SERVER_NOT_FOUND",
        "SERVER_ALREADY_EXISTS",
        "SERVER_OWNED_BY_FILE",
        "VERSION_CONFLICT",
        bodied=True,
    ),
    summary="Change a server",
    description="Only what is given changes. A masked value means: as before. A new name renames"
    " all the server's tools with it.",
)
async def change_server(
    request: AnyRequest, room: InRoom, server_id: Ref, if_match: IfMatch = None
) -> Response[Server]:
    _, value = await read_body(request)
    if not isinstance(value, dict):
        raise wrong("$", "must be an object")
    version = version_in(if_match)
    return _tagged(await room.registry.change(server_id, value, caller(request), version))


@delete(
    "/{server_id:str}",
    opt=needs(Right.CHANGE_SERVERS),
    responses=outcomes("SERVER_NOT_FOUND", "SERVER_OWNED_BY_FILE", "VERSION_CONFLICT"),
    summary="Remove a server and all its tools",
    description="A server of the config file is removed there; then it is absent, and can be"
    " removed here with its pins.",
)
async def remove_server(
    request: AnyRequest, room: InRoom, server_id: Ref, if_match: IfMatch = None
) -> None:
    await room.registry.remove(server_id, caller(request), version_in(if_match))


@get(
    "/{server_id:str}/history",
    opt=needs(Right.READ_SERVERS),
    responses=outcomes("SERVER_NOT_FOUND"),
    summary="Show what happened to a server's connection, newest first",
)
async def show_history(
    room: InRoom, server_id: Ref, limit: Limit = USUAL, cursor: Cursor = None
) -> HistoryPage:
    before = None if cursor is None else _before(cursor)
    found = await room.registry.history(server_id, limit + 1, before)
    total = await room.registry.history_count(server_id)
    items = [shown_history(record) for record in found[:limit]]
    more = write_cursor((items[-1].id,)) if len(found) > limit else None
    return HistoryPage(total, more, items)


def _tagged(
    record: ServerRecord, status: int = 200, shown: Server | None = None
) -> Response[Server]:
    headers = etag(record.version)
    if status == 201:
        headers["location"] = f"/api/v1/aggregator/servers/{record.id}"
    return Response(shown or shown_server(record), status_code=status, headers=headers)


def _instructions(server: Upstream) -> str | None:
    """Return a server's instructions without its secrets; None when it has none."""
    return redact_text(server_instructions(server), server.definition) or None


async def _shown(room: InRoom, record: ServerRecord, with_tools: bool, absent: bool) -> Server:
    if not with_tools:
        return shown_server(record, absent=absent)
    tools = [] if absent else await room.registry.tools(record.id)
    whose = source(record)
    each = [shown_tool(one, whose, with_schema=False) for one in tools]
    return shown_server(record, each, absent=absent)


def _by_name(record: ServerRecord) -> tuple[Any, ...]:
    return record.name, record.id


def _state(text: str) -> ServerState:
    try:
        return parse_state(text)
    except ValueError:
        raise wrong("status", f"must be one of {', '.join(ServerState)}") from None


def _before(cursor: str) -> int:
    key = read_cursor(cursor)
    if len(key) != 1 or not isinstance(key[0], int) or not 0 <= key[0] < 2**62:
        raise CursorError("is not a cursor of this list")
    return key[0]


ROUTES = Router(
    "/api/v1/aggregator/servers",
    route_handlers=[
        register_server,
        list_servers,
        show_server,
        change_server,
        remove_server,
        show_history,
    ],
    tags=["servers"],
)


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


CONTROL_ROUTES = Router(
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


@get(
    "/state",
    opt=needs(Right.READ_SERVERS),
    responses=outcomes(),
    summary="Show how many servers and tools there are, and how they stand",
)
async def show_state(room: InRoom) -> State:
    return room.registry.state()


@get(
    "/health",
    opt=needs(Right.READ_SERVERS),
    responses=outcomes(),
    summary="Show the health of every server",
)
async def show_health(room: InRoom) -> Health:
    servers = [shown_health(record) for record in room.registry.all()]
    well = all(one.status == "CONNECTED" for one in servers if one.enabled)
    return Health("healthy" if well else "degraded", servers)


STATE_ROUTES = Router(
    "/api/v1/aggregator", route_handlers=[show_state, show_health], tags=["state"]
)
