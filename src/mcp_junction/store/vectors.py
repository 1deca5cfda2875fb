"""ToolVectors: the vectors of tools, by model. Vectors of two models are never read together.

A vector is kept with the hash of the text that it was made of, and leaves with its tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mcp_junction.store.database import Batch, Query, Rows, Script, placeholders
from mcp_junction.store.table import StoreTable, transaction

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


class ToolVectors(StoreTable):
    """All vectors of all tools."""

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


def _vectors(rows: Rows) -> list[StoredVector]:
    return [StoredVector(row[0], row[1], bytes(row[2])) for row in rows]
