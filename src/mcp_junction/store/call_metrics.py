"""CallMetricTable: what was counted of calls, by minutes and hours, in signed rows.

Minutes are made into hours once they are over for a while, and kept beside them for two days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mcp_junction.store.database import Batch, Query, Script, make_where
from mcp_junction.store.protected import SignedRecord, SignedTable
from mcp_junction.store.table import Table, transaction

MINUTE: Final = 60
HOUR: Final = 3_600
_TOPIC: Final = "call_metrics"


class CallMetricRecord(SignedRecord, frozen=True, gc=False):
    """What one process counted of one tool in a minute or an hour."""

    server_id: str
    tool_name: str
    span: int
    at: int
    writer: str
    retries: int
    fallbacks: int
    total_ms: float
    errors: dict[str, int]
    latencies: dict[str, int]
    """The number of calls in each bin of latencies."""


class CallMetricTable(SignedTable[CallMetricRecord]):
    """The counts of all processes on this store."""

    _table = Table(
        "call_metrics",
        CallMetricRecord,
        json={"errors", "latencies"},
        key=("server_id", "tool_name", "span", "at", "writer"),
    )

    def prepare(self, records: Sequence[CallMetricRecord]) -> list[list[Any]]:
        """Sign records, to be stored. It takes a moment: call it off the event loop."""
        return [self._table.values(self.sign(record)) for record in records]

    async def first_open_hour(self) -> int:
        """Return the number of the first hour that is not made of its minutes yet; 0 is any."""
        return await self._read_number("SELECT value FROM counters WHERE topic = ?", _TOPIC) or 0

    @transaction(durable=False)
    def add(self, rows: Sequence[Sequence[Any]]) -> Script[None]:
        """Store prepared rows; what is stored already stays as it is."""
        yield Batch(f"{self._table.insert} ON CONFLICT DO NOTHING", rows)

    @transaction(durable=False)
    def close_hours(self, before: int, after: int, rows: Sequence[Sequence[Any]]) -> Script[bool]:
        """Store prepared rows of hours, and move the first open hour from ``before`` to ``after``.

        Returns whether that was done: another process may have been faster.
        """
        yield Query(
            "INSERT INTO counters (topic, value) VALUES (?, 0) ON CONFLICT DO NOTHING", (_TOPIC,)
        )
        moved = yield Query(
            "UPDATE counters SET value = ? WHERE topic = ? AND value = ? RETURNING value",
            (after, _TOPIC, before),
        )
        if moved and rows:
            yield Batch(f"{self._table.insert} ON CONFLICT DO NOTHING", rows)
        return bool(moved)

    async def first_minute(self, since: int) -> int | None:
        """Return the time of the first minute from a time on that has rows."""
        sql = "SELECT min(at) FROM call_metrics WHERE span = ? AND at >= ?"
        return await self._read_number(sql, MINUTE, since)

    async def read(
        self,
        span: int,
        since: int,
        until: int,
        server_id: str | None = None,
        tool_name: str | None = None,
    ) -> list[CallMetricRecord]:
        """Read the records of minutes or hours that begin within a time."""
        where, args = make_where(
            ("span = ? AND at >= ? AND at < ?", (span, since, until)),
            None if server_id is None else ("server_id = ?", (server_id,)),
            None if tool_name is None else ("tool_name = ?", (tool_name,)),
        )
        return await self.read_all(where, *args)

    @transaction(durable=False)
    def remove(self, span: int, before: int) -> Script[None]:
        """Remove the minutes or hours that began before a time."""
        yield Query("DELETE FROM call_metrics WHERE span = ? AND at < ?", (span, before))
