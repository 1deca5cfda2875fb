"""Routes ``/api/v1/mcp/tools``: known tools with their state, and what operators set for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mcp_junction.api.conventions import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    OfServer,
    ServerRef,
    caller,
    mcp_error_responses,
    respond_with_page,
)
from mcp_junction.api.policy_warnings import describe_unknown_tool, find_setting_warnings
from mcp_junction.api.requests import Ref
from mcp_junction.api.rights import Right, needs
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import TOOLS
from mcp_junction.errors import NotFound, RequestError
from mcp_junction.governance.schemas import check_schema
from mcp_junction.policy.principal import Principal, Role, has_right
from mcp_junction.policy.risk import RiskLevel
from mcp_junction.policy.tool_settings import MAX_FALLBACKS, SETTABLE, ToolSetting
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.known_tools import KnownTool
from mcp_junction.registry.member import INVALID_SCHEMA
from mcp_junction.slices import Slices
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import PathParameter, QueryParameter, Router, get, patch

_MAX_NAME: Final = 1_000
ToolPath = Annotated[
    str,
    PathParameter(
        description="The server's own name of the tool. It may hold `/`; `*` stands for all tools"
        " of the server, for which only `versions` can be set."
    ),
]
EnabledOnly = Annotated[
    bool, QueryParameter(description="Without tools that cannot be called (default true).")
]
_EXAMPLE_SCHEMA: Final = {"type": "object", "properties": {"query": {"type": "string"}}}


class ToolFallback(msgspec.Struct, forbid_unknown_fields=True):
    """A tool to call when the one that it is set for fails."""

    server_id: Annotated[Ref, Meta(description="Id or name.", examples=["mirror"])]
    tool_name: Annotated[str, Meta(min_length=1, max_length=_MAX_NAME, examples=["search"])]
    arguments: Annotated[
        dict[str, Any] | None,
        Meta(
            description="From each argument of this tool to a JSON Pointer into the caller's"
            ' arguments, or to `{"value": …}`. Without it the arguments are passed on as they are.',
            examples=[{"q": "/query", "limit": {"value": 10}}],
        ),
    ] = None


class ToolSettingsShown(msgspec.Struct):
    """What operators have set for a tool; null is not set."""

    enabled: bool | None
    risk: str | None
    read_only: bool | None
    idempotent: bool | None
    timeout_ms: int | None
    fallbacks: list[ToolFallback]
    versions: str | None


class ToolSettingsChanged(ToolSettingsShown):
    """What holds for a tool after a change."""

    warnings: Annotated[
        list[str] | UnsetType,
        Meta(description="Tools that it names and that are not known: it is set all the same."),
    ] = UNSET


class SchemaDiagnostic(msgspec.Struct):
    """One thing that is wrong with a schema, and where: a JSON Pointer into it."""

    path: Annotated[str, Meta(examples=["/properties/limit/type"])]
    message: str


class MCPTool(msgspec.Struct):
    """A tool that a server lists, or was registered with."""

    server_id: Annotated[str, Meta(description="The server's name.", examples=["context7"])]
    tool_name: Annotated[str, Meta(description="Its own name there.", examples=["search"])]
    description: str
    schema: Annotated[Any, Meta(description="Of its arguments.", examples=[_EXAMPLE_SCHEMA])]
    version: Annotated[
        str | None, Meta(description="Its own, or else its server's.", examples=["1.0.0"])
    ]
    enabled: Annotated[bool, Meta(description="Whether it can be called.")]
    risk: Annotated[str, Meta(description="`low` or `high`.", examples=["high"])]
    risk_reason: Annotated[str, Meta(examples=["its name contains 'create'"])]
    breaker: Annotated[str, Meta(description="The state of its circuit.", examples=["CLOSED"])]
    reason: Annotated[
        str | UnsetType,
        Meta(
            description="Why it is not enabled: disabled, incompatible_version, invalid_schema,"
            " not_offered, quarantined or setting_unverified.",
            examples=["incompatible_version"],
        ),
    ] = UNSET
    flags: Annotated[
        list[str] | UnsetType,
        Meta(description="What was noticed about it.", examples=[["invalid_schema: /type …"]]),
    ] = UNSET


class MCPToolDetails(MCPTool):
    """A tool with what operators have set for it, for those who may read that."""

    settings: ToolSettingsShown | UnsetType = UNSET
    diagnostics: Annotated[
        list[SchemaDiagnostic] | UnsetType, Meta(description="What is wrong with its schema.")
    ] = UNSET


class ToolSettingsChange(msgspec.Struct, forbid_unknown_fields=True):
    """What to set for a tool. null unsets: then its definition and its server decide."""

    enabled: Annotated[
        bool | UnsetType | None,
        Meta(description="false hides it; true shows it although its schema is invalid."),
    ] = UNSET
    risk: Annotated[
        RiskLevel | UnsetType | None, Meta(description="Only this lowers the risk of a tool.")
    ] = UNSET
    read_only: Annotated[
        bool | UnsetType | None, Meta(description="Whether it changes nothing.")
    ] = UNSET
    idempotent: Annotated[
        bool | UnsetType | None, Meta(description="Whether it may be run twice.")
    ] = UNSET
    timeout_ms: Annotated[
        Annotated[int, Meta(ge=1, le=86_400_000)] | UnsetType | None,
        Meta(description="How long one attempt may take."),
    ] = UNSET
    fallbacks: Annotated[
        Annotated[list[ToolFallback], Meta(max_length=MAX_FALLBACKS)] | UnsetType | None,
        Meta(description="What to call in its place, in this order."),
    ] = UNSET
    versions: Annotated[
        Annotated[str, Meta(min_length=1, max_length=2_000)]
        | Annotated[list[str], Meta(min_length=1, max_length=20)]
        | UnsetType
        | None,
        Meta(description="The compatible versions; of several, any.", examples=[">=1.2,<2"]),
    ] = UNSET


@get(
    opt=needs(Right.READ_TOOLS),
    responses=mcp_error_responses("SERVER_NOT_FOUND"),
    summary="List tools with their risk, version and state",
    description="All that servers list or were registered with; agents see what they may call."
    " The header `Link` leads to the next page.",
)
async def list_mcp_tools(
    request: AnyRequest,
    context: Context,
    server_id: OfServer = None,
    enabled_only: EnabledOnly = True,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Response[list[MCPTool]]:
    principal = caller(request)
    tools = await _list_visible(context, principal, server_id, enabled_only=enabled_only)
    return respond_with_page(
        request, tools, _by_name, limit, cursor, lambda tool: show_tool(context, principal, tool)
    )


@get(
    "/{server_id:str}/{tool_name:path}",
    opt=needs(Right.READ_TOOLS),
    responses=mcp_error_responses("TOOL_NOT_FOUND", "DENIED"),
    summary="Show a tool",
)
async def show_mcp_tool(
    request: AnyRequest, context: Context, server_id: ServerRef, tool_name: ToolPath
) -> MCPToolDetails:
    principal = caller(request)
    tool = context.registry.tools.known.find(server_id, tool_name.removeprefix("/"))
    if principal.role is Role.AGENT:
        if tool is None or tool.reason is not None or not _visibility(context, principal)(tool):
            raise RequestError("DENIED", "there is no such tool that you may use")
    elif tool is None:
        words = await describe_unknown_tool(context, server_id, tool_name.removeprefix("/"))
        raise RequestError("TOOL_NOT_FOUND", words)
    shown = MCPToolDetails(**_describe(context, principal, tool))
    if has_right(principal, Right.READ_POLICY):
        shown.settings = _show_settings(context, tool.state.setting)
        if any(flag.startswith(INVALID_SCHEMA) for flag in tool.flags):
            shown.diagnostics = await asyncio.to_thread(_find_diagnostics, tool)
    return shown


@patch(
    "/{server_id:str}/{tool_name:path}",
    opt=needs(Right.CHANGE_POLICY, ToolSettingsChange),
    responses=mcp_error_responses("SERVER_NOT_FOUND", has_body=True),
    summary="Set what holds for a tool",
    description="In force at once: lists change, calls under way finish. Also for a tool that the"
    " server does not list yet. What is not named stays; null unsets.",
)
async def change_mcp_tool(
    request: AnyRequest,
    context: Context,
    server_id: ServerRef,
    tool_name: ToolPath,
    body: ToolSettingsChange,
) -> ToolSettingsChanged:
    changes = {
        name: msgspec.to_builtins(found)
        for name in SETTABLE
        if (found := getattr(body, name)) is not UNSET
    }
    administration = context.registry.tools.settings
    setting = await administration.change(
        server_id, tool_name.removeprefix("/"), changes, caller(request)
    )
    shown = msgspec.structs.asdict(_show_settings(context, setting))
    warnings = await find_setting_warnings(context, setting)
    return ToolSettingsChanged(**shown, warnings=warnings or UNSET)


async def _list_visible(
    context: Context, principal: Principal, ref: str | None, *, enabled_only: bool
) -> list[KnownTool]:
    """List the tools that a principal may see, by name; in slices, since there may be thousands.

    Raises NotFound for an unknown server, except to agents: to them a hidden one is the same.
    """
    is_agent = principal.role is Role.AGENT
    try:
        found = context.registry.tools.known.of(ref)
    except NotFound:
        if is_agent:
            return []
        raise
    needs_enabled = enabled_only or is_agent
    admits = _visibility(context, principal)
    tools, slices = [], Slices()
    for tool in found:
        if slices.is_over:
            await slices.rest()
        if admits(tool) and not (needs_enabled and tool.reason is not None):
            tools.append(tool)
    tools.sort(key=_by_name)
    return tools


def show_tool(context: Context, principal: Principal, tool: KnownTool) -> MCPTool:
    """Show a tool, as far as a principal may know it."""
    return MCPTool(**_describe(context, principal, tool))


def _by_name(tool: KnownTool) -> tuple[str, str]:
    return tool.server, tool.name


def _visibility(context: Context, principal: Principal) -> Callable[[KnownTool], bool]:
    """Return what says of each tool whether a principal may see it."""
    scope = context.junction.scopes.of(principal, EVERYTHING)
    if scope.grants is None:
        return lambda _: True
    return lambda tool: scope.admits(TOOLS, Pair(tool.server, tool.name))


def _describe(context: Context, principal: Principal, tool: KnownTool) -> dict[str, Any]:
    """Return the members of a tool, as far as the principal may know them."""
    state, members = tool.state, tool.item.members
    breakers = context.governance.circuits.breakers
    shows_all = has_right(principal, Right.READ_POLICY)
    description = _decode(members.get("description"))
    return {
        "server_id": tool.server,
        "tool_name": tool.name,
        "description": description if isinstance(description, str) else "",
        "schema": _decode(members.get("inputSchema")),
        "version": state.version,
        "enabled": state.enabled,
        "risk": state.risk.level.value,
        "risk_reason": state.risk.reason,
        "breaker": breakers.state(tool.server_id, tool.name).value,
        "reason": UNSET if state.reason is None else state.reason.value,
        "flags": list(tool.flags) if shows_all and tool.flags else UNSET,
    }


def _find_diagnostics(tool: KnownTool) -> list[SchemaDiagnostic]:
    schema = tool.item.members.get("inputSchema") or b"{}"
    return [SchemaDiagnostic(*problem) for problem in check_schema(schema)]


def _show_settings(context: Context, setting: ToolSetting) -> ToolSettingsShown:
    """Show settings with the names of the servers that they refer to."""
    names = context.server_names
    fallbacks = [
        ToolFallback(names.get(one.server_id, one.server_id), one.tool_name, one.arguments)
        for one in setting.fallbacks
    ]
    fields = {name: getattr(setting, name) for name in SETTABLE if name != "fallbacks"}
    fields["risk"] = None if setting.risk is None else setting.risk.value
    return ToolSettingsShown(**fields, fallbacks=fallbacks)


def _decode(raw: msgspec.Raw | None) -> Any:
    """Decode a member of a definition; nothing when a server wrote nonsense."""
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None


ROUTES = Router(
    "/api/v1/mcp/tools",
    route_handlers=[list_mcp_tools, show_mcp_tool, change_mcp_tool],
    tags=["governed tools"],
)
