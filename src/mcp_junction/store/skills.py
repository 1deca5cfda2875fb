"""Skills: the tables of skills, of the tools that have each, and of the tools' vectors.

Whatever should change a skill's vector increments its ``marked`` in the same transaction; whoever
computes the vector stores for which count that was done. So nothing is forgotten when a process
dies. Everyone who marks skills locks the topic first (``lock_skills``): one order for all.

A classification holds for the definition it was made of: it is not stored when the tool, or its
server, has changed or left meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from mcp_junction.errors import AlreadyExists, NotFound, UnreadableRow, VersionConflict
from mcp_junction.store.database import Batch, Query, Rows, Script, bump, insert, placeholders
from mcp_junction.store.records import REVIEW, Classified, PendingTool, SkillRecord
from mcp_junction.store.table import StoreTable, Table, transaction
from mcp_junction.store.tools import (
    SKILLS_TOPIC,
    TOOLS_TABLE,
    TOOLS_TOPIC,
    lock_server,
    lock_skills,
    mark_skills,
)

SKILLS_TABLE = Table("skills", SkillRecord)
TAXONOMY: Final = "taxonomy"
"""Counted once, when the first skills are put in: those that are removed do not come back."""
_SET_SKILLS: Final = (
    "UPDATE tools SET skill_ids = ?, skill_confidences = ?, primary_skill_id = ?,"
    " is_classified = ? WHERE id = ?"
)
_OWN_SKILLS: Final = (
    "SELECT server_id, name, own_skill_confidences, skill_ids FROM tools WHERE gone_at IS NULL"
)
_SET_ORIGIN: Final = "UPDATE tools SET own_skill_confidences = ?, classified_by = ? WHERE id = ?"
PUT_VECTOR: Final = (
    insert("tool_vectors", ("tool_id", "model", "hash", "embedding"))
    + " ON CONFLICT (tool_id, model) DO UPDATE SET hash = excluded.hash,"
    " embedding = excluded.embedding"
)


_PAGE: Final = 2_000


class Membership(NamedTuple):
    """That a tool has a skill."""

    skill_id: str
    tool_id: str
    server_id: str
    name: str


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

    async def behind(self) -> list[SkillRecord]:
        """Read the skills whose vectors are to be computed again."""
        return await self._read(SKILLS_TABLE, "WHERE marked <> computed ORDER BY id")

    async def vectors(self, skill_id: str, model: str = "") -> list[bytes]:
        """Read the vectors by one model of the listed tools that have a skill."""
        query = Query(
            "SELECT tool_vectors.embedding FROM skill_members"
            " JOIN tools ON tools.id = skill_members.tool_id"
            " JOIN tool_vectors ON tool_vectors.tool_id = tools.id"
            " WHERE skill_members.skill_id = ? AND tools.gone_at IS NULL"
            " AND tool_vectors.model = ? ORDER BY tools.id",
            (skill_id, model),
        )
        return await self._database.read(query, lambda rows: [bytes(row[0]) for row in rows])

    # -- changing

    @transaction()
    def seed(self, skills: Sequence[SkillRecord]) -> Script[bool]:
        """Store the first skills, unless that was ever done; return whether it was done now."""
        first = yield Query(
            "INSERT INTO counters (topic, value) VALUES (?, 1)"
            " ON CONFLICT DO NOTHING RETURNING value",
            (TAXONOMY,),
        )
        if first:
            rows = [SKILLS_TABLE.values(_new(skill)) for skill in skills]
            yield Batch(insert("skills", SKILLS_TABLE.columns), rows)
            yield bump(SKILLS_TOPIC)
        return bool(first)

    @transaction()
    def add(self, skill: SkillRecord) -> Script[SkillRecord]:
        """Store a new skill. Raises AlreadyExists when its id or its name is taken."""
        yield lock_skills()
        skill = msgspec.structs.replace(_new(skill), marked=1)
        sql = insert("skills", SKILLS_TABLE.columns) + " ON CONFLICT DO NOTHING RETURNING id"
        if not (yield Query(sql, SKILLS_TABLE.values(skill))):
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
        clause, args = SKILLS_TABLE.assignments(stored)
        yield Query(f"UPDATE skills SET {clause} WHERE id = ?", (*args, skill_id))
        return after

    @transaction()
    def remove(self, skill_id: str, *, version: int | None = None) -> Script[int]:
        """Remove a skill, and return how many tools had it; these are to be classified again.

        Raises NotFound, VersionConflict.
        """
        yield from _lock(skill_id, version)
        rows: Rows = yield Query(
            "SELECT id, skill_ids, skill_confidences, primary_skill_id FROM tools WHERE id IN"
            " (SELECT tool_id FROM skill_members WHERE skill_id = ?) ORDER BY server_id, name",
            (skill_id,),
        )
        changed = [[*_without(skill_id, *row[1:]), False, row[0]] for row in rows]
        yield Batch(_SET_SKILLS, changed)
        yield Query("DELETE FROM skills WHERE id = ?", (skill_id,))
        yield bump(TOOLS_TOPIC)
        return len(rows)

    @transaction(durable=False)
    def embed(self, skill: SkillRecord, embedding: bytes, tool_count: int) -> Script[None]:
        """Store the vector that was computed for a skill, unless it was changed since."""
        yield lock_skills()
        yield Query(
            "UPDATE skills SET embedding = ?, tool_count = ?, computed = ?"
            " WHERE id = ? AND computed <= ? AND version = ?",
            (embedding, tool_count, skill.marked, skill.id, skill.marked, skill.version),
        )


class Classification(StoreTable):
    """Which tools have which skills."""

    async def pending(
        self, after: tuple[str, str], limit: int, model: str = ""
    ) -> list[PendingTool]:
        """Read unclassified tools by server, each with its vector by this model.

        ``after`` is (server, tool) of the last one read.
        """
        query = Query(
            f"SELECT {TOOLS_TABLE.selected}, tool_vectors.embedding FROM tools"
            " LEFT JOIN tool_vectors"
            " ON tool_vectors.tool_id = tools.id AND tool_vectors.hash = tools.hash"
            " AND tool_vectors.model = ?"
            " WHERE NOT is_classified AND gone_at IS NULL AND (server_id, id) > (?, ?)"
            " ORDER BY server_id, id LIMIT ?",
            (model, *after, limit),
        )
        return await self._database.read(query, _pending)

    async def holding(self, skill_ids: Sequence[str]) -> set[tuple[str, str]]:
        """Return the tools that have any of these skills, each as (server's id, tool's name)."""
        query = Query(
            "SELECT server_id, name FROM tools WHERE gone_at IS NULL AND id IN (SELECT tool_id"
            f" FROM skill_members WHERE skill_id IN ({placeholders(skill_ids)}))",
            skill_ids,
        )
        return await self._database.read(query, lambda rows: {(row[0], row[1]) for row in rows})

    async def of_others(self, by: str, after: tuple[str, str], limit: int) -> list[PendingTool]:
        """Read tools by server whose skills another classifier than this one gave them.

        Those that a person approved are not among them. ``after`` is as for ``pending``.
        """
        query = Query(
            f"SELECT {TOOLS_TABLE.selected}, NULL FROM tools"
            " WHERE is_classified AND gone_at IS NULL AND classified_by <> ? AND classified_by <> ?"
            " AND (server_id, id) > (?, ?) ORDER BY server_id, id LIMIT ?",
            (by, REVIEW, *after, limit),
        )
        return await self._database.read(query, _pending)

    async def unsure(self, model: str, limit: int) -> list[PendingTool]:
        """Read tools that have no primary skill, with their vectors."""
        query = Query(
            f"SELECT {TOOLS_TABLE.selected}, tool_vectors.embedding FROM tools JOIN tool_vectors"
            " ON tool_vectors.tool_id = tools.id AND tool_vectors.hash = tools.hash"
            " AND tool_vectors.model = ? WHERE is_classified AND gone_at IS NULL"
            " AND primary_skill_id IS NULL ORDER BY server_id, tools.id LIMIT ?",
            (model, limit),
        )
        return await self._database.read(query, _pending)

    async def by_ids(self, ids: Sequence[str]) -> list[PendingTool]:
        """Read the listed tools with these ids."""
        query = Query(
            f"SELECT {TOOLS_TABLE.selected}, NULL FROM tools WHERE gone_at IS NULL"
            f" AND id IN ({placeholders(ids)}) ORDER BY server_id, name",
            ids,
        )
        return await self._database.read(query, _pending)

    async def sample(self, server_id: str, limit: int) -> list[tuple[str, bytes]]:
        """Read names and definitions of some tools of a server."""
        query = Query(
            "SELECT name, definition FROM tools WHERE server_id = ? AND gone_at IS NULL"
            " ORDER BY position, name LIMIT ?",
            (server_id, limit),
        )
        return await self._database.read(query, lambda rows: [(r[0], bytes(r[1])) for r in rows])

    @transaction()
    def forget_all(self) -> Script[None]:
        """Have all tools classified again, except those whose skill a person approved."""
        yield lock_skills()
        yield Query(
            "UPDATE tools SET is_classified = ? WHERE gone_at IS NULL AND classified_by <> ?",
            (False, REVIEW),
        )
        yield bump(TOOLS_TOPIC)

    async def first_skills(self) -> list[tuple[str, str, str]]:
        """Return the likeliest skill of each tool by itself: (server's id, tool's name, skill)."""
        query = Query(f"{_OWN_SKILLS} AND is_classified")
        found = await self._database.read(query, _own_memberships)
        first = {(server, name): skill for skill, server, name in reversed(found)}
        return [(server, name, skill) for (server, name), skill in reversed(first.items())]

    async def memberships(self, after: tuple[str, str] = ("", "")) -> list[Membership]:
        """Read which tools have which skills: a page in the order of the ids of both."""
        query = Query(
            "SELECT skill_members.skill_id, tools.id, tools.server_id, tools.name"
            " FROM skill_members JOIN tools ON tools.id = skill_members.tool_id"
            " WHERE (skill_members.skill_id, skill_members.tool_id) > (?, ?)"
            " AND tools.gone_at IS NULL"
            " ORDER BY skill_members.skill_id, skill_members.tool_id LIMIT ?",
            (*after, _PAGE),
        )
        return await self._database.read(query, lambda rows: [Membership(*row) for row in rows])

    async def own_memberships(self) -> list[tuple[str, str, str]]:
        """Read the same as by each tool alone: no other tool of its server has a part in that.

        That is what those may know who do not see all tools of a server.
        """
        return await self._database.read(Query(_OWN_SKILLS), _own_memberships)

    @transaction(durable=False)
    def put(
        self,
        server_id: str,
        given: Sequence[Classified],
        model: str = "",
        by: Mapping[str, str] | None = None,
    ) -> Script[set[str]]:
        """Store classifications of a server's tools, with the vectors that a model made of them.

        ``by`` has the description of each skill that there was to choose from: what was chosen
        among others than there are now does not hold. Returns the ids of the tools that they hold
        for.
        """
        if not (yield lock_server(server_id)):
            return set()
        yield lock_skills()
        ids = [one.tool_id for one in given]
        rows = yield Query(
            "SELECT id, hash, name FROM tools"
            f" WHERE gone_at IS NULL AND id IN ({placeholders(ids)})",
            ids,
        )
        names = {(row[0], row[1]): row[2] for row in rows}
        skills = {row[0]: row[1] for row in (yield Query("SELECT id, description FROM skills"))}
        if by is not None and by != skills:
            return set()
        valid = [
            one
            for one in given
            if (one.tool_id, one.hash) in names and one.confidences.keys() <= skills.keys()
        ]
        valid.sort(key=lambda one: names[one.tool_id, one.hash])  # one order for all lockers
        yield from _replace_memberships(valid, model)
        changed = [
            [*_json(list(one.confidences), one.confidences), one.primary, True, one.tool_id]
            for one in valid
        ]
        yield Batch(_SET_SKILLS, changed)
        origins = [[*_json(one.own), one.by, one.tool_id] for one in valid]
        yield Batch(_SET_ORIGIN, origins)
        yield bump(TOOLS_TOPIC)
        return {one.tool_id for one in valid}

    @transaction()
    def forget(self, server_id: str) -> Script[int]:
        """Have all tools of a server classified again, and return how many."""
        yield lock_server(server_id)
        yield lock_skills()
        rows = yield Query(
            "UPDATE tools SET is_classified = ?"
            " WHERE server_id = ? AND gone_at IS NULL RETURNING id",
            (False, server_id),
        )
        yield bump(TOOLS_TOPIC)
        return len(rows)


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
    return [*_json(kept, left), primary if primary != skill_id else None]


def _json(*values: object) -> list[str]:
    return [msgspec.json.encode(value).decode() for value in values]


def _pending(rows: Rows) -> list[PendingTool]:
    found = []
    for row in map(tuple, rows):
        try:
            found.append(PendingTool(TOOLS_TABLE.record(row[:-1]), row[-1]))
        except UnreadableRow:
            pass  # it is logged
    return found


def _replace_memberships(given: Sequence[Classified], model: str) -> Script[None]:
    """Make tools members of the skills they have now, and store their new vectors."""
    ids = [one.tool_id for one in given]
    of_tools = f"WHERE tool_id IN ({placeholders(ids)})"
    rows = yield Query(f"SELECT DISTINCT skill_id FROM skill_members {of_tools}", ids)
    members = [(skill, one.tool_id) for one in given for skill in one.confidences]
    yield mark_skills([*(row[0] for row in rows), *(skill for skill, _ in members)])
    yield Query(f"DELETE FROM skill_members {of_tools}", ids)
    yield Batch(insert("skill_members", ("skill_id", "tool_id")), members)
    yield Batch(
        PUT_VECTOR,
        [(one.tool_id, model, one.hash, one.embedding) for one in given if one.embedding],
    )


def _own_memberships(rows: Rows) -> list[tuple[str, str, str]]:
    found = []
    for server_id, name, own, given in rows:
        try:
            skills = msgspec.json.decode(own) or msgspec.json.decode(given)
        except (msgspec.MsgspecError, TypeError):  # a damaged row; reading it whole reports it
            continue
        found += [(skill, server_id, name) for skill in skills]
    return found
