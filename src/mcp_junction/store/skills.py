"""Skills: the shelf of what tools can be good for. Which tools are is ``classification.py``.

Whatever should change a skill's vector counts up its ``marked`` in the same transaction, and who
has computed it says for which count: so nothing is forgotten, whoever dies in between. Everyone who
marks, or makes tools members, holds the topic first: that is one order for all.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from mcp_junction.errors import AlreadyExists, NotFound, VersionConflict
from mcp_junction.store.database import Batch, Database, Query, Rows, Script, bump, insert
from mcp_junction.store.records import SkillRecord
from mcp_junction.store.table import Table

SKILLS_TABLE = Table("skills", SkillRecord)
SKILLS_TOPIC: Final = "skills"
TAXONOMY: Final = "taxonomy"
"""Counted once, when the first skills are put in: those that are removed do not come back."""
_SELECT: Final = f"SELECT {SKILLS_TABLE.selected} FROM skills"


def held() -> Query:
    """Keep everybody else from marking until the transaction ends."""
    return bump(SKILLS_TOPIC)


def marked(ids: Iterable[str]) -> Query:
    """The vectors of these skills are to be made anew."""
    given = sorted(set(ids))
    return Query(f"UPDATE skills SET marked = marked + 1 WHERE id IN ({places(given)})", given)


def places(values: Sequence[object]) -> str:
    """The placeholders of a list; NULL, which is in no list, for an empty one."""
    return ", ".join("?" * len(values)) or "NULL"


class Skills:
    """All skills."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- reading

    async def all(self) -> list[SkillRecord]:
        """By name."""
        query = Query(f"{_SELECT} ORDER BY name, id")
        return await self._database.read(query, SKILLS_TABLE.records)

    async def get(self, id_or_name: str) -> SkillRecord:
        """Raises NotFound."""
        query = Query(f"{_SELECT} WHERE id = ? OR name = ?", (id_or_name, id_or_name))
        found = await self._database.read(query, SKILLS_TABLE.records)
        if not found:
            raise NotFound(f"there is no skill {id_or_name!r}")
        return next((one for one in found if one.id == id_or_name), found[0])

    async def behind(self) -> list[SkillRecord]:
        """Those whose vectors have not followed everything yet."""
        query = Query(f"{_SELECT} WHERE marked <> computed ORDER BY id")
        return await self._database.read(query, SKILLS_TABLE.records)

    async def vectors(self, skill_id: str) -> list[bytes]:
        """The vectors of the tools that have a skill and are listed by their servers."""
        query = Query(
            "SELECT tool_vectors.embedding FROM skill_members"
            " JOIN tools ON tools.id = skill_members.tool_id"
            " JOIN tool_vectors ON tool_vectors.tool_id = tools.id"
            " WHERE skill_members.skill_id = ? AND tools.gone_at IS NULL ORDER BY tools.id",
            (skill_id,),
        )
        return await self._database.read(query, lambda rows: [bytes(row[0]) for row in rows])

    # -- changing

    async def seed(self, skills: Sequence[SkillRecord]) -> bool:
        """Put in the first skills, if that was never done; whether it was done now."""
        return await self._database.write(_seed(skills))

    async def add(self, skill: SkillRecord) -> SkillRecord:
        """Raises AlreadyExists when its id or its name is taken."""
        return await self._database.write(_add(_dated(skill)))

    async def change(
        self, skill_id: str, changes: Mapping[str, str], *, version: int | None = None
    ) -> SkillRecord:
        """Another name or description. Raises NotFound, AlreadyExists, VersionConflict."""
        if not changes or not changes.keys() <= {"name", "description"}:
            raise ValueError(f"not to be changed: {sorted(changes)}")
        return await self._database.write(_change(skill_id, changes, version))

    async def remove(self, skill_id: str, *, version: int | None = None) -> int:
        """Take it from all tools, which are to be classified again; how many these are.

        Raises NotFound, VersionConflict.
        """
        return await self._database.write(_remove(skill_id, version))

    async def embed(self, skill: SkillRecord, embedding: bytes, tool_count: int) -> None:
        """Its vector, as of when this record was read."""
        await self._database.write(_embed(skill, embedding, tool_count), durable=False)


