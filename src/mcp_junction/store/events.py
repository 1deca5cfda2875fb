"""Events: the shelf of what happened, numbered, so that a stream can be taken up again.

Numbers are given while the counter is held: who has seen number n has seen all before it. Only the
newest are kept; a reader that comes too late is told so by ``first``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final

from mcp_junction.store.database import Database, Load, Query, Script, bump
from mcp_junction.store.records import EventRecord, NewEvent
from mcp_junction.store.table import Table

TABLE = Table("events", EventRecord, json={"data"})
TOPIC = "events"
KEPT: Final = 50_000


class Events:
    """The newest events of all processes on this store."""

    def __init__(self, database: Database, kept: int = KEPT) -> None:
        self._database = database
        self._kept = kept

    async def append(self, events: Sequence[NewEvent]) -> list[EventRecord]:
        """The events with their numbers."""
        if not events:
            return []
        return await self._database.write(_append(events, self._kept), durable=False)

    async def after(
        self, seq: int, *, limit: int = 1_000, types: Collection[str] = ()
    ) -> list[EventRecord]:
        """The events that follow a number, oldest first."""
        chosen = f"AND type IN ({', '.join('?' * len(types))})" if types else ""
        query = Query(
            f"SELECT {TABLE.selected} FROM events WHERE seq > ? {chosen} ORDER BY seq LIMIT ?",
            (seq, *types, limit),
        )
        return await self._database.read(query, TABLE.records)

    async def bounds(self) -> tuple[int, int]:
        """The first number that is still kept, and the last one given; (1, 0) at the beginning."""
        query = Query(
            "SELECT (SELECT min(seq) FROM events),"
            " (SELECT value FROM counters WHERE topic = 'events')"
        )
        first, last = await self._database.read(query, lambda rows: (rows[0][0], rows[0][1]))
        last = int(last or 0)
        return (int(first) if first is not None else last + 1), last


def _append(events: Sequence[NewEvent], kept: int) -> Script[list[EventRecord]]:
    now = time.time()
    rows = yield bump(TOPIC, len(events))
    last = int(rows[0][0])
    first = last - len(events) + 1
    records = [
        EventRecord(seq, e.at or now, e.origin, e.type, e.subject, e.data)
        for seq, e in enumerate(events, first)
    ]
    yield Load("events", TABLE.columns, [TABLE.values(record) for record in records])
    slack = max(kept // 10, 1)  # not with every append
    if last // slack != (first - 1) // slack:
        yield Query("DELETE FROM events WHERE seq <= ?", (last - kept,))
    return records
