"""AuditLog: one writer of the audit. It buffers, and seals and stores what it buffered.

In normal mode an entry costs its caller an append to a list, and is stored within 100 ms. An
*intent* is awaited until it is durable; all that wait share one commit. When the store does not
take rows they are kept and given again, the same rows, until it does; meanwhile intents are refused
at once, and what exceeds the buffer is counted, logged and, later, a row of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Self

from mcp_junction.audit.batch import AuditBatch, Waiter, refuse_each
from mcp_junction.audit.chain import Chain, Entry
from mcp_junction.audit.checkpoints import Checkpointer, Checkpoints
from mcp_junction.audit.denials import Denials
from mcp_junction.audit.writers import dead_writers
from mcp_junction.errors import StoreError, StoreUnavailable
from mcp_junction.redaction.payloads import LOOKED_AT
from mcp_junction.store.audit import AuditTrail
from mcp_junction.store.records import AuditHead, AuditRow, AuditWriter
from mcp_junction.tasks import Supervision, TaskScope
from mcp_junction.telemetry.events import OutcomeName

log = logging.getLogger("mcp_junction.audit")

FLUSH: Final = 0.05
MOST: Final = 50_000
"""Entries that wait at most; the loss of more is counted."""
PAGE: Final = 2_000
"""Rows that are sealed and stored at a time."""
_HEARTBEAT: Final = 5.0
_RETRY: Final = 0.5
_LAST_TRY: Final = 3.0
_TASK: Final = "audit"


class AuditLog:
    """One writer. Use it as a context manager: entering makes it known, leaving flushes it."""

    def __init__(
        self,
        trail: AuditTrail,
        key: bytes,
        key_id: str,
        checkpoints: Checkpoints,
        *,
        most: int = MOST,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._trail = trail
        self._key_id = key_id
        self._most = most
        self._now = now
        self.writer = token_hex(8)
        self._chain = Chain(key, self.writer)
        self._checkpointer = Checkpointer(checkpoints.file_for(self.writer), key, self.writer)
        self._entries: list[Entry] = []
        self._waiters: list[tuple[int, Waiter]] = []
        self._batch: AuditBatch | None = None
        self._failing = False
        self._untold = 0
        self._lost = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._stored = 0
        self._progress = asyncio.Event()
        self._tasks = TaskScope("the audit")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self.denials = Denials(self.record, now)
        """Where to tell what was refused: not every refusal is a row."""

    # -- telling

    def record(self, entry: Entry) -> None:
        """Take an entry; it is stored soon. Never waits, never fails: what is lost is counted."""
        entries = self._entries
        if len(entries) >= self._most or self._loop is None:
            self._lose(1)
            return
        result = entry.result
        if result is not None and len(result) > LOOKED_AT:
            entry.result = result[:LOOKED_AT]  # the rest need not be kept alive
        entries.append(entry)
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH, self._ring)

    async def intent(self, entry: Entry) -> str:
        """Store an intent durably; the reference that its outcome closes.

        Raises StoreUnavailable: then what is intended must not be done.
        """
        if self.is_failing or self._loop is None or self._closing:
            raise StoreUnavailable("the audit cannot be written now")
        if len(self._entries) >= self._most:
            raise StoreUnavailable("the audit cannot keep up")
        waiter: Waiter = self._loop.create_future()
        self._waiters.append((len(self._entries), waiter))
        self._entries.append(entry)
        self._wake.set()
        return await waiter

    @asynccontextmanager
    async def act(self, actor: str, role: str, action: str, **more: Any) -> AsyncIterator[None]:
        """Around an administrative act: durable before it begins, and how it ended.

        Raises StoreUnavailable before anything was done.
        """
        closes = await self.intent(self.entry("intent", actor, action, role=role, **more))
        outcome = OutcomeName.ERROR
        try:
            yield
            outcome = OutcomeName.OK
        except asyncio.CancelledError:
            outcome = OutcomeName.CANCELLED
            raise
        finally:
            ended = {"role": role, "outcome": outcome, "closes": closes, **more}
            self.record(self.entry("outcome", actor, action, **ended))

    async def stored(self, entry: Entry) -> None:
        """Record an entry and wait until it is durable. Raises StoreUnavailable."""
        await self.intent(entry)

    def entry(self, kind: str, actor: str, action: str, **more: Any) -> Entry:
        """An entry of this moment."""
        return Entry(kind=kind, actor=actor, action=action, at=self._now(), **more)

    # -- how it is doing

    @property
    def is_failing(self) -> bool:
        """Whether the store did not take the last rows, or the task that gives them is down."""
        return self._failing or self._tasks.supervision.is_down(_TASK)

    @property
    def supervision(self) -> Supervision:
        """How the task that stores rows is doing."""
        return self._tasks.supervision

    @property
    def lost(self) -> int:
        """Entries that were never stored, since this writer began."""
        return self._lost

    @property
    def waiting(self) -> int:
        """Entries that are not stored yet."""
        return len(self._entries) + (len(self._batch) if self._batch is not None else 0)

    # -- life

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        now = self._now()
        me = AuditWriter(
            writer=self.writer,
            key_id=self._key_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            opened_at=now,
            seen_at=now,
        )
        before = await self._trail.enter(me)
        after = None if before is None else _named(before)
        orphans = await self._orphans()
        self.record(self.entry("opened", "junction", "audit.open", detail={"after": after}))
        for row in orphans:
            self.record(_unknown(row, now))
        self._tasks.supervise(_TASK, self._run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        self.denials.close()
        try:
            async with asyncio.timeout(_LAST_TRY):
                await self.flush()
                await self._trail.leave([self.writer], self._now())
        except (TimeoutError, StoreUnavailable):
            if self.waiting:
                self._lose(self.waiting)
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        self._checkpointer.close()
        self._loop = None  # what is told from now on is lost, and counted
        self._refuse(StoreUnavailable("the audit is closed"))

    async def flush(self) -> None:
        """Wait until all that was recorded is stored, and a checkpoint says so."""
        told = self._stored + self.waiting
        while self._stored < told:
            self._wake.set()
            self._progress.clear()
            await self._progress.wait()
        if self._checkpointer.is_behind:
            await self._checkpointer.write(self._now())

    async def reconcile(self) -> int:
        """Close what writers that have died intended: nobody knows whether it was done."""
        orphans = await self._orphans()
        for row in orphans:
            self.record(_unknown(row, self._now()))
        return len(orphans)

    async def _orphans(self) -> list[AuditRow]:
        now = self._now()
        dead = dead_writers(await self._trail.writers(), self.writer, now)
        intents = await self._trail.open_intents(dead)
        if dead and not intents:
            await self._trail.leave(dead, now)
        return intents

    # -- the writer

    def _ring(self) -> None:
        self._timer = None
        self._wake.set()

    async def _run(self) -> None:
        try:
            await self._write_rows()
        except Exception:  # it is run again; who waits now would not hear of it
            self._refuse(StoreUnavailable("the audit cannot be written"))
            raise

    async def _write_rows(self) -> None:
        beat = self._now()
        self._wake.set()  # there may be entries left that this task failed with before
        while True:
            if self._batch is None:
                await self._sleep(_HEARTBEAT)
            self._wake.clear()
            if self._now() - beat >= _HEARTBEAT:
                beat = self._now()
                await self._heartbeat(beat)
            self._batch = self._batch or self._next()
            if self._batch is not None:
                await self._batch.encode()
                if not await self._store(self._batch):
                    await asyncio.sleep(_RETRY)
            if self._checkpointer.is_due:
                await self._checkpointer.write(self._now())

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):  # wait_for can swallow a cancellation
                await self._wake.wait()
        except TimeoutError:
            pass

    def _next(self) -> AuditBatch | None:
        if self._untold and len(self._entries) < self._most:
            detail = {"lost": self._untold}
            self._entries.append(self.entry("loss", "junction", "audit.loss", detail=detail))
            self._untold = 0
        entries, self._entries = self._entries[:PAGE], self._entries[PAGE:]
        waiters = [waiter for waiter in self._waiters if waiter[0] < PAGE]
        self._waiters = [(index - PAGE, who) for index, who in self._waiters if index >= PAGE]
        if self._entries:
            self._wake.set()
        return AuditBatch(self._chain, entries, waiters) if entries else None

    async def _store(self, batch: AuditBatch) -> bool:
        try:
            await self._trail.append(batch.seal, durable=batch.durable)
        except StoreUnavailable as error:
            if not self._failing:
                log.error("the audit cannot be written: %s", error)
            self._failing = True
            self._refuse(error)
            return False
        except Exception:  # whatever it is: what must be on record is not, so it is not done
            log.exception("the audit cannot be written")
            self._failing = True
            self._refuse(StoreUnavailable("the audit cannot be written"))
            return False
        if self._failing:
            log.warning("the audit is being written again")
        self._failing = False
        self._batch = None
        self._stored += len(batch)
        self._progress.set()
        self._checkpointer.advance(self._chain.seq, self._chain.mac, self._wake.set)
        if batch.durable and not await self._checkpointer.write(self._now()):
            batch.refuse(StoreUnavailable("the audit's checkpoint cannot be written"))
        batch.settle()
        return True

    def _refuse(self, error: StoreUnavailable) -> None:
        """Tell all who wait for an intent that it is not on record."""
        waiters, self._waiters = self._waiters, []
        refuse_each(waiters, error)
        if self._batch is not None:
            self._batch.refuse(error)

    async def _heartbeat(self, now: float) -> None:
        try:
            await self._trail.seen(self.writer, now)
            if not self._failing:  # or what is to be closed is being closed already
                await self.reconcile()
        except StoreUnavailable as error:  # the rows that cannot be written tell it
            self._refuse(error)  # who waits has waited for long enough
        except StoreError as error:
            log.error("the audit cannot be reconciled: %s", error)

    def _lose(self, count: int) -> None:
        if not self._untold:
            log.error("audit entries are being lost: the store does not take them")
        self._untold += count
        self._lost += count


def _named(head: AuditHead) -> dict[str, Any]:
    return {"writer": head.writer, "seq": head.seq, "head": head.mac.hex()}


def _unknown(row: AuditRow, now: float) -> Entry:
    return Entry(
        kind="outcome",
        actor=row.actor,
        role=row.role,
        action=row.action,
        at=now,
        correlation_id=row.correlation_id,
        server_id=row.server_id,
        target=row.target,
        outcome=OutcomeName.UNKNOWN,
        delivery="unknown",
        attempts=row.attempts,
        closes=f"{row.writer}:{row.seq}",
    )
