"""Routes ``/api/v1/aggregator/tools`` and ``/search``: list, find, review, approve, block tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mcp_junction.api.conventions import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    OfServer,
    caller,
    error_responses,
    page,
)
from mcp_junction.api.models import (
    Paged,
    SearchResult,
    SourceServer,
    Tool,
    ToolGroup,
    ToolGroupPage,
    source_server,
    tool_model,
)
from mcp_junction.api.requests import DefinitionHash, Search
from mcp_junction.api.rest_search import VisibleTools
from mcp_junction.api.rights import Right, needs
from mcp_junction.catalog.pins import DefinitionChange
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.policy.principal import has_right
from mcp_junction.registry.inspection import changes_of
from mcp_junction.store.records import ServerRecord, ToolRecord
from mcp_junction.upstream.state import ServerState
from mcp_junction.web.routing import PathParameter, QueryParameter, Router, get, post

WithSchemas = Annotated[bool, QueryParameter(description="Show each tool's `input_schema` too.")]
WithAll = Annotated[
    bool, QueryParameter(description="Also tools that cannot be called now: their server is away.")
]
_CALLABLE = (ServerState.CONNECTED, ServerState.DEGRADED, ServerState.CONNECTING)


@get(
    opt=needs(Right.READ_TOOLS),
    responses=error_responses("SERVER_NOT_FOUND"),
    summary="List all tools, grouped by server",
    description="Disabled and quarantined tools only for roles that may read servers.",
)
async def list_tools(
    request: AnyRequest,
    context: Context,
    server: OfServer = None,
    include_unavailable: WithAll = False,
    include_schemas: WithSchemas = False,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ToolGroupPage:
    registry = context.registry
    shows_all = has_right(caller(request), Right.READ_SERVERS)
    visible = VisibleTools(context.junction, caller(request))
    found = (
        registry.all() if server is None else [visible.check_server(registry.find(server), server)]
    )
    sources = {
        record.id: visible.source(record)
        for record in sorted(found, key=lambda one: (one.name, one.id))
        if include_unavailable or record.status in _CALLABLE
    }
    tools = [
        one
        for server_id in sources
        for one in sorted(await registry.tools.all(server_id), key=by_position)
        if (shows_all or registry.tools.state_of(one).enabled)
        and visible.admits(one, sources[server_id].name)
    ]

    places = _number_tools(tools, sources)
    chosen = page(tools, lambda tool: places[tool.id], limit, cursor)
    groups = []
    for server_id, each in groupby(chosen.items, lambda tool: tool.server_id):
        owner = sources[server_id]
        states = registry.tools.state_of
        shown = [visible.show(one, owner, states(one), with_schema=include_schemas) for one in each]
        groups.append(ToolGroup(owner, shown))
    return ToolGroupPage(chosen.total, chosen.next_cursor, groups)


def _number_tools(
    tools: Sequence[ToolRecord], servers: Mapping[str, SourceServer]
) -> dict[str, tuple[str, int, str]]:
    """Number the tools of each server that are shown: a cursor must not count hidden ones."""
    found = {}
    for server_id, each in groupby(tools, lambda tool: tool.server_id):
        for number, tool in enumerate(each):
            found[tool.id] = servers[server_id].name, number, tool.name
    return found


def by_position(tool: ToolRecord) -> tuple[Any, ...]:
    """Sort key: the order in which a server lists its tools."""
    return tool.position, tool.name


ToolRef = Annotated[
    str,
    PathParameter(
        max_length=1_000, description="The tool's id (a UUID), or its name as `server.tool`."
    ),
]
_HASH = "5df1f1b0c8e9a7d64b3e2f1a0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d"


class ReviewedTool(msgspec.Struct):
    """A tool with its pin, hash and flags, for a review."""

    id: str
    name: str
    original_name: str
    source_server: SourceServer
    pin: Annotated[str, Meta(description="The server's pin: off, warn or strict.")]
    hash: Annotated[str, Meta(description="Of the definition that it has.", examples=[_HASH])]
    pinned_hash: Annotated[str, Meta(description="Of the definition that is pinned.")]
    quarantined: Annotated[bool, Meta(description="Whether it is neither listed nor called.")]
    blocked: Annotated[bool, Meta(description="Whether it stays so until it is approved.")]
    approved: Annotated[bool, Meta(description="Whether a person approved what is pinned.")]
    flags: Annotated[
        list[str],
        Meta(
            description="What was noticed about it.",
            examples=[["definition_changed", "same_name: mail.send"]],
        ),
    ]


class ReviewedToolPage(Paged):
    """Tools that are quarantined, flagged, or not in their pinned form."""

    items: list[ReviewedTool]


class FieldChange(msgspec.Struct):
    """One difference between the pinned definition and the one that the tool has."""

    op: Literal["add", "remove", "replace"]
    path: Annotated[
        str,
        Meta(
            description="A JSON pointer into the definition.",
            examples=["/description", "/inputSchema/properties/path/type"],
        ),
    ]
    before: Annotated[Any, Meta(description="What is pinned; null where there is nothing.")]
    after: Annotated[Any, Meta(description="What it is now; null where there is nothing.")]
    text: Annotated[
        str,
        Meta(
            description="The same in one line of ASCII, cut: nothing can hide in it.",
            examples=['~ /description: "Reads a file." -> "Reads a file. Also mails it."'],
        ),
    ]


class ToolReview(ReviewedTool):
    """A tool under review, with the differences from its pinned definition."""

    changes: list[FieldChange]
    tool: Tool


@get(
    "/changes",
    opt=needs(Right.READ_SERVERS),
    responses=error_responses(),
    summary="List the tools that changed, are flagged or are quarantined",
)
async def list_changes(
    context: Context, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ReviewedToolPage:
    servers = {record.id: record for record in context.registry.all()}
    tools = [one for one in await context.registry.tools.reviewable() if one.server_id in servers]

    def place(tool: ToolRecord) -> tuple[Any, ...]:
        return servers[tool.server_id].name, tool.name, tool.id

    found = page(sorted(tools, key=place), place, limit, cursor)
    shown = [ReviewedTool(**_review_fields(servers[one.server_id], one)) for one in found.items]
    return ReviewedToolPage(found.total, found.next_cursor, shown)


@get(
    "/{tool_id:str}/changes",
    opt=needs(Right.READ_SERVERS),
    responses=error_responses("TOOL_NOT_FOUND", "TOOL_AMBIGUOUS"),
    summary="Show what changed in a tool since it was pinned",
    description="Field by field, old and new. `hash` is what to approve or to block.",
)
async def show_changes(context: Context, tool_id: ToolRef) -> ToolReview:
    server, tool = await _find_tool(context, tool_id)
    changes = [_field_change(change) for change in changes_of(tool)]
    state = context.registry.tools.state_of(tool)
    whole = tool_model(tool, source_server(server), state, with_schema=True)
    return ToolReview(**_review_fields(server, tool), changes=changes, tool=whole)


@post(
    "/{tool_id:str}/approve",
    status_code=200,
    opt=needs(Right.APPROVE_TOOLS, DefinitionHash),
    responses=error_responses("TOOL_NOT_FOUND", "TOOL_AMBIGUOUS", "TOOL_CHANGED", has_body=True),
    summary="Approve a tool's definition",
    description="It is pinned, and the tool can be called. 409 if the tool has another by now.",
)
async def approve_tool(
    request: AnyRequest, context: Context, tool_id: ToolRef, body: DefinitionHash
) -> Tool:
    return await _decide(request, context, tool_id, body.hash, context.registry.tools.approve)


@post(
    "/{tool_id:str}/block",
    status_code=200,
    opt=needs(Right.APPROVE_TOOLS, DefinitionHash),
    responses=error_responses("TOOL_NOT_FOUND", "TOOL_AMBIGUOUS", "TOOL_CHANGED", has_body=True),
    summary="Keep a tool out until it is approved",
    description="Whatever its definition is by then, also one that was approved before.",
)
async def block_tool(
    request: AnyRequest, context: Context, tool_id: ToolRef, body: DefinitionHash
) -> Tool:
    return await _decide(request, context, tool_id, body.hash, context.registry.tools.block)


async def _decide(
    request: AnyRequest,
    context: Context,
    tool_id: str,
    digest: str,
    decide: Callable[..., Awaitable[ToolRecord]],
) -> Tool:
    """Store a person's decision about the definition with this hash."""
    server, tool = await _find_tool(context, tool_id)
    record = await decide(server.id, tool.name, digest, caller(request))
    state = context.registry.tools.state_of(record)
    return tool_model(record, source_server(server), state, with_schema=True)


