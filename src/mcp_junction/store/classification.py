"""Classification: which tools have which skills. ToolVectors: the vectors of tools, by model.

A classification holds for the definition it was made of: it is not stored when the tool, or its
server, has changed or left meanwhile.

A vector is kept with the hash of the text that it was made of, and leaves with its tool. Vectors of
two models are never read together. Those of a table that this program no longer has leave when it
first starts with another (``renew``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from mcp_junction.errors import UnreadableRow
from mcp_junction.store.database import Batch, Query, Rows, Script, begin_topic, bump, placeholders
from mcp_junction.store.records import OFFLINE, REVIEW, Classified, PendingTool
from mcp_junction.store.table import StoreTable, transaction
from mcp_junction.store.tools import (
    SET_SKILLS,
    TOOLS_TABLE,
    TOOLS_TOPIC,
    lock_server,
    lock_skills,
    mark_skills,
)

_SET_ORIGIN: Final = "UPDATE tools SET own_skill_confidences = ?, classified_by = ? WHERE id = ?"
_OWN_SKILLS: Final = (
    "SELECT server_id, name, own_skill_confidences, skill_ids FROM tools WHERE gone_at IS NULL"
)
_HAS_VECTOR: Final = (
    "tool_vectors ON tool_vectors.tool_id = tools.id AND tool_vectors.hash = tools.hash"
    " AND tool_vectors.model = ?"
)
_PUT_VECTOR: Final = (
    "INSERT INTO tool_vectors (tool_id, model, hash, embedding) {}"
    " ON CONFLICT (tool_id, model) DO UPDATE SET hash = excluded.hash,"
    " embedding = excluded.embedding"
)
_BY_ID: Final = _PUT_VECTOR.format("VALUES (?, ?, ?, ?)")
_BY_NAME: Final = _PUT_VECTOR.format(
    "SELECT id, ?, ?, ? FROM tools WHERE server_id = ? AND name = ?"
)
_MADE_BY: Final = "vectors of "
"""The beginning of the topic that is counted for the table in use."""
_PAGE: Final = 2_000


class Membership(NamedTuple):
    """That a tool has a skill."""

    skill_id: str
    tool_id: str
    server_id: str
    name: str


class Classification(StoreTable):
    """Which tools have which skills."""

    async def pending(
        self, after: tuple[str, str], limit: int, model: str = ""
    ) -> list[PendingTool]:
        """Read unclassified tools by server, each with its vector by this model.

        ``after`` is (server, tool) of the last one read.
        """
        return await self._read_tools(
            "tool_vectors.embedding",
            f"LEFT JOIN {_HAS_VECTOR} WHERE NOT is_classified AND gone_at IS NULL"
            " AND (server_id, id) > (?, ?) ORDER BY server_id, id LIMIT ?",
            (model, *after, limit),
        )

    async def holding(self, skill_ids: Sequence[str]) -> set[tuple[str, str]]:
        """Return the tools that have any of these skills, each as (server's id, tool's name)."""
        found = await self._read_rows(
            lambda row: (row[0], row[1]),
            "SELECT server_id, name FROM tools WHERE gone_at IS NULL AND id IN (SELECT tool_id"
            f" FROM skill_members WHERE skill_id IN ({placeholders(skill_ids)}))",
            *skill_ids,
        )
        return set(found)

    async def of_others(self, by: str, after: tuple[str, str], limit: int) -> list[PendingTool]:
        """Read tools by server whose skills another classifier than this one gave them.

        Those that a person approved are not among them. ``after`` is as for ``pending``.
        """
        return await self._read_tools(
            "NULL",
            "WHERE is_classified AND gone_at IS NULL AND classified_by <> ? AND classified_by <> ?"
            " AND (server_id, id) > (?, ?) ORDER BY server_id, id LIMIT ?",
            (by, REVIEW, *after, limit),
        )

    async def unsure(self, model: str, limit: int) -> list[PendingTool]:
        """Read tools that have no primary skill, with their vectors."""
        return await self._read_tools(
            "tool_vectors.embedding",
            f"JOIN {_HAS_VECTOR} WHERE is_classified AND gone_at IS NULL"
            " AND primary_skill_id IS NULL ORDER BY server_id, tools.id LIMIT ?",
            (model, limit),
        )

    async def by_ids(self, ids: Sequence[str]) -> list[PendingTool]:
        """Read the listed tools with these ids."""
        which = f"id IN ({placeholders(ids)}) ORDER BY server_id, name"
        return await self._read_tools("NULL", f"WHERE gone_at IS NULL AND {which}", ids)

    async def _read_tools(
        self, vector: str, rest: str, args: Sequence[object]
    ) -> list[PendingTool]:
        """Read tools with their vectors; ``rest`` is what follows the table's name."""
        query = Query(f"SELECT {TOOLS_TABLE.selected}, {vector} FROM tools {rest}", args)
        return await self._database.read(query, _pending)

    async def sample(self, server_id: str, limit: int) -> list[tuple[str, bytes]]:
        """Read names and definitions of some tools of a server."""
        return await self._read_rows(
            lambda row: (row[0], bytes(row[1])),
            "SELECT name, definition FROM tools WHERE server_id = ? AND gone_at IS NULL"
            " ORDER BY position, name LIMIT ?",
            server_id,
            limit,
        )

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
        return await self._read_rows(
            lambda row: Membership(*row),
            "SELECT skill_members.skill_id, tools.id, tools.server_id, tools.name"
            " FROM skill_members JOIN tools ON tools.id = skill_members.tool_id"
            " WHERE (skill_members.skill_id, skill_members.tool_id) > (?, ?)"
            " AND tools.gone_at IS NULL"
            " ORDER BY skill_members.skill_id, skill_members.tool_id LIMIT ?",
            *after,
            _PAGE,
        )

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
        yield Batch(SET_SKILLS, changed)
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
    yield Batch("INSERT INTO skill_members (skill_id, tool_id) VALUES (?, ?)", members)
    vectors = [(one.tool_id, model, one.hash, one.embedding) for one in given if one.embedding]
    yield Batch(_BY_ID, vectors)


