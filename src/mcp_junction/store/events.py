"""Events: the table of numbered events, from which a stream can be resumed.

Numbers are given while the counter is locked: a reader that has seen number n has seen all before
it. Only the newest are kept; ``bounds`` tells a late reader which is the first.

DeliveryTable stores what a webhook is told of them, until that was accepted or given up. A process
claims what it delivers for a while; what nobody claims any more, because its process has ended,
another one takes over. Delivering is ``governance/webhooks.py``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from mcp_junction.store.database import (
    Database,
    Load,
    Query,
    Script,
    bump,
    placeholders,
)
from mcp_junction.store.protected import SignedRecord, SignedTable
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


class DeliveryState(StrEnum):
    """What became of a delivery."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"


WAITING: Final = DeliveryState.WAITING
DEAD: Final = DeliveryState.DEAD


class DeliveryRecord(SignedRecord, frozen=True):
    """One event that the webhook is told of."""

    seq: int
    """The number of the event."""
    type: str
    subject: str | None
    body: str
    """What is posted; empty once it was accepted."""
    at: float
    """When the event was published."""
    state: DeliveryState = WAITING
    attempts: int = 0
    claimed_until: float = 0.0
    """Until when it is some process's own."""
    why: str | None = None
    """Why the last attempt failed."""

    @property
    def id(self) -> str:
        """The id that the receiver knows it by."""
        return f"evt_{self.seq}"


class DeliveryTable(SignedTable[DeliveryRecord]):
    """The deliveries of all processes on this store."""

    _table = Table("webhook_deliveries", DeliveryRecord)
    consequence = "are not posted"

    @transaction()
    def add(self, new: DeliveryRecord) -> Script[bool]:
        """Store a delivery; False if the event has one."""
        added = self._table.add(self.sign(new), " ON CONFLICT (seq) DO NOTHING RETURNING seq")
        return bool((yield added))

    @transaction()
    def update(self, record: DeliveryRecord) -> Script[None]:
        """Store what became of a delivery."""
        yield self.put(record)

    @transaction()
    def claim(self, now: float, until: float, most: int) -> Script[list[DeliveryRecord]]:
        """Take over deliveries that no process claims; of two that try, one gets each."""
        rest = "WHERE state = ? AND claimed_until < ? ORDER BY seq LIMIT ?"
        claimed = []
        for found in (yield from self.read_many(rest, WAITING.value, now, most)):
            signed = self.sign(msgspec.structs.replace(found, claimed_until=until))
            rows = yield Query(
                "UPDATE webhook_deliveries SET claimed_until = ?, mac = ?"
                " WHERE seq = ? AND state = ? AND claimed_until = ? RETURNING seq",
                (until, signed.mac, found.seq, WAITING.value, found.claimed_until),
            )
            if rows:
                claimed.append(signed)
        return claimed

    @transaction()
    def revive(self, seq: int, until: float) -> Script[DeliveryRecord | None]:
        """Have a delivery that was given up begin anew, claimed; None if it is not given up.

        Of two that try, one gets it.
        """
        found = yield from self.read_one("WHERE seq = ? AND state = ?", seq, DEAD.value)
        if found is None:
            return None
        anew = msgspec.structs.replace(
            found, state=WAITING, attempts=0, why=None, claimed_until=until
        )
        signed = self.sign(anew)
        rows = yield Query(
            "UPDATE webhook_deliveries SET state = ?, attempts = 0, why = NULL, claimed_until = ?,"
            " mac = ? WHERE seq = ? AND state = ? RETURNING seq",
            (WAITING.value, until, signed.mac, seq, DEAD.value),
        )
        return signed if rows else None

    async def last_number(self) -> int | None:
        """Return the number of the newest event that has a delivery; None if none ever had."""
        return await self._read_number("SELECT max(seq) FROM webhook_deliveries")

    async def count(self, state: DeliveryState) -> int:
        """Count the deliveries in a state."""
        sql = "SELECT count(*) FROM webhook_deliveries WHERE state = ?"
        return await self._read_number(sql, state.value) or 0

    async def read_dead(self, most: int) -> list[DeliveryRecord]:
        """Read what was given up, the newest first."""
        return await self.read_all("WHERE state = ? ORDER BY seq DESC LIMIT ?", DEAD.value, most)

    @transaction()
    def retire(self, delivered_before: float, dead_before: float) -> Script[int]:
        """Remove what is over and of no use any more; return how many."""
        rows = yield Query(
            "DELETE FROM webhook_deliveries WHERE (state = ? AND at < ?) OR (state = ? AND at < ?)"
            " RETURNING seq",
            (DeliveryState.DELIVERED.value, delivered_before, DEAD.value, dead_before),
        )
        return len(rows)
