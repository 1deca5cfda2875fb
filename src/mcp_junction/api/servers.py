"""``/api/v1/aggregator/servers``: registering, changing and connecting servers; their tools."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from mcp_junction.api.call_errors import unavailable_error
from mcp_junction.api.conventions import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    IfMatch,
    Limit,
    ServerRef,
    caller,
    error_responses,
    page,
    parse_if_match,
    read_body,
    read_cursor,
    respond_with_etag,
    write_cursor,
)
from mcp_junction.api.errors import field_error, validation_error
from mcp_junction.api.models import (
    Classifying,
    Connecting,
    Disconnected,
    HistoryPage,
    Refreshed,
    Server,
    ServerPage,
    ToolPage,
    credential_model,
    format_time,
    history_model,
    server_model,
    source_server,
    tool_model,
)
from mcp_junction.api.requests import Disconnection, Nothing, ServerChange, ServerRegistration
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.tools import WithSchemas, by_position
from mcp_junction.config.registration import read_registration
from mcp_junction.errors import NotFound
from mcp_junction.listener.answers import server_instructions
from mcp_junction.redaction.payloads import redact_value
from mcp_junction.redaction.texts import redact_text
from mcp_junction.store.records import ServerRecord
from mcp_junction.upstream.state import ServerState, parse_state
from mcp_junction.upstream.upstream import Upstream
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import QueryParameter, Router, delete, get, patch, post

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

_EventNumber = Annotated[int, Meta(ge=0, lt=2**62)]


@post(
    opt=needs(Right.CHANGE_SERVERS, ServerRegistration),
    responses=error_responses("SERVER_ALREADY_EXISTS", has_body=True),
    summary="Register a server",
    description="Answers at once; the connection goes on in the background.",
)
async def register_server(request: AnyRequest, context: Context) -> Response[Server]:
    _, value = await read_body(request)
    made, problems = read_registration(value)
    if made is None:
        raise validation_error(problems)
    record = await context.registry.register(
        made, caller(request), auto_connect=made.auto_connect and made.enabled
    )
    return respond_with_etag(server_model(record), f"/api/v1/aggregator/servers/{record.id}")


@get(
    opt=needs(Right.READ_SERVERS),
    responses=error_responses(),
    summary="List servers",
)
async def list_servers(
    context: Context,
    status: Status = None,
    include_tools: WithTools = False,
    include_absent: WithAbsent = False,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ServerPage:
    wanted = None if status is None else _state(status)
    absent: dict[str, ServerRecord] = {}
    if include_absent and wanted in (None, ServerState.DISCONNECTED):
        absent = {record.id: record for record in await context.registry.absent.all()}
    records = sorted([*context.registry.all(wanted), *absent.values()], key=_by_name)
    found = page(records, _by_name, limit, cursor)
    shown = [await _shown(context, one, include_tools, one.id in absent) for one in found.items]
    return ServerPage(found.total, found.next_cursor, shown, shown)


@get(
    "/{server_id:str}",
    opt=needs(Right.READ_SERVERS),
    responses=error_responses("SERVER_NOT_FOUND"),
    summary="Show a server",
)
async def show_server(
    context: Context,
    server_id: ServerRef,
    include_tools: WithTools = False,
    include_absent: WithAbsent = False,
) -> Response[Server]:
    try:
        record, absent = context.registry.find(server_id), False
    except NotFound:
        if not include_absent:
            raise
        record, absent = await context.registry.absent.get(server_id), True
    shown = await _shown(context, record, include_tools, absent)
    server = None if absent else context.junction.servers.get(record.name)
    shown.instructions = None if server is None else _instructions(server)
    shown.last_heartbeat = None
    if server is not None:
        shown.last_heartbeat = format_time(context.registry.last_heartbeat(record.id))
        if shown.capabilities is None and server.greeting is not None:
            shown.capabilities = redact_value(server.greeting.capabilities)
    return respond_with_etag(shown)


@patch(
    "/{server_id:str}",
    opt=needs(Right.CHANGE_SERVERS, ServerChange),
    responses=error_responses(
        "SERVER_NOT_FOUND",
        "SERVER_ALREADY_EXISTS",
        "SERVER_OWNED_BY_FILE",
        "VERSION_CONFLICT",
        has_body=True,
    ),
    summary="Change a server",
    description="Only what is given changes. A masked value means: as before. A new name renames"
    " all the server's tools with it.",
)
async def change_server(
    request: AnyRequest, context: Context, server_id: ServerRef, if_match: IfMatch = None
) -> Response[Server]:
    _, value = await read_body(request)
    if not isinstance(value, dict):
        raise field_error("$", "must be an object")
    version = parse_if_match(if_match)
    record = await context.registry.change(server_id, value, caller(request), version)
    return respond_with_etag(server_model(record))


@delete(
    "/{server_id:str}",
    opt=needs(Right.CHANGE_SERVERS),
    responses=error_responses("SERVER_NOT_FOUND", "SERVER_OWNED_BY_FILE", "VERSION_CONFLICT"),
    summary="Remove a server and all its tools",
    description="A server of the config file is removed there; then it is absent, and can be"
    " removed here with its pins.",
)
async def remove_server(
    request: AnyRequest, context: Context, server_id: ServerRef, if_match: IfMatch = None
) -> None:
    await context.registry.remove(server_id, caller(request), parse_if_match(if_match))


@get(
    "/{server_id:str}/history",
    opt=needs(Right.READ_SERVERS),
    responses=error_responses("SERVER_NOT_FOUND"),
    summary="Show what happened to a server's connection, newest first",
)
async def show_history(
    context: Context, server_id: ServerRef, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> HistoryPage:
    before = None if cursor is None else read_cursor(cursor, tuple[_EventNumber])[0]
    found = await context.registry.history(server_id, limit + 1, before)
    total = await context.store.history.count(context.registry.find(server_id).id)
    items = [history_model(record) for record in found[:limit]]
    more = write_cursor((items[-1].id,)) if len(found) > limit else None
    return HistoryPage(total, more, items)


def _instructions(server: Upstream) -> str | None:
    """Return a server's instructions without its secrets; None when it has none."""
    return redact_text(server_instructions(server), server.definition) or None


