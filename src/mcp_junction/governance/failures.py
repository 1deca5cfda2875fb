"""Circuits and Escalations: what failed calls lead to, stored and announced.

The machine of circuits is ``resilience/breaker.py``. Calls go on by the states in memory when the
store fails: a change is then stored as soon as it can be. Each process has circuits of its own;
what one has stored the others see at their next start.

Escalations are calls that failed although all was tried, recorded for a person to see to. Failures
of one agent at one tool share a record until somebody acknowledges it: an outage makes one of each,
with a count, and one event. They are stored a moment later; while the store is away they are kept
in memory, in limited number.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Any, Final

import msgspec

from mcp_junction.errors import StoreError
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.resilience.breaker import (
    CLOSED,
    OPEN,
    WHOLE_SERVER,
    BreakerRow,
    BreakerSettings,
)
from mcp_junction.resilience.breakers import Breakers
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.resilience import (
    CircuitTable,
    EscalationQuery,
    EscalationRecord,
    EscalationTable,
)
from mcp_junction.store.retention import DAY, remove_regularly
from mcp_junction.telemetry.bus import Bus
from mcp_junction.upstream.events import ServerChange, ServerChanged

log = logging.getLogger("mcp_junction.governance")

OPENED: Final = "circuit.opened"
CLOSED_EVENT: Final = "circuit.closed"
_RETRY: Final = 1.0
_KINDS: Final = {OPEN: OPENED, CLOSED: CLOSED_EVENT}


class Circuits:
    """Breakers that survive a restart."""

    def __init__(
        self,
        settings: BreakerSettings,
        table: CircuitTable,
        bus: Bus,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.breakers = Breakers(settings)
        self._table = table
        self._bus = bus
        self._now = now
        self._unstored: dict[tuple[str, str], BreakerRow] = {}
        self._forgotten: set[str] = set()
        self._wake = asyncio.Event()
        self._server_names: dict[str, str] = {}

    async def restore(self) -> None:
        """Take over the stored states. Without the store all circuits begin closed."""
        try:
            self.breakers.restore(await self._table.all(), self._now())
        except StoreError as error:
            log.warning("the states of circuits cannot be read, and all begin closed: %s", error)

    # -- changes

    def announce_changes(self) -> None:
        """Publish the circuits that changed, and have them stored soon."""
        for row in self.breakers.take_changes():
            self._unstored[row.server_id, row.tool_name] = row
            kind = _KINDS.get(row.state)
            if kind is not None:
                log.warning("circuit %s is %s", row.circuit_key, row.state.value)
                self._bus.publish(kind, self._describe(row), row.server_id)
        self._store_soon()

    def reset(self, server_id: str, tool_name: str = WHOLE_SERVER) -> list[BreakerRow]:
        """Close the circuit of a tool, or with ``*`` all of a server; return those it has."""
        tool = None if tool_name == WHOLE_SERVER else tool_name
        found = self.breakers.rows(server_id, tool)
        self.breakers.reset(server_id, tool)
        self.announce_changes()
        return self.breakers.rows(server_id, tool) if found else []

    def follow(self, event: ServerChanged) -> None:
        """Reset the circuits of a server whose connection changes, and drop those of one removed.

        A ServerSink.
        """
        definition = event.server.definition
        if event.change is ServerChange.REPLACED:
            self.reset(definition.id)
        elif event.change is ServerChange.REMOVED:
            self.breakers.forget(definition.id)
            self._unstored = {k: row for k, row in self._unstored.items() if k[0] != definition.id}
            self._forgotten.add(definition.id)
            self._server_names.pop(definition.id, None)
            self._store_soon()
        elif event.change in (ServerChange.ADDED, ServerChange.RENAMED):
            self._server_names[definition.id] = definition.key

    # -- storing

    def _store_soon(self) -> None:
        if self._unstored or self._forgotten:
            self._wake.set()

    async def run(self) -> None:
        """Store changes as they come, and at the end. A supervised task."""
        await _store_when_woken(self._wake, self._store, asyncio.sleep)

    async def _store(self) -> bool:
        """Store what has changed; return whether that was possible, else it is kept."""
        rows, self._unstored = self._unstored, {}
        forgotten, self._forgotten = self._forgotten, set()
        try:
            for server_id in sorted(forgotten):
                await self._table.forget(server_id)
            if rows:
                await self._table.store(list(rows.values()))
        except (StoreError, asyncio.CancelledError) as error:
            self._unstored = {**rows, **self._unstored}  # what came since is newer
            self._forgotten |= forgotten
            if isinstance(error, asyncio.CancelledError):
                raise
            log.warning("states of circuits cannot be stored now: %s", error)
            return False
        return True

    def _describe(self, row: BreakerRow) -> dict[str, Any]:
        return {
            "server_id": row.server_id,
            "server_name": self._server_names.get(row.server_id, ""),
            "tool_name": row.tool_name,
            "circuit_key": row.circuit_key,
            "state": row.state.value,
            "failure_count": row.failure_count,
            "opened_at": row.opened_at,
            "retry_at": row.retry_at,
        }


async def _store_when_woken(
    wake: asyncio.Event,
    store: Callable[[], Awaitable[bool]],
    sleep: Callable[[float], Awaitable[object]],
    pause: float = 0.0,
) -> None:
    """Store a moment after each change, and at the end; try again later what could not be."""
    try:
        while True:
            await wake.wait()
            await sleep(pause)
            wake.clear()
            if not await store():
                wake.set()
                await sleep(_RETRY)
    finally:
        await store()


# -- escalations

ESCALATED: Final = "call.escalated"
MAX_OPEN: Final = 10_000
"""Records that one process adds to; failures beyond them are counted as lost."""
MAX_STORED: Final = 50_000
_LONGEST: Final = 500
_PAUSE: Final = 0.2

_Key = tuple[str, str, str]


class FailedCall(msgspec.Struct, frozen=True):
    """A call that failed although all was tried."""

    agent_id: str
    server_id: str
    tool_name: str
    failure: str
    message: str
    delivery: str | None
    attempts: int
    correlation_id: str | None


class Escalations:
    """The escalations that this process raises, and those of all in the store."""

    def __init__(
        self,
        table: EscalationTable,
        bus: Bus,
        clock: Clock,
        days: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """They are kept for ``days`` days; 0 is for ever."""
        self.table = table
        self._bus = bus
        self._clock = clock
        self._days = days
        self._now = now
        self._open: dict[_Key, EscalationRecord] = {}
        self._changed: set[_Key] = set()
        self._wake = asyncio.Event()
        self._storing = asyncio.Lock()
        self.lost = 0
        """Failures that were not recorded, because there were too many."""

    def escalate(self, failed: FailedCall) -> None:
        """Record a failure. Never waits, never fails."""
        key = failed.agent_id, failed.server_id, failed.tool_name
        now, known = self._now(), self._open.get(key)
        if known is not None:
            record = msgspec.structs.replace(known, count=known.count + 1, **_latest(failed, now))
        elif len(self._open) >= MAX_OPEN:
            self.lost += 1
            return
        else:
            record = EscalationRecord(
                token_hex(8), *key, count=1, first_at=now, **_latest(failed, now)
            )
            self._publish(record)
        self._open[key] = record
        self._changed.add(key)
        self._wake.set()

    def _publish(self, record: EscalationRecord) -> None:
        data = {
            "id": record.id,
            "agent_id": record.agent_id,
            "server_id": record.server_id,
            "tool_name": record.tool_name,
            "failure": record.failure,
            "message": record.message,
            "delivery": record.delivery,
            "attempts": record.attempts,
            "correlation_id": record.correlation_id,
        }
        self._bus.publish(ESCALATED, data, record.server_id)

    # -- reading and acknowledging

    async def read(self, asked: EscalationQuery) -> list[EscalationRecord]:
        """Read escalations, the newest first. Raises StoreError."""
        await self._store()
        return await self.table.read(asked)

    async def acknowledge(
        self, escalation_id: str, by: str, note: str | None = None
    ) -> EscalationRecord:
        """Record that somebody has seen to one. Raises NotFound and StoreError."""
        await self._store()
        record = await self.table.acknowledge(escalation_id, self._now(), by, note)
        self._close(record)
        return record

    def _close(self, stored: EscalationRecord) -> EscalationRecord | None:
        """Add to a record no more; return it as it was kept here."""
        key = stored.agent_id, stored.server_id, stored.tool_name
        known = self._open.get(key)
        if known is None or known.id != stored.id:
            return None
        self._changed.discard(key)
        return self._open.pop(key)

    # -- in the background

    async def restore(self) -> None:
        """Go on with the open records of the store. Raises StoreError."""
        found = await self.table.read(EscalationQuery(is_open=True, limit=MAX_OPEN))
        for record in found:
            self._open.setdefault((record.agent_id, record.server_id, record.tool_name), record)

    async def run(self) -> None:
        """Store what changes, a moment later and at the end. A supervised task."""
        await _store_when_woken(self._wake, self._store_or_warn, self._clock.sleep, _PAUSE)

    async def _store_or_warn(self) -> bool:
        try:
            await self._store()
        except StoreError as error:
            log.warning("escalations cannot be stored now: %s", error)
            return False
        return True

    async def _store(self) -> None:
        """Store what has changed; who reads then waits for what is being stored already, too."""
        async with self._storing:
            await self._store_changed()

    async def _store_changed(self) -> None:
        changed, self._changed = self._changed, set()
        records = [self._open[key] for key in changed if key in self._open]
        if not records:
            return
        try:
            closed = await self.table.store(records)
        except BaseException:
            self._changed |= changed
            raise
        for stored in closed:  # another process has told us: what came since is another
            known = self._close(stored)
            if known is not None and known.count > stored.count:
                self._reopen(known, known.count - stored.count)

    def _reopen(self, known: EscalationRecord, count: int) -> None:
        record = msgspec.structs.replace(
            known, id=token_hex(8), count=count, first_at=known.last_at, mac=None
        )
        key = record.agent_id, record.server_id, record.tool_name
        self._open[key] = record
        self._changed.add(key)
        self._wake.set()
        self._publish(record)

    async def retire_daily(self) -> None:
        """Remove old escalations. A supervised task."""
        await remove_regularly("escalations", self.retire, self._clock)

    async def retire(self) -> int:
        """Remove what is too old or too much, and return how many. Raises StoreError."""
        before = self._now() - self._days * DAY if self._days else 0.0
        if self._days:
            self._open = {key: one for key, one in self._open.items() if one.last_at >= before}
        return await self.table.retire(before, MAX_STORED)


def _latest(failed: FailedCall, now: float) -> dict[str, Any]:
    """Return the members of a record that tell of the last failure."""
    message = KNOWN.redact(failed.message, failed.server_id)
    return {
        "failure": failed.failure,
        "message": message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…",
        "delivery": failed.delivery,
        "attempts": failed.attempts,
        "correlation_id": failed.correlation_id,
        "last_at": now,
    }
