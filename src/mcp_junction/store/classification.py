"""Classification: the shelf of which tools have which skills, and of the vectors of tools.

What is said of a tool holds for the definition it was said of: if the tool has changed, or left, or
its server has, meanwhile, it is not written. A server's row is held first, as by whoever replaces
its list.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from mcp_junction.errors import UnreadableRow
from mcp_junction.store.database import Batch, Database, Query, Rows, Script, bump, insert
from mcp_junction.store.records import Classified, PendingTool
from mcp_junction.store.skills import held, marked, places
from mcp_junction.store.tools import LOCKED, TOOLS_TABLE, TOOLS_TOPIC

_PENDING: Final = (
    f"SELECT {TOOLS_TABLE.selected}, tool_vectors.embedding FROM tools LEFT JOIN tool_vectors"
    " ON tool_vectors.tool_id = tools.id AND tool_vectors.hash = tools.hash"
    " WHERE NOT is_classified AND gone_at IS NULL AND (server_id, id) > (?, ?)"
    " ORDER BY server_id, id LIMIT ?"
)


class Classification:
    """What tools are good for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def pending(self, after: tuple[str, str], limit: int) -> list[PendingTool]:
        """Tools that are not classified, by server; ``after`` is (server, tool) of the last."""
        return await self._database.read(Query(_PENDING, (*after, limit)), _pending)

    async def holding(self, skill_ids: Sequence[str]) -> set[tuple[str, str]]:
        """The tools that have any of these skills, each by its server's id and its name."""
        query = Query(
            "SELECT server_id, name FROM tools WHERE gone_at IS NULL AND id IN"
            f" (SELECT tool_id FROM skill_members WHERE skill_id IN ({places(skill_ids)}))",
            skill_ids,
        )
        return await self._database.read(query, lambda rows: {(row[0], row[1]) for row in rows})

    async def put(self, server_id: str, given: Sequence[Classified]) -> set[str]:
        """What was found out about tools of a server; the ids of those it is written for."""
        return await self._database.write(_put(server_id, given), durable=False)

    async def forget(self, server_id: str) -> int:
        """Have all tools of a server classified again; how many."""
        return await self._database.write(_forget(server_id))


def _pending(rows: Rows) -> list[PendingTool]:
    found = []
    for row in map(tuple, rows):
        try:
            found.append(PendingTool(TOOLS_TABLE.record(row[:-1]), row[-1]))
        except UnreadableRow:
            pass  # it is reported
    return found


def _put(server_id: str, given: Sequence[Classified]) -> Script[set[str]]:
    if not (yield Query(LOCKED, (server_id,))):
        return set()
    yield held()
    ids = [one.tool_id for one in given]
    rows = yield Query(
        f"SELECT id, hash, name FROM tools WHERE gone_at IS NULL AND id IN ({places(ids)})", ids
    )
    names = {(row[0], row[1]): row[2] for row in rows}
    rows = yield Query("SELECT id FROM skills")
    valid = _valid(given, names.keys(), {row[0] for row in rows})
    valid.sort(key=lambda one: names[one.tool_id, one.hash])  # one order for all who lock several
    yield from _joined(valid)
    yield Batch(
        "UPDATE tools SET skill_ids = ?, skill_confidences = ?, primary_skill_id = ?,"
        " is_classified = ? WHERE id = ?",
        [_columns(one) for one in valid],
    )
    yield bump(TOOLS_TOPIC)
    return {one.tool_id for one in valid}


def _valid(
    given: Sequence[Classified], current: Collection[tuple[str, str]], skills: set[str]
) -> list[Classified]:
    """What still holds: of tools as they are, and of skills that there are."""
    return [
        one
        for one in given
        if (one.tool_id, one.hash) in current and one.confidences.keys() <= skills
    ]


def _joined(given: Sequence[Classified]) -> Script[None]:
    """Make tools members of their skills, and of no others."""
    ids = [one.tool_id for one in given]
    rows = yield Query(
        f"SELECT DISTINCT skill_id FROM skill_members WHERE tool_id IN ({places(ids)})", ids
    )
    members = [(skill, one.tool_id) for one in given for skill in one.confidences]
    yield marked([*(row[0] for row in rows), *(skill for skill, _ in members)])
    yield Query(f"DELETE FROM skill_members WHERE tool_id IN ({places(ids)})", ids)
    yield Batch(insert("skill_members", ("skill_id", "tool_id")), members)
    vectors = [(one.tool_id, one.hash, one.embedding) for one in given if one.embedding]
    yield Batch(
        insert("tool_vectors", ("tool_id", "hash", "embedding"))
        + " ON CONFLICT (tool_id) DO UPDATE SET hash = excluded.hash,"
        " embedding = excluded.embedding",
        vectors,
    )


def _columns(one: Classified) -> list[Any]:
    ids = msgspec.json.encode(list(one.confidences)).decode()
    confidences = msgspec.json.encode(one.confidences).decode()
    return [ids, confidences, one.primary, True, one.tool_id]


def _forget(server_id: str) -> Script[int]:
    yield Query(LOCKED, (server_id,))
    yield held()
    rows = yield Query(
        "UPDATE tools SET is_classified = ? WHERE server_id = ? AND gone_at IS NULL RETURNING id",
        (False, server_id),
    )
    yield bump(TOOLS_TOPIC)
    return len(rows)