def _own_memberships(rows: Rows) -> list[tuple[str, str, str]]:
    found = []
    for server_id, name, own, given in rows:
        try:
            skills = msgspec.json.decode(own) or msgspec.json.decode(given)
        except (msgspec.MsgspecError, TypeError):  # a damaged row; reading it whole reports it
            continue
        found += [(skill, server_id, name) for skill in skills]
    return found


class StoredVector(NamedTuple):
    """The vector of a tool, and the hash of its text."""

    name: str
    hash: str
    vector: bytes


class UnembeddedTool(NamedTuple):
    """A tool that has no vector by some model."""

    server_id: str
    name: str
    hash: str
    definition: bytes


class ToolVectors(StoreTable):
    """All vectors of all tools."""

    async def lacking(self, model: str, limit: int) -> list[UnembeddedTool]:
        """Read classified tools that have no vector of their definition by this model."""
        return await self._read_rows(
            lambda row: UnembeddedTool(row[0], row[1], row[2], bytes(row[3])),
            "SELECT server_id, name, hash, definition FROM tools"
            " WHERE is_classified AND gone_at IS NULL AND NOT EXISTS (SELECT 1 FROM tool_vectors"
            " WHERE tool_id = tools.id AND model = ? AND tool_vectors.hash = tools.hash)"
            " ORDER BY server_id, name LIMIT ?",
            model,
            limit,
        )

    async def of_server(self, server_id: str, model: str) -> list[StoredVector]:
        """Read the vectors by one model of a server's listed tools."""
        return await self._read_rows(
            lambda row: StoredVector(row[0], row[1], bytes(row[2])),
            "SELECT tools.name, tool_vectors.hash, tool_vectors.embedding FROM tools"
            " JOIN tool_vectors ON tool_vectors.tool_id = tools.id"
            " WHERE tools.server_id = ? AND tools.gone_at IS NULL AND tool_vectors.model = ?",
            server_id,
            model,
        )

    @transaction(durable=False)
    def put(self, server_id: str, model: str, vectors: Sequence[StoredVector]) -> Script[set[str]]:
        """Store vectors of a server's tools; return the names of those that are there."""
        names = [one.name for one in vectors]
        rows = yield Query(
            f"SELECT name FROM tools WHERE server_id = ? AND name IN ({placeholders(names)})",
            (server_id, *names),
        )
        yield Batch(
            _BY_NAME, [(model, one.hash, one.vector, server_id, one.name) for one in vectors]
        )
        return {row[0] for row in rows}

    @transaction()
    def renew(self, kind: str, table: str) -> Script[bool]:
        """Forget what other tables of this kind made; return whether this one is new here.

        Their vectors are removed, tools that were classified offline are classified again, and the
        vectors of skills computed again. Verdicts of others hold.
        """
        topic = f"{_MADE_BY}{table}"
        if not (yield begin_topic(topic)):
            return False
        yield lock_skills()
        yield Query(
            "DELETE FROM counters WHERE topic LIKE ? AND topic <> ?", (f"{_MADE_BY}{kind}%", topic)
        )
        yield Query(
            "DELETE FROM tool_vectors WHERE model LIKE ? AND model NOT LIKE ?",
            (f"{kind}%", f"{table}/%"),
        )
        yield Query(
            "UPDATE tools SET is_classified = ? WHERE is_classified AND classified_by IN (?, ?)",
            (False, "", OFFLINE),
        )
        yield Query("UPDATE skills SET marked = marked + 1 WHERE embedding IS NOT NULL")
        yield bump(TOOLS_TOPIC)
        return True
