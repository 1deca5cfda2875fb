"""EscalationTable: stores calls that failed after all retries and fallbacks, for an operator."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mcp_junction.errors import NotFound
from mcp_junction.store.database import Query, Script
from mcp_junction.store.protected import SignedRecord, SignedTable
from mcp_junction.store.table import Table, transaction


class EscalationRecord(SignedRecord, frozen=True):
    """Calls of one agent to one tool that failed in the same way, while nobody has seen to it."""

    id: str
    agent_id: str
    server_id: str
    tool_name: str
    failure: str
    """How the last of them failed."""
    message: str
    delivery: str | None
    attempts: int
    correlation_id: str | None
    count: int
    first_at: float
    last_at: float
    acknowledged_at: float | None = None
    acknowledged_by: str | None = None
    note: str | None = None


class EscalationQuery(msgspec.Struct, frozen=True):
    """Which escalations to read; None is any."""

    agent_id: str | None = None
    server_id: str | None = None
    is_open: bool | None = None
    before: tuple[float, str] | None = None
    """The time and the id of the last one that was read before."""
    limit: int = 100


class EscalationTable(SignedTable[EscalationRecord]):
    """The escalations of all processes on this store."""

    _table = Table("escalations", EscalationRecord)

    async def read(self, asked: EscalationQuery) -> list[EscalationRecord]:
        """Read escalations, the newest first."""
        tests, args = ["TRUE"], list[object]()
        for column in ("agent_id", "server_id"):
            if (value := getattr(asked, column)) is not None:
                tests.append(f"{column} = ?")
                args.append(value)
        if asked.is_open is not None:
            tests.append(f"acknowledged_at IS {'' if asked.is_open else 'NOT '}NULL")
        if asked.before is not None:
            tests.append("(first_at, id) < (?, ?)")
            args.extend(asked.before)
        order = "ORDER BY first_at DESC, id DESC LIMIT ?"
        return await self.read_all(f"WHERE {' AND '.join(tests)} {order}", *args, asked.limit)

    async def find(self, escalation_id: str) -> EscalationRecord:
        """Read one escalation. Raises NotFound."""
        found = await self.read_first("WHERE id = ?", escalation_id)
        if found is None:
            raise NotFound(f"there is no escalation {escalation_id!r}")
        return found

    @transaction(durable=False)
    def store(self, records: Sequence[EscalationRecord]) -> Script[list[EscalationRecord]]:
        """Store open escalations; return those that somebody has acknowledged, as stored."""
        closed = []
        for record in sorted(records, key=lambda one: one.id):
            found = yield from self.read_one("WHERE id = ?", record.id)
            if found is not None and found.acknowledged_at is not None:
                closed.append(found)
            else:
                yield self.put(record)
        return closed

    @transaction()
    def acknowledge(
        self, escalation_id: str, at: float, by: str, note: str | None
    ) -> Script[EscalationRecord]:
        """Record that somebody has seen to it; a second time changes nothing. Raises NotFound."""
        found = yield from self.read_one("WHERE id = ?", escalation_id)
        if found is None:
            raise NotFound(f"there is no escalation {escalation_id!r}")
        if found.acknowledged_at is None:
            found = msgspec.structs.replace(
                found, acknowledged_at=at, acknowledged_by=by, note=note
            )
            yield self.put(found)
        return found

    @transaction()
    def retire(self, before: float, most: int) -> Script[int]:
        """Remove what is older than a time, and the oldest beyond ``most``; return how many."""
        rows = yield Query(
            "DELETE FROM escalations WHERE last_at < ? OR id NOT IN"
            " (SELECT id FROM escalations ORDER BY last_at DESC, id DESC LIMIT ?) RETURNING id",
            (before, most),
        )
        return len(rows)
