"""Skills: the table of skills. Suggestions: those that were suggested, and what became of them.

Whatever should change a skill's vector increments its ``marked`` in the same transaction; whoever
computes the vector stores for which count that was done. So nothing is forgotten when a process
dies. Everyone who marks skills locks the topic first (``lock_skills``): one order for all. Which
tools have which skills is in ``classification.py``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mcp_junction.errors import AlreadyExists, NotFound, VersionConflict
from mcp_junction.store.database import Batch, Query, Script, begin_topic, bump
from mcp_junction.store.records import SkillRecord
from mcp_junction.store.table import StoreTable, Table, transaction
from mcp_junction.store.tools import SET_SKILLS, SKILLS_TOPIC, TOOLS_TABLE, TOOLS_TOPIC, lock_skills

SKILLS_TABLE = Table("skills", SkillRecord)
TAXONOMY: Final = "taxonomy"
"""Counted once, when the first skills are put in: those that are removed do not come back."""
PENDING: Final = "pending"
APPROVED: Final = "approved"
REJECTED: Final = "rejected"


class Skills(StoreTable):
    """All skills."""

    # -- reading

    async def all(self) -> list[SkillRecord]:
        """Read all skills, by name."""
        return await self._read(SKILLS_TABLE, "ORDER BY name, id")

    async def get(self, id_or_name: str) -> SkillRecord:
        """Read one skill. Raises NotFound."""
        where = "WHERE id = ? OR name = ?"
        found = await self._read(SKILLS_TABLE, where, id_or_name, id_or_name)
        if not found:
            raise NotFound(f"there is no skill {id_or_name!r}")
        return next((one for one in found if one.id == id_or_name), found[0])

    async def needing_vector(self) -> list[SkillRecord]:
        """Read the skills whose vectors are to be computed again."""
        return await self._read(SKILLS_TABLE, "WHERE marked <> computed ORDER BY id")

    async def vectors_of_tools(self, skill_id: str, model: str = "") -> list[bytes]:
        """Read the vectors by one model of the listed tools that have a skill."""
        return await self._read_rows(
            lambda row: bytes(row[0]),
            "SELECT tool_vectors.embedding FROM skill_members"
            " JOIN tools ON tools.id = skill_members.tool_id"
            " JOIN tool_vectors ON tool_vectors.tool_id = tools.id"
            " WHERE skill_members.skill_id = ? AND tools.gone_at IS NULL"
            " AND tool_vectors.model = ? ORDER BY tools.id",
            skill_id,
            model,
        )

    # -- changing

    @transaction()
    def seed(self, skills: Sequence[SkillRecord]) -> Script[bool]:
        """Store the first skills, unless that was ever done; return whether it was done now."""
        first = yield begin_topic(TAXONOMY)
        if first:
            rows = [SKILLS_TABLE.values(_new(skill)) for skill in skills]
            yield Batch(SKILLS_TABLE.insert, rows)
            yield bump(SKILLS_TOPIC)
        return bool(first)

    @transaction()
    def add(self, skill: SkillRecord) -> Script[SkillRecord]:
        """Store a new skill. Raises AlreadyExists when its id or its name is taken."""
        yield lock_skills()
        skill = msgspec.structs.replace(_new(skill), marked=1)
        if not (yield SKILLS_TABLE.add(skill, " ON CONFLICT DO NOTHING RETURNING id")):
            raise AlreadyExists(f"there is a skill {skill.name!r} already")
        return skill

    @transaction()
    def change(
        self, skill_id: str, changes: Mapping[str, str], *, version: int | None = None
    ) -> Script[SkillRecord]:
        """Change the name or description. Raises NotFound, AlreadyExists, VersionConflict."""
        if not changes or not changes.keys() <= {"name", "description"}:
            raise ValueError(f"not to be changed: {sorted(changes)}")
        before = yield from _lock(skill_id, version)
        stored = {
            **changes,
            "version": before.version + 1,
            "marked": before.marked + 1,
            "updated_at": time.time(),
        }
        if "description" in changes:  # the tools that it was made of need not fit any more
            stored["embedding"] = None
        after: SkillRecord = msgspec.structs.replace(before, **stored)
        sql = "SELECT id FROM skills WHERE name = ? AND id <> ?"
        if (yield Query(sql, (after.name, skill_id))):
            raise AlreadyExists(f"there is a skill {after.name!r} already")
        yield SKILLS_TABLE.update(stored, "WHERE id = ?", skill_id)
        return after

    @transaction()
    def remove(self, skill_id: str, *, version: int | None = None) -> Script[int]:
        """Remove a skill, and return how many tools had it; these are to be classified again.

        Raises NotFound, VersionConflict.
        """
        yield from _lock(skill_id, version)
        rows = yield Query(
            "SELECT id, skill_ids, skill_confidences, primary_skill_id FROM tools WHERE id IN"
            " (SELECT tool_id FROM skill_members WHERE skill_id = ?) ORDER BY server_id, name",
            (skill_id,),
        )
        changed = [[*_without(skill_id, *row[1:]), False, row[0]] for row in rows]
        yield Batch(SET_SKILLS, changed)
        yield Query("DELETE FROM skills WHERE id = ?", (skill_id,))
        yield bump(TOOLS_TOPIC)
        return len(rows)

    @transaction(durable=False)
    def save_vector(self, skill: SkillRecord, embedding: bytes, tool_count: int) -> Script[None]:
        """Store the vector that was computed for a skill, unless it was changed since."""
        yield lock_skills()
        yield Query(
            "UPDATE skills SET embedding = ?, tool_count = ?, computed = ?"
            " WHERE id = ? AND computed <= ? AND version = ?",
            (embedding, tool_count, skill.marked, skill.id, skill.marked, skill.version),
        )


def _new(skill: SkillRecord) -> SkillRecord:
    now = time.time()
    return msgspec.structs.replace(skill, version=1, created_at=now, updated_at=now)


def _lock(skill_id: str, version: int | None) -> Script[SkillRecord]:
    """Lock the skills, and read one to be changed."""
    yield lock_skills()
    skill = SKILLS_TABLE.first((yield SKILLS_TABLE.select("WHERE id = ?", (skill_id,))))
    if skill is None:
        raise NotFound(f"there is no skill with the id {skill_id!r}")
    if version is not None and skill.version != version:
        raise VersionConflict("the skill", skill.version)
    return skill


def _without(skill_id: str, ids: str, confidences: str, primary: str | None) -> list[str | None]:
    """Take a skill out of the three columns of a tool that name skills."""
    kept = [one for one in msgspec.json.decode(ids) if one != skill_id]
    left = {k: v for k, v in msgspec.json.decode(confidences).items() if k != skill_id}
    encoded = TOOLS_TABLE.value("skill_ids", kept), TOOLS_TABLE.value("skill_confidences", left)
    return [*encoded, primary if primary != skill_id else None]


class SuggestionRecord(msgspec.Struct, frozen=True):
    """A skill that is suggested for some tools: ``pending``, ``approved`` or ``rejected``."""

    id: str
    name: str
    description: str
    tool_ids: list[str]
    status: str = PENDING
    skill_id: str | None = None
    created_at: float = 0.0
    decided_at: float | None = None
    decided_by: str | None = None


_SUGGESTIONS = Table("skill_suggestions", SuggestionRecord, json={"tool_ids"})


class Suggestions(StoreTable):
    """All suggestions."""

    async def all(self) -> list[SuggestionRecord]:
        """Read all suggestions, the oldest first."""
        return await self._read(_SUGGESTIONS, "ORDER BY created_at, id")

    @transaction()
    def replace_pending(self, given: Sequence[SuggestionRecord]) -> Script[list[SuggestionRecord]]:
        """Make these the pending suggestions, and return those that are new."""
        yield lock_skills()
        status = {one.id: one.status for one in _SUGGESTIONS.records((yield _SUGGESTIONS.select()))}
        kept = [one for one in given if status.get(one.id, PENDING) == PENDING]
        yield Query("DELETE FROM skill_suggestions WHERE status = ?", (PENDING,))
        yield Batch(_SUGGESTIONS.insert, [_SUGGESTIONS.values(one) for one in kept])
        return [one for one in kept if one.id not in status]

    @transaction()
    def decide(
        self, suggestion_id: str, status: str, actor: str, skill_id: str | None = None
    ) -> Script[SuggestionRecord]:
        """Store a decision. Raises NotFound, and AlreadyExists when there is one already."""
        yield lock_skills()
        found = _SUGGESTIONS.first((yield _SUGGESTIONS.select("WHERE id = ?", (suggestion_id,))))
        if found is None:
            raise NotFound(f"there is no suggestion {suggestion_id!r}")
        if found.status != PENDING:
            raise AlreadyExists(f"the suggestion was {found.status} already")
        changes = {
            "status": status,
            "skill_id": skill_id,
            "decided_at": time.time(),
            "decided_by": actor,
        }
        yield _SUGGESTIONS.update(changes, "WHERE id = ?", suggestion_id)
        decided: SuggestionRecord = msgspec.structs.replace(found, **changes)
        return decided
