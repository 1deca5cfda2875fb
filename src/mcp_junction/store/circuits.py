"""CircuitTable: stores the states of circuits, so that a restart does not close them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mcp_junction.resilience.breaker import BreakerRow, BreakerState
from mcp_junction.store.database import Database, Query, Script
from mcp_junction.store.signed import SignedRecord, SignedTable, Signer
from mcp_junction.store.table import Table, transaction


class CircuitRecord(SignedRecord, frozen=True):
    """The state of one circuit when it last changed."""

    server_id: str
    tool_name: str
    state: BreakerState
    failure_count: int
    last_failure_time: float | None
    opened_at: float | None


_KEY: Final = ("server_id", "tool_name")


class CircuitTable(SignedTable[CircuitRecord]):
    """The circuits that have ever opened."""

    def __init__(self, database: Database, signer: Signer) -> None:
        super().__init__(database, signer, Table("circuits", CircuitRecord, key=_KEY))

    async def all(self) -> list[BreakerRow]:
        """Read the states of all circuits."""
        return [_to_row(record) for record in await self.read_all()]

    @transaction(durable=False)
    def store(self, rows: Sequence[BreakerRow]) -> Script[None]:
        """Store states, each in place of the one that its circuit had."""
        for row in sorted(rows, key=lambda row: row.circuit_key):
            yield self.put(_to_record(row), _KEY)

    @transaction()
    def forget(self, server_id: str) -> Script[None]:
        """Remove the circuits of a server."""
        yield Query("DELETE FROM circuits WHERE server_id = ?", (server_id,))


def _to_record(row: BreakerRow) -> CircuitRecord:
    return CircuitRecord(
        server_id=row.server_id,
        tool_name=row.tool_name,
        state=row.state,
        failure_count=row.failure_count,
        last_failure_time=row.last_failure_time,
        opened_at=row.opened_at,
    )


def _to_row(record: CircuitRecord) -> BreakerRow:
    return BreakerRow(
        record.server_id,
        record.tool_name,
        record.state,
        record.failure_count,
        0,
        record.last_failure_time,
        record.opened_at,
    )
