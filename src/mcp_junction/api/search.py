"""Route ``POST /api/v1/search``: find tools of connected servers by what they are for."""

from __future__ import annotations

from litestar import Router, post

from mcp_junction.api.models import SearchResult
from mcp_junction.api.requests import Search
from mcp_junction.api.rights import Right
from mcp_junction.api.routes import AnyRequest, Context, error_responses, read_model, route_options


@post(
    "/search",
    status_code=200,
    opt=route_options(Right.READ_TOOLS, Search),
    responses=error_responses("SERVER_NOT_FOUND", "SKILL_NOT_FOUND", has_body=True),
    summary="Find tools by what they are for",
    description="Best first, whatever their server. Only what can be called now is found:"
    " tools of servers that are away are not.",
)
async def search_tools(request: AnyRequest, context: Context) -> SearchResult:
    return await context.searching(await read_model(request, Search))


ROUTES = Router("/api/v1", route_handlers=[search_tools], tags=["tools"])
