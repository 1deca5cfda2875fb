"""ToolVectors: the vectors of tools, by model. Vectors of two models are never read together.

A vector is kept with the hash of the text that it was made of, and leaves with its tool. Those of
a table that this program no longer has leave when it first starts with another (``renew``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mcp_junction.store.database import Batch, Query, Rows, Script, bump, placeholders
from mcp_junction.store.records import OFFLINE
from mcp_junction.store.table import StoreTable, transaction
from mcp_junction.store.tools import TOOLS_TOPIC, lock_skills

_MADE_BY: Final = "vectors of "
"""The beginning of the topic that is counted for the table in use."""
_PUT: Final = (
    "INSERT INTO tool_vectors (tool_id, model, hash, embedding)"
    " SELECT id, ?, ?, ? FROM tools WHERE server_id = ? AND name = ?"
    " ON CONFLICT (tool_id, model) DO UPDATE SET hash = excluded.hash,"
    " embedding = excluded.embedding"
)


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
        query = Query(
            "SELECT server_id, name, hash, definition FROM tools"
            " WHERE is_classified AND gone_at IS NULL AND NOT EXISTS (SELECT 1 FROM tool_vectors"
            " WHERE tool_id = tools.id AND model = ? AND tool_vectors.hash = tools.hash)"
            " ORDER BY server_id, name LIMIT ?",
            (model, limit),
        )
        return await self._database.read(
            query,
            lambda rows: [UnembeddedTool(row[0], row[1], row[2], bytes(row[3])) for row in rows],
        )

    async def of_server(self, server_id: str, model: str) -> list[StoredVector]:
        """Read the vectors by one model of a server's listed tools."""
        query = Query(
            "SELECT tools.name, tool_vectors.hash, tool_vectors.embedding FROM tools"
            " JOIN tool_vectors ON tool_vectors.tool_id = tools.id"
            " WHERE tools.server_id = ? AND tools.gone_at IS NULL AND tool_vectors.model = ?",
            (server_id, model),
        )
        return await self._database.read(query, _vectors)

    @transaction(durable=False)
    def put(self, server_id: str, model: str, vectors: Sequence[StoredVector]) -> Script[set[str]]:
        """Store vectors of a server's tools; return the names of those that are there."""
        names = [one.name for one in vectors]
        rows = yield Query(
            f"SELECT name FROM tools WHERE server_id = ? AND name IN ({placeholders(names)})",
            (server_id, *names),
        )
        yield Batch(_PUT, [(model, one.hash, one.vector, server_id, one.name) for one in vectors])
        return {row[0] for row in rows}

    @transaction()
    def renew(self, kind: str, table: str) -> Script[bool]:
        """Forget what other tables of this kind made; return whether this one is new here.

        Their vectors are removed, tools that were classified offline are classified again, and the
        vectors of skills computed again. Verdicts of others hold.
        """
        topic = f"{_MADE_BY}{table}"
        first = yield Query(
            "INSERT INTO counters (topic, value) VALUES (?, 1)"
            " ON CONFLICT DO NOTHING RETURNING value",
            (topic,),
        )
        if not first:
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


def _vectors(rows: Rows) -> list[StoredVector]:
    return [StoredVector(row[0], row[1], bytes(row[2])) for row in rows]
