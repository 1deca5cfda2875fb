"""What a server tells without being asked: changed lists and resources, to whoever wants to know.

In the handshake era every session hears of lists, and of the resources it subscribed to; in
2026-07-28 a bus feeds the streams of `subscriptions/listen`.
"""

from typing import Any

import anyio
import mcp_types as types
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from tests.conformance.offering.answers import Context, is_modern

BUS = InMemorySubscriptionBus()
EVENTS = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}

_sessions: dict[str | None, ServerSession] = {}
_watched: dict[str | None, set[str]] = {}


def _name(ctx: Context) -> str | None:
    """The HTTP session of a request; over stdio there is one, without a name."""
    return ctx.request.headers.get("mcp-session-id") if ctx.request is not None else None


def met(ctx: Context) -> None:
    """Remember a session of the handshake era."""
    if not is_modern(ctx):
        _sessions[_name(ctx)] = ctx.session


async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
    met(ctx)
    _watched.setdefault(_name(ctx), set()).add(str(params.uri))
    return types.EmptyResult()


async def unsubscribe(ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    _watched.get(_name(ctx), set()).discard(str(params.uri))
    return types.EmptyResult()


async def list_changed(ctx: Context, kind: str) -> None:
    """Announce that the list of `tools`, `prompts` or `resources` changed."""
    if is_modern(ctx):
        await BUS.publish(EVENTS[kind]())
        return
    for name, session in list(_sessions.items()):
        tell = {
            "tools": session.send_tool_list_changed,
            "prompts": session.send_prompt_list_changed,
            "resources": session.send_resource_list_changed,
        }
        await _unless_gone(name, tell[kind]())


async def updated(ctx: Context, uri: str) -> None:
    """Announce that a resource changed."""
    if is_modern(ctx):
        await BUS.publish(ResourceUpdated(uri))
        return
    for name, session in list(_sessions.items()):
        if uri in _watched.get(name, ()):
            await _unless_gone(name, session.send_resource_updated(uri))


async def _unless_gone(name: str | None, telling: Any) -> None:
    try:
        await telling
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        del _sessions[name]
