"""What the rules of ``resilience/`` keep in the store, so that a restart loses nothing of it.

LimitTable: what is used up of the limits of grants. CircuitTable: the states of circuits.
ClaimTable: claims on idempotency keys, and the sealed results of calls that were claimed; of two
racing calls, whichever process they are in, one gets the claim: its key is unique.
EscalationTable: calls that failed after all retries and fallbacks, for an operator. Counting and
deciding is the task of ``governance/``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final, Self

import msgspec

from mcp_junction.errors import AlreadyExists
from mcp_junction.resilience.breaker import BreakerRow, BreakerState
from mcp_junction.resilience.buckets import WindowState
from mcp_junction.resilience.idempotency import KEPT_FOR, Claim, ClaimKey, ClaimState
from mcp_junction.store.database import Compute, Query, Script, make_where, placeholders
from mcp_junction.store.protected import SignedRecord, SignedTable
from mcp_junction.store.table import Table, transaction

_BY_KEY: Final = "WHERE agent_id = ? AND server_id = ? AND tool_name = ? AND key = ?"
_CLAIM: Final = " ON CONFLICT (agent_id, server_id, tool_name, key) DO NOTHING RETURNING id"
_SETTLED: Final = (ClaimState.DONE, ClaimState.EXECUTED)


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

    _table = Table("limit_windows", WindowRecord, json={"slots"})

    async def all(self, now: float) -> list[WindowRecord]:
        """Read the windows that still count."""
        return await self.read_all("WHERE expires_at > ?", now)

    @transaction(durable=False)
    def store(self, records: Sequence[WindowRecord], now: float) -> Script[None]:
        """Store windows in place of what was known of them; remove those that no longer count."""
        for record in records:
            yield self.put(record)
        yield Query("DELETE FROM limit_windows WHERE expires_at <= ?", (now,))


class CircuitRecord(SignedRecord, frozen=True):
    """The state of one circuit when it last changed."""

    server_id: str
    tool_name: str
    state: BreakerState
    failure_count: int
    last_failure_time: float | None
    opened_at: float | None

    @classmethod
    def of(cls, row: BreakerRow) -> Self:
        times = row.last_failure_time, row.opened_at
        return cls(row.server_id, row.tool_name, row.state, row.failure_count, *times)

    @property
    def row(self) -> BreakerRow:
        circuit = self.server_id, self.tool_name, self.state, self.failure_count
        return BreakerRow(*circuit, 0, self.last_failure_time, self.opened_at)


class CircuitTable(SignedTable[CircuitRecord]):
    """The circuits that have ever opened."""

    _table = Table("circuits", CircuitRecord, key=("server_id", "tool_name"))

    async def all(self) -> list[BreakerRow]:
        """Read the states of all circuits."""
        return [record.row for record in await self.read_all()]

    @transaction(durable=False)
    def store(self, rows: Sequence[BreakerRow]) -> Script[None]:
        """Store states, each in place of the one that its circuit had."""
        for row in sorted(rows, key=lambda row: row.circuit_key):
            yield self.put(CircuitRecord.of(row))

    @transaction()
    def forget(self, server_id: str) -> Script[None]:
        """Remove the circuits of a server."""
        yield Query("DELETE FROM circuits WHERE server_id = ?", (server_id,))


class ClaimRecord(SignedRecord, frozen=True):
    """A claim as it is stored."""

    id: str
    agent_id: str
    server_id: str
    tool_name: str
    key: str
    arguments: str
    state: ClaimState
    owner: str
    made_at: float
    held_until: float | None = None
    """Until when a call that waits for its client may come back."""
    result: bytes | None = None
    """The sealed result."""

    @property
    def claim(self) -> Claim:
        return Claim(self.claim_key, self.arguments, self.state, self.owner, self.made_at)

    @property
    def claim_key(self) -> ClaimKey:
        return ClaimKey(self.agent_id, self.server_id, self.tool_name, self.key)


class ClaimTable(SignedTable[ClaimRecord]):
    """All claims that are kept."""

    _table = Table("idempotency_claims", ClaimRecord)
    protected = ("result", "mac")

    async def find(self, key: ClaimKey) -> ClaimRecord | None:
        """Read the claim on a key."""
        return await self.read_first(_BY_KEY, *key)

    async def make(self, new: ClaimRecord) -> ClaimRecord | None:
        """Claim a key; return None when that was done, else the claim that there is already.

        A claim that is no longer kept is replaced.
        """
        for _ in range(3):
            try:
                return await self._make(new)
            except AlreadyExists:  # another process has replaced an old claim at the same time
                continue
        return await self.find(new.claim_key)

    @transaction()
    def _make(self, new: ClaimRecord) -> Script[ClaimRecord | None]:
        signed = self.sign(new)
        if (yield self._table.add(signed, _CLAIM)):
            return None
        found = yield from self.read_one(_BY_KEY, *new.claim_key)
        if found is not None and found.claim.is_kept(new.made_at):
            return found
        yield Query(f"DELETE FROM idempotency_claims {_BY_KEY}", new.claim_key)
        yield self._table.add(signed)
        return None

    @transaction()
    def settle(self, claim_id: str, state: ClaimState, result: bytes | None = None) -> Script[None]:
        """Store how a claimed call ended, with its result, which is sealed here.

        What is known to have run stays so; one that counted as unknown may turn out to have.
        """
        found = yield from self.read_one("WHERE id = ?", claim_id)
        if found is None or found.state in _SETTLED:
            return
        ((query,),) = yield Compute(partial(self._settle, found, state, result))
        yield query

    def _settle(self, found: ClaimRecord, state: ClaimState, result: bytes | None) -> Query:
        sealed = None if result is None else self.seal(result, found.id)
        return self.put(msgspec.structs.replace(found, state=state, held_until=None, result=sealed))

    @transaction()
    def hold(self, claim_id: str, until: float) -> Script[None]:
        """Keep a claim for a call that waits for its client."""
        found = yield from self.read_one("WHERE id = ?", claim_id)
        if found is not None and found.state is ClaimState.RUNNING:
            yield self.put(msgspec.structs.replace(found, held_until=until))

    @transaction()
    def take_over(self, claim_id: str, owner: str) -> Script[None]:
        """Say that a process goes on with a call whose client has come back."""
        found = yield from self.read_one("WHERE id = ?", claim_id)
        if found is not None and found.state is ClaimState.RUNNING:
            yield self.put(msgspec.structs.replace(found, owner=owner, held_until=None))

    @transaction()
    def release(self, claim_id: str) -> Script[None]:
        """Give a claim up: nothing was sent, and the next call may run."""
        yield Query("DELETE FROM idempotency_claims WHERE id = ?", (claim_id,))

    def open(self, record: ClaimRecord) -> bytes | None:
        """Decrypt the result of a claim; None when it has none. Raises VaultError."""
        return None if record.result is None else self._open(record.result, record.id)

    @transaction()
    def retire(self, now: float, living: Collection[str]) -> Script[int]:
        """Remove claims that are no longer kept; ``living`` are the owners that still run."""
        owners = sorted(living)
        rows = yield Query(
            "DELETE FROM idempotency_claims WHERE made_at < ? AND"
            f" (state <> ? OR held_until < ? OR owner NOT IN ({placeholders(owners)}))"
            " RETURNING id",
            (now - KEPT_FOR, ClaimState.RUNNING.value, now, *owners),
        )
        return len(rows)


# -- calls that failed


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
    noun = "escalation"

    async def read(self, asked: EscalationQuery) -> list[EscalationRecord]:
        """Read escalations, the newest first."""
        kept = "acknowledged_at IS NULL" if asked.is_open else "acknowledged_at IS NOT NULL"
        where, args = make_where(
            None if asked.agent_id is None else ("agent_id = ?", (asked.agent_id,)),
            None if asked.server_id is None else ("server_id = ?", (asked.server_id,)),
            None if asked.is_open is None else (kept, ()),
            None if asked.before is None else ("(first_at, id) < (?, ?)", asked.before),
        )
        rest = f"{where} ORDER BY first_at DESC, id DESC LIMIT ?"
        return await self.read_all(rest, *args, asked.limit)

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
        found = yield from self.get_one(escalation_id)
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
