"""The SDK's low-level server with everything in this package on it."""

import mcp_types as types
from mcp.server.caching import CACHEABLE_METHODS, CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError

from . import rounds, tools
from .answers import Context, is_modern
from .levels import set_level
from .prompts import complete, get_prompt, list_prompts
from .resources import list_resources, list_templates, read_resource, subscribe, unsubscribe
from .table import Outcome

NAME = "conformance-fixture"
TOOLS = tools.TOOLS | rounds.TOOLS


async def list_tools(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[tool.listed() for tool in TOOLS.values()])


async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Outcome:
    if params.name not in TOOLS:
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
    if params.name in rounds.TOOLS and not is_modern(ctx):
        raise MCPError(code=types.INVALID_PARAMS, message=f"{params.name} needs 2026-07-28")
    return await TOOLS[params.name].run(ctx, params)


class Fixture(Server):
    """A server that announces changes of all its lists; the SDK's default is none."""

    def create_initialization_options(self, *args: object) -> InitializationOptions:
        return super().create_initialization_options(NotificationOptions(True, True, True))


def build() -> Fixture:
    server = Fixture(
        NAME,
        version="1.0.0",
        cache_hints={
            method: CacheHint(ttl_ms=1000, scope="public") for method in CACHEABLE_METHODS
        },
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_completion=complete,
        on_set_logging_level=set_level,
        on_subscriptions_listen=ListenHandler(tools.BUS),
    )
    sealing = RequestStateSecurity.ephemeral()
    server.middleware.append(RequestStateBoundary(sealing, default_audience=NAME))
    return server
