"""Routes ``/api/v1/skills``: skills of tools, and those that are suggested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from mcp_junction.api.conventions import (
    DEFAULT_LIMIT,
    AnyRequest,
    Context,
    Cursor,
    IfMatch,
    Limit,
    caller,
    error_responses,
    page,
    parse_if_match,
    respond_with_etag,
)
from mcp_junction.api.errors import field_error
from mcp_junction.api.models import Paged, Skill, SkillPage, format_time, skill_model
from mcp_junction.api.requests import NewSkill, Nothing, SkillChange
from mcp_junction.api.rights import Right, needs
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import TOOLS
from mcp_junction.protocol.names import Pair
from mcp_junction.store.records import SkillRecord
from mcp_junction.store.skills import APPROVED, PENDING, REJECTED, SuggestionRecord
from mcp_junction.web.messages import Response
from mcp_junction.web.routing import PathParameter, QueryParameter, Router, delete, get, patch, post

SkillRef = Annotated[str, PathParameter(max_length=300, description="The skill's id or its name.")]
WithVectors = Annotated[bool, QueryParameter(description="Show the `embedding` too.")]


@post(
    opt=needs(Right.CHANGE_SKILLS, NewSkill, of="SKILL"),
    responses=error_responses("SKILL_ALREADY_EXISTS", has_body=True),
    summary="Make a skill",
    description="All tools are classified again, in the background.",
)
async def make_skill(request: AnyRequest, context: Context, body: NewSkill) -> Response[Skill]:
    given = _check_texts({"name": body.name, "description": body.description})
    record = await context.registry.skills.add(**given, actor=caller(request))
    return respond_with_etag(skill_model(record), f"/api/v1/skills/{record.id}")


@get(opt=needs(Right.READ_TOOLS), responses=error_responses(), summary="List skills")
async def list_skills(
    request: AnyRequest,
    context: Context,
    include_embeddings: WithVectors = False,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> SkillPage:
    records = sorted(await context.registry.skills.all(), key=_by_name)
    found = page(records, _by_name, limit, cursor)
    items = await _hide_tools(request, context, found.items)
    shown = [skill_model(one, with_embedding=include_embeddings) for one in items]
    return SkillPage(found.total, found.next_cursor, shown)


@get(
    "/{skill_id:str}",
    opt=needs(Right.READ_TOOLS, of="SKILL"),
    responses=error_responses("SKILL_NOT_FOUND"),
    summary="Show a skill",
)
async def show_skill(
    request: AnyRequest,
    context: Context,
    skill_id: SkillRef,
    include_embeddings: WithVectors = False,
) -> Response[Skill]:
    record = await context.registry.skills.get(skill_id)
    (record,) = await _hide_tools(request, context, [record])
    return respond_with_etag(skill_model(record, with_embedding=include_embeddings))


@patch(
    "/{skill_id:str}",
    opt=needs(Right.CHANGE_SKILLS, SkillChange, of="SKILL"),
    responses=error_responses(
        "SKILL_NOT_FOUND", "SKILL_ALREADY_EXISTS", "VERSION_CONFLICT", has_body=True
    ),
    summary="Change a skill",
    description="Only what is given changes. Its id stays. With another description, all tools are"
    " classified again.",
)
async def change_skill(
    request: AnyRequest,
    context: Context,
    skill_id: SkillRef,
    body: SkillChange,
    if_match: IfMatch = None,
) -> Response[Skill]:
    given = {"name": body.name, "description": body.description}
    changes = _check_texts({name: text for name, text in given.items() if text is not UNSET})
    version = parse_if_match(if_match)
    record = await context.registry.skills.change(skill_id, changes, caller(request), version)
    return respond_with_etag(skill_model(record))


@delete(
    "/{skill_id:str}",
    opt=needs(Right.CHANGE_SKILLS, of="SKILL"),
    responses=error_responses("SKILL_NOT_FOUND", "VERSION_CONFLICT"),
    summary="Remove a skill",
    description="It is taken from all tools that have it; these are classified again.",
)
async def remove_skill(
    request: AnyRequest, context: Context, skill_id: SkillRef, if_match: IfMatch = None
) -> None:
    version = parse_if_match(if_match)
    await context.registry.skills.remove(skill_id, caller(request), version)


def _check_texts(texts: dict[str, Any]) -> dict[str, str]:
    """Refuse texts with control characters or with spaces around them."""
    for name, text in texts.items():
        if not text.isprintable() or text != text.strip():
            raise field_error(f"$.{name}", "must have no control characters, nor spaces around it")
    return texts


async def _hide_tools(
    request: AnyRequest, context: Context, records: Sequence[SkillRecord]
) -> Sequence[SkillRecord]:
    """Count only tools that the caller may see, and that have the skill by themselves.

    A mean vector may be of others too: show none.
    """
    scope = context.junction.scopes.of(caller(request), EVERYTHING)
    if scope.grants is None:
        return records
    servers = context.server_names
    counts = Counter(
        skill
        for skill, server, name in await context.store.classification.own_memberships()
        if server in servers and scope.admits(TOOLS, Pair(servers[server], name))
    )
    return [replace(one, tool_count=counts[one.id], embedding=None) for one in records]


def _by_name(record: SkillRecord) -> tuple[Any, ...]:
    return record.name, record.id


# -- suggestions

SuggestionRef = Annotated[str, PathParameter(max_length=100, description="The suggestion's id.")]
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
    found = page(chosen, lambda one: (one.created_at, one.id), limit, cursor)
    shown = [await _show_suggestion(context, one) for one in found.items]
    return SuggestionPage(found.total, found.next_cursor, shown)


@post(
    "/{suggestion_id:str}/approve",
    opt=needs(Right.CHANGE_SKILLS, Nothing, of="SKILL"),
    responses=error_responses(*_DECISION_ERRORS, has_body=True),
    summary="Approve a suggested skill",
    description="Makes the skill, and gives it to the tools behind it. All others are classified"
    " again. 409 if it was decided before, or the name is taken.",
)
async def approve_suggestion(
    request: AnyRequest, context: Context, suggestion_id: SuggestionRef
) -> Response[Skill]:
    record = await context.registry.skills.approve(suggestion_id, caller(request))
    headers = {"location": f"/api/v1/skills/{record.id}"}
    return Response(skill_model(record), status_code=201, headers=headers)


@post(
    "/{suggestion_id:str}/reject",
    opt=needs(Right.CHANGE_SKILLS, Nothing, of="SKILL"),
    responses=error_responses(*_DECISION_ERRORS, has_body=True),
    status_code=204,
    summary="Reject a suggested skill",
    description="It is not suggested for these tools again. 409 if it was decided before.",
)
async def reject_suggestion(
    request: AnyRequest, context: Context, suggestion_id: SuggestionRef
) -> None:
    await context.registry.skills.reject(suggestion_id, caller(request))


async def _show_suggestion(context: Context, record: SuggestionRecord) -> Suggestion:
    servers = context.server_names
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


SUGGESTION_ROUTES = Router(
    "/suggestions", route_handlers=[list_suggestions, approve_suggestion, reject_suggestion]
)
ROUTES = Router(
    "/api/v1/skills",
    route_handlers=[
        make_skill,
        list_skills,
        show_skill,
        change_skill,
        remove_skill,
        SUGGESTION_ROUTES,
    ],
    tags=["skills"],
)
