"""LimitTable: stores what is used up of the limits of grants. Counting is ``governance``'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from mcp_junction.resilience.buckets import WindowState
from mcp_junction.store.database import Database, Query, Script
from mcp_junction.store.signed import SignedRecord, SignedTable, Signer
from mcp_junction.store.table import Table, transaction

KEY: Final = ("grant_id",)


class WindowRecord(SignedRecord, frozen=True):
    """What one grant has used: the calls of each slot of its window."""

    grant_id: str
    per: float
    slots: dict[str, int]
    expires_at: float
    """From when on nothing of it counts."""

    @classmethod
    def of(cls, grant_id: str, state: WindowState, now: float) -> Self:
        slots = {str(slot): calls for slot, calls in state.slots.items()}
        return cls(grant_id, state.per, slots, now + 2 * state.per)

    @property
    def state(self) -> WindowState:
        return WindowState(self.per, {int(slot): calls for slot, calls in self.slots.items()})


class LimitTable(SignedTable[WindowRecord]):
    """The windows of all grants that have a limit."""

    def __init__(self, database: Database, signer: Signer) -> None:
        super().__init__(database, signer, Table("limit_windows", WindowRecord, json={"slots"}))

    async def all(self, now: float) -> list[WindowRecord]:
        """Read the windows that still count."""
        return await self.read_all("WHERE expires_at > ?", now)

    @transaction(durable=False)
    def store(self, records: Sequence[WindowRecord], now: float) -> Script[None]:
        """Store windows in place of what was known of them; remove those that no longer count."""
        for record in records:
            yield self.put(record, KEY)
        yield Query("DELETE FROM limit_windows WHERE expires_at <= ?", (now,))
