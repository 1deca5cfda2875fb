"""``/api/v1/aggregator/tools/…/changes``: what changed in a tool, and approving or blocking it.

A tool is named by its id, or by its namespaced name. A decision names the hash of the definition
that was looked at: if the tool has another one by then, nothing is decided.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Router, get, post
from litestar.params import PathParameter
from msgspec import Meta

from mcp_junction.api.access import Right, needs
from mcp_junction.api.bodies import AnyRequest, read_body, shaped
from mcp_junction.api.models import Paged, SourceServer, Tool, shown_tool, source
from mcp_junction.api.paging import USUAL, Cursor, Limit, page
from mcp_junction.api.routes import InRoom, caller, options, outcomes
from mcp_junction.api.shapes import DefinitionHash
from mcp_junction.catalog.pins import Change
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.registry.inspection import changes_of
from mcp_junction.store.records import ServerRecord, ToolRecord

ToolRef = Annotated[
    str,
    PathParameter(
        max_length=1_000, description="The tool's id (a UUID), or its name as `server.tool`."
    ),
]
_HASH = "5df1f1b0c8e9a7d64b3e2f1a0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d"


class ReviewedTool(msgspec.Struct):
    """A tool, and what a person must know to decide about it."""

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
    """What is different in a tool from what is pinned, and the tool as it is now."""

    changes: list[FieldChange]
    tool: Tool


@get(
    "/changes",
    opt=needs(Right.READ_SERVERS),
    responses=outcomes(),
    summary="List the tools that changed, are flagged or are quarantined",
)
async def list_changes(
    room: InRoom, limit: Limit = USUAL, cursor: Cursor = None
) -> ReviewedToolPage:
    servers = {record.id: record for record in room.registry.all()}
    tools = [one for one in await room.registry.reviews.all() if one.server_id in servers]

    def place(tool: ToolRecord) -> tuple[Any, ...]:
        return servers[tool.server_id].name, tool.name, tool.id

    found = page(sorted(tools, key=place), place, limit, cursor)
    shown = [ReviewedTool(**_review_fields(servers[one.server_id], one)) for one in found.items]
    return ReviewedToolPage(found.total, found.next_cursor, shown)


@get(
    "/{tool_id:str}/changes",
    opt=needs(Right.READ_SERVERS),
    responses=outcomes("TOOL_NOT_FOUND", "TOOL_AMBIGUOUS"),
    summary="Show what changed in a tool since it was pinned",
    description="Field by field, old and new. `hash` is what to approve or to block.",
)
async def show_changes(room: InRoom, tool_id: ToolRef) -> ToolReview:
    server, tool = await _find_tool(room, tool_id)
    changes = [_field_change(change) for change in changes_of(tool)]
    whole = shown_tool(tool, source(server), with_schema=True)
    return ToolReview(**_review_fields(server, tool), changes=changes, tool=whole)


@post(
    "/{tool_id:str}/approve",
    status_code=200,
    opt=options(needs(Right.APPROVE_TOOLS), DefinitionHash),
    responses=outcomes("TOOL_NOT_FOUND", "TOOL_AMBIGUOUS", "TOOL_CHANGED", bodied=True),
    summary="Approve a tool's definition",
    description="It is pinned, and the tool can be called. 409 if the tool has another by now.",
)
async def approve_tool(request: AnyRequest, room: InRoom, tool_id: ToolRef) -> Tool:
    digest = shaped((await read_body(request))[1], DefinitionHash).hash
    server, tool = await _find_tool(room, tool_id)
    actor = caller(request)
    record = await room.registry.reviews.approve(server.id, tool.name, digest, actor)
    return shown_tool(record, source(server), with_schema=True)


@post(
    "/{tool_id:str}/block",
    status_code=200,
    opt=options(needs(Right.APPROVE_TOOLS), DefinitionHash),
    responses=outcomes("TOOL_NOT_FOUND", "TOOL_AMBIGUOUS", "TOOL_CHANGED", bodied=True),
    summary="Keep a tool out until it is approved",
    description="Whatever its definition is by then, also one that was approved before.",
)
async def block_tool(request: AnyRequest, room: InRoom, tool_id: ToolRef) -> Tool:
    digest = shaped((await read_body(request))[1], DefinitionHash).hash
    server, tool = await _find_tool(room, tool_id)
    actor = caller(request)
    record = await room.registry.reviews.block(server.id, tool.name, digest, actor)
    return shown_tool(record, source(server), with_schema=True)


async def _find_tool(room: InRoom, ref: str) -> tuple[ServerRecord, ToolRecord]:
    """Find the one tool with this id or name. Raises RequestError."""
    try:
        found = await room.registry.reviews.find(ref)
    except NotFound:  # its server has been removed meanwhile
        found = []
    if not found:
        raise RequestError("TOOL_NOT_FOUND", "there is no such tool")
    if len(found) > 1:
        words = "several tools have this name; use the id of one of them"
        told = [{"id": tool.id, "server": server.name} for server, tool in found]
        raise RequestError("TOOL_AMBIGUOUS", words, {"candidates": told})
    return found[0]


def _review_fields(server: ServerRecord, tool: ToolRecord) -> dict[str, Any]:
    return {
        "id": tool.id,
        "name": f"{server.name}.{tool.name}",
        "original_name": tool.name,
        "source_server": source(server),
        "pin": server.pin,
        "hash": tool.hash,
        "pinned_hash": tool.pinned_hash,
        "quarantined": tool.quarantined,
        "blocked": tool.blocked,
        "approved": tool.approved_flags is not None,
        "flags": tool.flags,
    }


def _field_change(change: Change) -> FieldChange:
    before, after = (
        None if raw is None else msgspec.json.decode(raw) for raw in (change.before, change.after)
    )
    return FieldChange(change.op, change.path, before, after, str(change))  # type: ignore[arg-type]


ROUTES = Router(
    "/api/v1/aggregator/tools",
    route_handlers=[list_changes, show_changes, approve_tool, block_tool],
    tags=["tools"],
)