async def _shown(context: Context, record: ServerRecord, with_tools: bool, absent: bool) -> Server:
    shown = server_model(record, absent=absent)
    if with_tools:
        whose, states = source_server(record), context.registry.tools.state_of
        tools = [] if absent else await context.registry.tools.all(record.id)
        shown.tools = [tool_model(one, whose, states(one), with_schema=False) for one in tools]
    server = None if absent else context.junction.servers.get(record.name)
    is_remote = server is not None and server.definition.transport != "stdio"
    source = context.credentials.source(server.definition) if server and is_remote else None
    shown.auth = None if source is None else credential_model(source.facts)
    return shown


def _by_name(record: ServerRecord) -> tuple[Any, ...]:
    return record.name, record.id


def _state(text: str) -> ServerState:
    try:
        return parse_state(text)
    except ValueError:
        raise field_error("status", f"must be one of {', '.join(ServerState)}") from None


@post(
    "/connect",
    status_code=200,
    opt=needs(Right.CHANGE_SERVERS, Nothing),
    responses=error_responses("SERVER_NOT_FOUND", has_body=True),
    summary="Connect a server",
    description="Answers when it is connected or has failed; `status` says which.",
)
async def connect_server(request: AnyRequest, context: Context, server_id: ServerRef) -> Connecting:
    return Connecting(*await context.registry.connect(server_id, caller(request)))


@post(
    "/disconnect",
    status_code=200,
    opt=needs(Right.CHANGE_SERVERS, Disconnection),
    responses=error_responses("SERVER_NOT_FOUND", has_body=True),
    summary="Disconnect a server",
    description="Calls under way may finish, for at most 30 s; with `force` they are cancelled.",
)
async def disconnect_server(
    request: AnyRequest, context: Context, server_id: ServerRef, body: Disconnection
) -> Disconnected:
    done = await context.registry.disconnect(server_id, caller(request), force=body.force)
    return Disconnected(*done)


@get(
    "/tools",
    opt=needs(Right.READ_SERVERS),
    responses=error_responses("SERVER_NOT_FOUND"),
    summary="List a server's tools",
    description="As they are stored: also of a server that is not connected.",
)
async def list_server_tools(
    context: Context,
    server_id: ServerRef,
    include_schemas: WithSchemas = False,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ToolPage:
    whose = source_server(context.registry.find(server_id))
    tools = sorted(await context.registry.tools.all(whose.id), key=by_position)
    found = page(tools, by_position, limit, cursor)
    states = context.registry.tools.state_of
    shown = [
        tool_model(tool, whose, states(tool), with_schema=include_schemas) for tool in found.items
    ]
    return ToolPage(found.total, found.next_cursor, shown)


@post(
    "/tools/refresh",
    status_code=200,
    opt=needs(Right.REFRESH_TOOLS, Nothing),
    responses=error_responses(
        "SERVER_NOT_FOUND", "SERVER_UNAVAILABLE", "SERVER_CONNECTION_FAILED", has_body=True
    ),
    summary="Discover a server's tools again",
)
async def refresh_tools(request: AnyRequest, context: Context, server_id: ServerRef) -> Refreshed:
    record = context.registry.find(server_id)
    if record.status == ServerState.DISCONNECTED:
        raise unavailable_error(record, "it is disconnected")
    changes = await context.registry.refresh(server_id, caller(request))
    return Refreshed(
        added=[tool.name for tool in changes.added],
        changed=[after.name for _, after in changes.changed],
        removed=[tool.name for tool in changes.removed],
        unchanged=changes.unchanged,
    )


@post(
    "/tools/classify",
    status_code=202,
    opt=needs(Right.REFRESH_TOOLS, Nothing),
    responses=error_responses("SERVER_NOT_FOUND", has_body=True),
    summary="Classify a server's tools again",
    description="Answers at once; it goes on in the background, and each tool keeps the skills it"
    " has until it has others. `tool.classified` events tell of them. With the setting"
    " `classifier` at `off` they wait until it is on again.",
)
async def classify_tools(
    request: AnyRequest, context: Context, server_id: ServerRef
) -> Classifying:
    return Classifying(await context.registry.skills.classify(server_id, caller(request)))


CONTROL_ROUTES = Router(
    "/{server_id:str}",
    route_handlers=[
        connect_server,
        disconnect_server,
        list_server_tools,
        refresh_tools,
        classify_tools,
    ],
)
ROUTES = Router(
    "/api/v1/aggregator/servers",
    route_handlers=[
        register_server,
        list_servers,
        show_server,
        change_server,
        remove_server,
        show_history,
        CONTROL_ROUTES,
    ],
    tags=["servers"],
)
