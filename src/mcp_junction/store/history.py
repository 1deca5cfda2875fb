"""History: the shelf of what happened to each server's connection, newest first, bounded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from mcp_junction.errors import NotFound
from mcp_junction.store.database import Database, Query, Script, bump, insert
from mcp_junction.store.records import HistoryEvent, HistoryRecord
from mcp_junction.store.table import Table

TABLE = Table("connection_history", HistoryRecord, json={"details"})
KEPT: Final = 1_000
"""Entries per server; older ones make room."""
_PRUNE_EVERY: Final = 100


class History:
    """Connection history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self, server_id: str, event: HistoryEvent, details: Mapping[str, Any] | None = None
    ) -> HistoryRecord:
        """Raises NotFound when the server is gone."""
        script = _add(server_id, event, dict(details or {}), time.time())
        return await self._database.write(script, durable=False)

    async def of(
        self, server_id: str, *, before: int | None = None, limit: int = 100
    ) -> list[HistoryRecord]:
        """Newest first; ``before`` is the last id of the page before."""
        query = Query(
            f"SELECT {TABLE.selected} FROM connection_history WHERE server_id = ? AND id < ?"
            " ORDER BY id DESC LIMIT ?",
            (server_id, before if before is not None else 2**62, limit),
        )
        return await self._database.read(query, TABLE.records)

    async def count(self, server_id: str) -> int:
        """How many entries of a server are kept."""
        query = Query("SELECT count(*) FROM connection_history WHERE server_id = ?", (server_id,))
        return await self._database.read(query, lambda rows: int(rows[0][0]))


def _add(
    server_id: str, event: HistoryEvent, details: dict[str, Any], at: float
) -> Script[HistoryRecord]:
    if not (yield Query("SELECT id FROM servers WHERE id = ?", (server_id,))):
        raise NotFound(f"there is no server with the id {server_id!r}")
    rows = yield bump("connection_history")
    record = HistoryRecord(int(rows[0][0]), server_id, event.value, details, at)
    yield Query(insert(TABLE.name, TABLE.columns), TABLE.values(record))
    if record.id % _PRUNE_EVERY == 0:
        yield Query(
            "DELETE FROM connection_history WHERE server_id = ? AND id <= ("
            "SELECT id FROM connection_history WHERE server_id = ? ORDER BY id DESC"
            " LIMIT 1 OFFSET ?)",
            (server_id, server_id, KEPT),
        )
    return record
