"""Log levels of the handshake era: each session sets its own, and hears everything until it does.

In 2026-07-28 each request asks for its level, and the SDK heeds it.
"""

from typing import get_args

import mcp_types as types

from .answers import Context

ASCENDING: tuple[str, ...] = get_args(types.LoggingLevel)
_levels: dict[str | None, str] = {}


def _session(ctx: Context) -> str | None:
    """The HTTP session of a request; over stdio there is one, without a name."""
    return ctx.request.headers.get("mcp-session-id") if ctx.request is not None else None


async def set_level(ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    _levels[_session(ctx)] = params.level
    return types.EmptyResult()


def is_heard(ctx: Context, level: types.LoggingLevel) -> bool:
    least = _levels.get(_session(ctx), ASCENDING[0])
    return ASCENDING.index(level) >= ASCENDING.index(least)
