"""Routes ``/api/v1/skills/suggestions``: skills that are suggested, to be approved or rejected."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from mcp_junction.api.errors import as_skill_errors, field_error
from mcp_junction.api.models import Paged, Skill, format_time, skill_model
from mcp_junction.api.requests import Nothing
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    Limit,
    caller,
    error_responses,
    page,
    read_model,
    route_options,
)
from mcp_junction.store.skills import APPROVED, PENDING, REJECTED, SuggestionRecord
from mcp_junction.web.messages import Response
from mcp_junction.web.parameters import PathParameter, QueryParameter
from mcp_junction.web.routing import Router, get, post

Ref = Annotated[str, PathParameter(max_length=100, description="The suggestion's id.")]
Status = Annotated[
    str,
    QueryParameter(max_length=20, description="`pending`, `approved`, `rejected` or `all`."),
]


class SuggestedTool(msgspec.Struct):
    """A tool behind a suggested skill."""

    server_id: str
    server: str
    name: str


class Suggestion(msgspec.Struct):
    """A skill that is suggested for tools that fit none, and what was decided."""

    id: str
    name: str
    description: str
    tools: list[SuggestedTool]
    status: str
    skill_id: str | None
    created_at: str | None
    decided_at: str | None
    decided_by: str | None


class SuggestionPage(Paged):
    """Suggestions, the oldest first."""

    items: list[Suggestion]


_DECISION_ERRORS = ("SKILL_NOT_FOUND", "SKILL_ALREADY_EXISTS")


@get(
    opt=needs(Right.CHANGE_SKILLS),
    responses=error_responses(),
    summary="List suggested skills",
    description="Groups of tools that fit no skill and are alike, each with a name made of them.",
)
async def list_suggestions(
    context: Context, status: Status = PENDING, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> SuggestionPage:
    if status not in (PENDING, APPROVED, REJECTED, "all"):
        raise field_error("status", "must be pending, approved, rejected or all")
    records = await context.registry.skills.classifier.suggestions.all()
    chosen = [one for one in records if status in (one.status, "all")]
    found = page(chosen, _by_time, limit, cursor)
    shown = [await _show(context, one) for one in found.items]
    return SuggestionPage(found.total, found.next_cursor, shown)


@post(
    "/{suggestion_id:str}/approve",
    opt=route_options(Right.CHANGE_SKILLS, Nothing),
    responses=error_responses(*_DECISION_ERRORS, has_body=True),
    summary="Approve a suggested skill",
    description="Makes the skill, and gives it to the tools behind it. All others are classified"
    " again. 409 if it was decided before, or the name is taken.",
)
async def approve_suggestion(
    request: AnyRequest, context: Context, suggestion_id: Ref
) -> Response[Skill]:
    await read_model(request, Nothing, optional=True)
    with as_skill_errors():
        record = await context.registry.skills.approve(suggestion_id, caller(request))
    headers = {"location": f"/api/v1/skills/{record.id}"}
    return Response(skill_model(record), status_code=201, headers=headers)


@post(
    "/{suggestion_id:str}/reject",
    opt=route_options(Right.CHANGE_SKILLS, Nothing),
    responses=error_responses(*_DECISION_ERRORS, has_body=True),
    status_code=204,
    summary="Reject a suggested skill",
    description="It is not suggested for these tools again. 409 if it was decided before.",
)
async def reject_suggestion(request: AnyRequest, context: Context, suggestion_id: Ref) -> None:
    await read_model(request, Nothing, optional=True)
    with as_skill_errors():
        await context.registry.skills.reject(suggestion_id, caller(request))


async def _show(context: Any, record: SuggestionRecord) -> Suggestion:
    servers = {server.id: server.name for server in context.registry.all()}
    tools = await context.registry.skills.classifier.suggestions.tools(record)
    return Suggestion(
        record.id,
        record.name,
        record.description,
        [
            SuggestedTool(one.tool.server_id, servers[one.tool.server_id], one.tool.name)
            for one in tools
            if one.tool.server_id in servers
        ],
        record.status,
        record.skill_id,
        format_time(record.created_at),
        format_time(record.decided_at),
        record.decided_by,
    )


def _by_time(record: SuggestionRecord) -> tuple[Any, ...]:
    return record.created_at, record.id


ROUTES = Router(
    "/api/v1/skills/suggestions",
    route_handlers=[list_suggestions, approve_suggestion, reject_suggestion],
    tags=["skills"],
)
