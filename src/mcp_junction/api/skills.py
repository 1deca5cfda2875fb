"""``/api/v1/skills``: what tools can be good for: showing, making, changing and removing skills."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, post
from litestar.params import PathParameter, QueryParameter
from msgspec import UNSET

from mcp_junction.api.errors import about_skills, wrong
from mcp_junction.api.models import Skill, SkillPage, shown_skill
from mcp_junction.api.paging import USUAL, Cursor, Limit, page
from mcp_junction.api.requests import (
    AnyRequest,
    IfMatch,
    NewSkill,
    SkillChange,
    etag,
    read_body,
    shaped,
    version_in,
)
from mcp_junction.api.rights import Right, needs
from mcp_junction.api.routes import InRoom, caller, options, outcomes
from mcp_junction.store.records import SkillRecord

Ref = Annotated[str, PathParameter(max_length=300, description="The skill's id or its name.")]
WithVectors = Annotated[bool, QueryParameter(description="Show the `embedding` too.")]


@post(
    opt=options(needs(Right.CHANGE_SKILLS), NewSkill),
    responses=outcomes("SKILL_ALREADY_EXISTS", bodied=True),
    summary="Make a skill",
    description="Tools that are classified from now on may have it; to have others classified"
    " again, `POST /api/v1/aggregator/servers/{id}/tools/classify`.",
)
async def make_skill(request: AnyRequest, room: InRoom) -> Response[Skill]:
    made = shaped((await read_body(request))[1], NewSkill)
    given = _checked({"name": made.name, "description": made.description})
    with about_skills():
        record = await room.registry.skills.add(**given, actor=caller(request))
    return _tagged(record, status=201)


@get(opt=needs(Right.READ_TOOLS), responses=outcomes(), summary="List skills")
async def list_skills(
    room: InRoom,
    include_embeddings: WithVectors = False,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> SkillPage:
    records = sorted(await room.registry.skills.all(), key=_by_name)
    found = page(records, _by_name, limit, cursor)
    shown = [shown_skill(one, with_embedding=include_embeddings) for one in found.items]
    return SkillPage(found.total, found.next_cursor, shown)


@get(
    "/{skill_id:str}",
    opt=needs(Right.READ_TOOLS),
    responses=outcomes("SKILL_NOT_FOUND"),
    summary="Show a skill",
)
async def show_skill(
    room: InRoom, skill_id: Ref, include_embeddings: WithVectors = False
) -> Response[Skill]:
    with about_skills():
        record = await room.registry.skills.get(skill_id)
    return _tagged(record, with_embedding=include_embeddings)


@patch(
    "/{skill_id:str}",
    opt=options(needs(Right.CHANGE_SKILLS), SkillChange),
    responses=outcomes("SKILL_NOT_FOUND", "SKILL_ALREADY_EXISTS", "VERSION_CONFLICT", bodied=True),
    summary="Change a skill",
    description="Only what is given changes. Its id stays, and so do the tools that have it.",
)
async def change_skill(
    request: AnyRequest, room: InRoom, skill_id: Ref, if_match: IfMatch = None
) -> Response[Skill]:
    wanted = shaped((await read_body(request))[1], SkillChange)
    given = {"name": wanted.name, "description": wanted.description}
    changes = _checked({name: text for name, text in given.items() if text is not UNSET})
    version = version_in(if_match)
    with about_skills():
        record = await room.registry.skills.change(skill_id, changes, caller(request), version)
    return _tagged(record)


@delete(
    "/{skill_id:str}",
    opt=needs(Right.CHANGE_SKILLS),
    responses=outcomes("SKILL_NOT_FOUND", "VERSION_CONFLICT"),
    summary="Remove a skill",
    description="It is taken from all tools that have it; these are classified again.",
)
async def remove_skill(
    request: AnyRequest, room: InRoom, skill_id: Ref, if_match: IfMatch = None
) -> None:
    version = version_in(if_match)
    with about_skills():
        await room.registry.skills.remove(skill_id, caller(request), version)


def _checked(texts: dict[str, Any]) -> dict[str, str]:
    """Words that can be stored and shown."""
    for name, text in texts.items():
        if not text.isprintable() or text != text.strip():
            raise wrong(f"$.{name}", "must have no control characters, nor spaces around it")
    return texts


def _tagged(
    record: SkillRecord, status: int = 200, *, with_embedding: bool = False
) -> Response[Skill]:
    headers = etag(record.version)
    if status == 201:
        headers["location"] = f"/api/v1/skills/{record.id}"
    shown = shown_skill(record, with_embedding=with_embedding)
    return Response(shown, status_code=status, headers=headers)


def _by_name(record: SkillRecord) -> tuple[Any, ...]:
    return record.name, record.id


ROUTES = Router(
    "/api/v1/skills",
    route_handlers=[make_skill, list_skills, show_skill, change_skill, remove_skill],
    tags=["skills"],
)
