"""Events: the table of numbered events, from which a stream can be resumed.

Numbers are given while the counter is locked: a reader that has seen number n has seen all before
it. Only the newest are kept; ``bounds`` tells a late reader which is the first.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final

from mcp_junction.store.database import Database, Load, Query, Script, bump, placeholders
from mcp_junction.store.records import EventRecord, NewEvent
from mcp_junction.store.table import StoreTable, Table, transaction

TABLE = Table("events", EventRecord, json={"data"})
TOPIC = "events"
KEPT: Final = 50_000


class Events(StoreTable):
    """The newest events of all processes on this store."""

    def __init__(self, database: Database, kept: int = KEPT) -> None:
        super().__init__(database)
        self._kept = kept

    @transaction(durable=False)
    def append(self, events: Sequence[NewEvent]) -> Script[list[EventRecord]]:
        """Store events, and return them with their numbers."""
        if not events:
            return []
        now = time.time()
        rows = yield bump(TOPIC, len(events))
        last = int(rows[0][0])
        first = last - len(events) + 1
        records = [
            EventRecord(seq, e.at or now, e.origin, e.type, e.subject, e.data)
            for seq, e in enumerate(events, first)
        ]
        yield Load("events", TABLE.columns, [TABLE.values(record) for record in records])
        slack = max(self._kept // 10, 1)  # not with every append
        if last // slack != (first - 1) // slack:
            yield Query("DELETE FROM events WHERE seq <= ?", (last - self._kept,))
        return records

    async def after(
        self, seq: int, *, limit: int = 1_000, types: Collection[str] = ()
    ) -> list[EventRecord]:
        """Read the events after a number, oldest first."""
        chosen = f"AND type IN ({placeholders(list(types))})" if types else ""
        rest = f"WHERE seq > ? {chosen} ORDER BY seq LIMIT ?"
        return await self._read(TABLE, rest, seq, *types, limit)

    async def bounds(self) -> tuple[int, int]:
        """Return the first number that is kept, and the last one given; (1, 0) at the beginning."""
        query = Query(
            "SELECT (SELECT min(seq) FROM events),"
            " (SELECT value FROM counters WHERE topic = 'events')"
        )
        first, last = await self._database.read(query, lambda rows: (rows[0][0], rows[0][1]))
        last = int(last or 0)
        return (int(first) if first is not None else last + 1), last