def _dated(skill: SkillRecord) -> SkillRecord:
    now = time.time()
    return msgspec.structs.replace(skill, version=1, created_at=now, updated_at=now)


def _seed(skills: Sequence[SkillRecord]) -> Script[bool]:
    first = yield Query(
        "INSERT INTO counters (topic, value) VALUES (?, 1) ON CONFLICT DO NOTHING RETURNING value",
        (TAXONOMY,),
    )
    if not first:
        return False
    rows = [SKILLS_TABLE.values(_dated(skill)) for skill in skills]
    yield Batch(insert("skills", SKILLS_TABLE.columns), rows)
    yield bump(SKILLS_TOPIC)
    return True


def _add(skill: SkillRecord) -> Script[SkillRecord]:
    yield held()
    sql = insert("skills", SKILLS_TABLE.columns) + " ON CONFLICT DO NOTHING RETURNING id"
    skill = msgspec.structs.replace(skill, marked=1)
    if not (yield Query(sql, SKILLS_TABLE.values(skill))):
        raise AlreadyExists(f"there is a skill {skill.name!r} already")
    return skill


def _locked(skill_id: str, version: int | None) -> Script[SkillRecord]:
    yield held()
    skill = SKILLS_TABLE.first((yield Query(f"{_SELECT} WHERE id = ?", (skill_id,))))
    if skill is None:
        raise NotFound(f"there is no skill with the id {skill_id!r}")
    if version is not None and skill.version != version:
        raise VersionConflict("the skill", skill.version)
    return skill


def _change(skill_id: str, changes: Mapping[str, str], version: int | None) -> Script[SkillRecord]:
    before = yield from _locked(skill_id, version)
    after = msgspec.structs.replace(
        before,
        **changes,
        version=before.version + 1,
        marked=before.marked + 1,
        updated_at=time.time(),
    )
    taken = yield Query("SELECT id FROM skills WHERE name = ? AND id <> ?", (after.name, skill_id))
    if taken:
        raise AlreadyExists(f"there is a skill {after.name!r} already")
    stored = {**changes, "version": after.version, "marked": after.marked}
    clause, args = SKILLS_TABLE.assignments({**stored, "updated_at": after.updated_at})
    yield Query(f"UPDATE skills SET {clause} WHERE id = ?", (*args, skill_id))
    return after


def _remove(skill_id: str, version: int | None) -> Script[int]:
    yield from _locked(skill_id, version)
    rows: Rows = yield Query(
        "SELECT id, skill_ids, skill_confidences, primary_skill_id FROM tools WHERE id IN"
        " (SELECT tool_id FROM skill_members WHERE skill_id = ?) ORDER BY server_id, name",
        (skill_id,),
    )
    yield Batch(
        "UPDATE tools SET skill_ids = ?, skill_confidences = ?, primary_skill_id = ?,"
        " is_classified = ? WHERE id = ?",
        [[*_without(skill_id, *row[1:]), False, row[0]] for row in rows],
    )
    yield Query("DELETE FROM skills WHERE id = ?", (skill_id,))
    yield bump("tools")
    return len(rows)


def _without(
    skill_id: str, ids: str, confidences: str, primary: str | None
) -> tuple[str, str, str | None]:
    kept = [one for one in msgspec.json.decode(ids) if one != skill_id]
    left = {k: v for k, v in msgspec.json.decode(confidences).items() if k != skill_id}
    texts = msgspec.json.encode(kept).decode(), msgspec.json.encode(left).decode()
    return *texts, primary if primary != skill_id else None


def _embed(skill: SkillRecord, embedding: bytes, tool_count: int) -> Script[None]:
    yield held()
    yield Query(
        "UPDATE skills SET embedding = ?, tool_count = ?, computed = ?"
        " WHERE id = ? AND computed <= ?",
        (embedding, tool_count, skill.marked, skill.id, skill.marked),
    )