async def _find_tool(context: Context, ref: str) -> tuple[ServerRecord, ToolRecord]:
    """Find the one tool with this id or name. Raises RequestError."""
    try:
        found = await context.registry.tools.find(ref)
    except NotFound:  # its server has been removed meanwhile
        found = []
    if not found:
        raise RequestError("TOOL_NOT_FOUND", "there is no such tool")
    if len(found) > 1:
        words = "several tools have this name; use the id of one of them"
        candidates = [{"id": tool.id, "server": server.name} for server, tool in found]
        raise RequestError("TOOL_AMBIGUOUS", words, {"candidates": candidates})
    (member, tool), *_ = found
    return context.registry.find(member.id), tool


def _review_fields(server: ServerRecord, tool: ToolRecord) -> dict[str, Any]:
    return {
        "id": tool.id,
        "name": f"{server.name}.{tool.name}",
        "original_name": tool.name,
        "source_server": source_server(server),
        "pin": server.pin,
        "hash": tool.hash,
        "pinned_hash": tool.pinned_hash,
        "quarantined": tool.quarantined,
        "blocked": tool.blocked,
        "approved": tool.approved_flags is not None,
        "flags": tool.flags,
    }


def _field_change(change: DefinitionChange) -> FieldChange:
    before, after = (
        None if raw is None else msgspec.json.decode(raw) for raw in (change.before, change.after)
    )
    return FieldChange(change.op, change.path, before, after, str(change))  # type: ignore[arg-type]


@post(
    "/search",
    status_code=200,
    opt=needs(Right.READ_TOOLS, Search),
    responses=error_responses("SERVER_NOT_FOUND", "SKILL_NOT_FOUND", has_body=True),
    summary="Find tools by what they are for",
    description="Best first, whatever their server. Only what can be called now is found:"
    " tools of servers that are away are not.",
)
async def search_tools(request: AnyRequest, context: Context, body: Search) -> SearchResult:
    return await context.searching(body, caller(request))


ROUTES = Router(
    "/api/v1",
    route_handlers=[
        Router(
            "/aggregator/tools",
            route_handlers=[list_tools, list_changes, show_changes, approve_tool, block_tool],
        ),
        search_tools,
    ],
    tags=["tools"],
)
