"""``POST /api/v1/search``: tools by what they are for, over all servers that are connected."""

from __future__ import annotations

from litestar import Router, post

from mcp_junction.api.models import SearchResult
from mcp_junction.api.requests import AnyRequest, Search, read_body, shaped
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import InRoom, options, outcomes


@post(
    "/search",
    status_code=200,
    opt=options(needs(Right.READ_TOOLS), Search),
    responses=outcomes("SERVER_NOT_FOUND", "SKILL_NOT_FOUND", bodied=True),
    summary="Find tools by what they are for",
    description="Best first, whatever their server. Only what can be called now is found:"
    " tools of servers that are away are not.",
)
async def search_tools(request: AnyRequest, room: InRoom) -> SearchResult:
    _, value = await read_body(request)
    return await room.searching(shaped(value, Search))


ROUTES = Router("/api/v1", route_handlers=[search_tools], tags=["tools"])
