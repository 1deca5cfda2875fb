"""Route ``/api/v1/mcp/register``: registers a server with the tools that it declares."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from mcp_junction.api.conventions import (
    AnyRequest,
    Context,
    caller,
    mcp_error_responses,
    read_body,
    to_model,
)
from mcp_junction.api.errors import field_error
from mcp_junction.api.mcp_tools import MCPTool, SchemaDiagnostic, show_tool
from mcp_junction.api.requests import Ref
from mcp_junction.api.rights import Right, needs
from mcp_junction.registry.server_registration import MAX_TOOLS, ServerDeclaration
from mcp_junction.web.routing import Router, post

_SCHEMA: Final = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 10}},
    "required": ["query"],
}
_TOOL: Final = {"name": "search", "schema": _SCHEMA, "version": "1.0.0"}
Versions = str | list[str]


class RegisterServerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A server with its tools. The same again changes nothing."""

    server_id: Annotated[
        Ref, Meta(description="Its name; or the id of one that is known.", examples=["context7"])
    ]
    version: Annotated[str, Meta(min_length=1, max_length=200, examples=["1.0.0"])]
    capabilities: Annotated[
        list[Any] | dict[str, Any],
        Meta(description="What it can do.", examples=[["search", "documentation"]]),
    ] = []
    tools: Annotated[
        list[dict[str, Any]],
        Meta(
            max_length=MAX_TOOLS,
            description="Each has a name, the JSON Schema of its arguments (draft 2020-12 or 7)"
            " and maybe a version, `enabled`, and what else a list of tools has.",
            examples=[[_TOOL]],
        ),
    ] = []
    connection: Annotated[
        dict[str, Any] | None,
        Meta(
            description="How to reach it: `transport_type`, `connection_config` and the options of"
            " `POST /api/v1/aggregator/servers`. Without it a new server's tools are known, and"
            " calls of them are answered 503.",
            examples=[
                {"transport_type": "HTTP", "connection_config": {"url": "https://mcp.example/mcp"}}
            ],
        ),
    ] = None
    metadata: Annotated[dict[str, Any], Meta(description="Anything else to keep.")] = {}
    versions: Annotated[
        Versions | dict[str, Versions],
        Meta(
            description="Which versions are compatible: ranges for all of its tools, or by tool.",
            examples=[{"search": ">=1,<2"}],
        ),
    ] = {}


class RejectedToolShown(msgspec.Struct):
    """A tool that was not taken; or that was taken, and is disabled because of its version."""

    tool_name: str
    reason: Annotated[str, Meta(examples=["Invalid JSON schema"])]
    errors: list[SchemaDiagnostic]
    version: str | None


class RegistrationResult(msgspec.Struct):
    """Which tools were registered and which rejected. Incompatible ones stand in both lists."""

    server_id: Annotated[str, Meta(description="The server's name.", examples=["context7"])]
    registered_count: int
    rejected_count: int
    registered_tools: list[MCPTool]
    rejected_tools: list[RejectedToolShown]


class _RawTools(msgspec.Struct):
    tools: list[dict[str, Raw]] = []


@post(
    "/register",
    status_code=200,
    opt=needs(Right.CHANGE_SERVERS, RegisterServerRequest),
    responses=mcp_error_responses(
        "SERVER_ALREADY_EXISTS", "SERVER_OWNED_BY_FILE", "VERSION_CONFLICT", has_body=True
    ),
    summary="Register a server and its tools",
    description="Makes the server's record, or changes it. A tool with an invalid schema is"
    " rejected, the others are registered; one of an incompatible version is disabled. A connection"
    " is made in the background.",
)
async def register_tools(request: AnyRequest, context: Context) -> RegistrationResult:
    body, value = await read_body(request)
    given = to_model(value, RegisterServerRequest)
    if not given.server_id.isprintable():
        raise field_error("$.server_id", "must not contain control characters")
    principal = caller(request)
    found = await context.registrar.register(
        ServerDeclaration(
            ref=given.server_id,
            version=given.version,
            tools=msgspec.json.decode(body, type=_RawTools).tools,
            capabilities=given.capabilities,
            metadata=given.metadata,
            connection=given.connection,
            versions=given.versions if isinstance(given.versions, dict) else {"*": given.versions},
        ),
        principal,
    )
    tools = [show_tool(context, principal, one) for one in found.tools]
    rejected = [
        RejectedToolShown(
            one.tool_name,
            one.reason,
            [SchemaDiagnostic(**error) for error in one.errors],
            one.version,
        )
        for one in found.rejected
    ]
    return RegistrationResult(found.server, len(tools), len(rejected), tools, rejected)


ROUTES = Router("/api/v1/mcp", route_handlers=[register_tools], tags=["governed tools"])
