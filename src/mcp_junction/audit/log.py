"""AuditLog: records audit entries; buffers them, and stores them as pages of its own chain.

In normal mode an entry costs its caller an append to a list, and is stored within 100 ms. An
*intent* is awaited until it is durable; all that wait share one commit. When the store fails, the
same rows are tried again until it accepts them; meanwhile intents are refused at once, and entries
that exceed the buffer are counted, logged and, later, recorded as lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Self

from mcp_junction.audit.chain import (
    ROWS_A_TURN,
    AuditBatch,
    Chain,
    IntentWaiter,
    refuse_each,
)
from mcp_junction.audit.checkpoints import CheckpointDirectory, CheckpointSchedule
from mcp_junction.audit.denials import Denials
from mcp_junction.audit.entries import Entry, Recordable
from mcp_junction.audit.writers import (
    describe_head,
    find_dead,
    identify_host,
    unknown_outcome,
)
from mcp_junction.errors import StoreError, StoreUnavailable
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.store.audit import AuditTrail, IntentCheck
from mcp_junction.store.audit_records import AuditRow, AuditWriter
from mcp_junction.tasks import Supervision, TaskScope, wait_until_set
from mcp_junction.telemetry.events import OutcomeName

log = logging.getLogger("mcp_junction.audit")

FLUSH: Final = 0.04
"""Seconds for which entries are buffered. With what storing takes, it is 100 ms at most."""
MOST: Final = 50_000
"""Entries that are buffered at most; more are counted as lost."""
PAGE: Final = 2_000
"""Rows that are stored at a time."""
_HEARTBEAT: Final = 5.0
_RETRY: Final = 0.5
_LAST_TRY: Final = 3.0
_TASK: Final = "audit"


class AuditLog:
    """Records entries. Use it as a context manager: entering registers it, leaving flushes it."""

    def __init__(
        self,
        trail: AuditTrail,
        key: bytes,
        key_id: str,
        checkpoints: CheckpointDirectory,
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
        self._checkpointer = CheckpointSchedule(checkpoints.path(self.writer), key, self.writer)
        self._entries: list[Recordable] = []
        self._waiters: list[IntentWaiter] = []
        self._next_page: AuditBatch | None = None
        """The page that is encoded as entries come; there is none while another is stored."""
        self._batch: AuditBatch | None = None
        """The page that is being stored."""
        self._failing = False
        self._untold = 0
        self.lost = 0
        """Entries that were never stored, since this writer began."""
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._stored = 0
        self._progress = asyncio.Event()
        self._tasks = TaskScope("the audit")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self.denials = Denials(self.record, now)
        """Records refusals, many of them in one row."""

    # -- recording

    def record(self, entry: Entry) -> None:
        """Buffer an entry; it is stored soon. Never waits, never fails: what is lost is counted."""
        entry.shorten()
        self.record_untrimmed(entry)

    def record_untrimmed(self, entry: Recordable) -> None:
        """Buffer an entry that holds nothing long."""
        entries = self._entries
        if len(entries) >= self._most or self._loop is None:
            self._lose(1)
            return
        entries.append(entry)
        if len(entries) == ROWS_A_TURN:
            self._loop.call_soon(self._encode_ahead)
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH, self._on_timer)

    async def intent(self, entry: Entry, check: IntentCheck | None = None) -> str:
        """Store an entry durably, and return its reference, which its outcome closes.

        Raises StoreUnavailable: then what is intended must not be done. Nor must it when the
        ``check``, which is made in the same transaction, has a ``refusal`` afterwards.
        """
        if self.is_failing or self._loop is None or self._closing:
            raise StoreUnavailable("the audit cannot be written now")
        if len(self._entries) >= self._most:
            raise StoreUnavailable("the audit cannot keep up")
        waiter: asyncio.Future[str] = self._loop.create_future()
        if check is not None:
            check.is_wanted = lambda: not waiter.done()
        self._waiters.append(IntentWaiter(self._buffered, waiter, check))
        entry.shorten()
        self._entries.append(entry)
        self._wake.set()
        return await waiter

    @asynccontextmanager
    async def act(self, actor: str, role: str, action: str, **more: Any) -> AsyncIterator[None]:
        """Record an administrative act: durably before it begins, and how it ended.

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

    def entry(self, kind: str, actor: str, action: str, **more: Any) -> Entry:
        """Make an entry with the current time."""
        return Entry(kind=kind, actor=actor, action=action, at=self._now(), **more)

    # -- status

    @property
    def is_failing(self) -> bool:
        """Whether the last rows could not be stored, or the task that stores them is down."""
        return self._failing or self._tasks.supervision.is_down(_TASK)

    @property
    def supervision(self) -> Supervision:
        """The status of the task that stores rows."""
        return self._tasks.supervision

    @property
    def waiting(self) -> int:
        """Entries that are not stored yet."""
        return self._buffered + (0 if self._batch is None else len(self._batch))

    @property
    def _buffered(self) -> int:
        """Entries of the next pages."""
        return len(self._entries) + (0 if self._next_page is None else len(self._next_page))

    # -- opening and closing

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        now = self._now()
        me = AuditWriter(
            writer=self.writer,
            key_id=self._key_id,
            host=identify_host(),
            pid=os.getpid(),
            opened_at=now,
            seen_at=now,
        )
        before = await self._trail.enter(me)
        after = None if before is None else describe_head(before)
        orphans = await self._find_orphans()
        self.record(self.entry("opened", "junction", "audit.open", detail={"after": after}))
        self._close_orphans(orphans)
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
                await self._trail.leave([self.writer], self._now(), self._chain.index.close())
                while self.waiting:  # recorded meanwhile
                    await self.flush()
        except (TimeoutError, StoreUnavailable):
            pass  # what is left is counted below
        finally:
            self._loop = None  # entries from now on are counted as lost
            await self._end()

    async def _end(self) -> None:
        """End the task that stores rows, and count what it has not stored."""
        left = self.waiting
        if left:
            self._lose(left)
            log.error("audit entries that could not be stored before the end: %d", left)
        if self._timer is not None:
            self._timer.cancel()
        self._refuse(StoreUnavailable("the audit is closed"))
        await self._tasks.close()
        self._checkpointer.close()

    async def flush(self) -> None:
        """Wait until all entries are stored, and so is a checkpoint of them."""
        recorded = self._stored + self.waiting
        while self._stored < recorded:
            self._wake.set()
            self._progress.clear()
            await self._progress.wait()
        if self._checkpointer.is_behind:
            await self._checkpointer.write(self._now())

    async def reconcile(self) -> int:
        """Close the intents of dead writers: nobody knows whether they were done."""
        orphans = await self._find_orphans()
        self._close_orphans(orphans)
        return len(orphans)

    async def _find_orphans(self) -> list[AuditRow]:
        """Read the open intents of dead writers; a dead writer without any is closed."""
        now = self._now()
        dead = find_dead(await self._trail.writers(), self.writer, now)
        intents = await self._trail.open_intents(dead)
        if dead and not intents:
            await self._trail.leave(dead, now)
        return intents

    def _close_orphans(self, orphans: Sequence[AuditRow]) -> None:
        for row in orphans:
            self.record(unknown_outcome(row, self._now()))

    # -- the task that stores rows

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()

    async def _run(self) -> None:
        try:
            await self._write_rows()
        except Exception:  # the task is restarted, but its waiters would wait for ever
            self._refuse(StoreUnavailable("the audit cannot be written"))
            raise

    async def _write_rows(self) -> None:
        beat = self._now()
        self._wake.set()  # there may be entries from before a restart
        while True:
            if self._batch is None:
                await wait_until_set(self._wake, _HEARTBEAT)
            self._wake.clear()
            if self._now() - beat >= _HEARTBEAT:
                beat = self._now()
                await self._heartbeat(beat)
            self._batch = self._batch or self._next_batch()
            if self._batch is not None:
                await self._batch.encode()
                if not await self._store(self._batch):
                    await asyncio.sleep(_RETRY)
            if self._checkpointer.is_due:
                await self._checkpointer.write(self._now())

    def _next_batch(self) -> AuditBatch | None:
        if self._untold and len(self._entries) < self._most:
            detail = {"lost": self._untold}
            self._entries.append(self.entry("loss", "junction", "audit.loss", detail=detail))
            self._untold = 0
        batch, self._next_page = self._open_page(), None
        waiters = [waiter for waiter in self._waiters if waiter.place < PAGE]
        later = self._waiters[len(waiters) :]
        self._waiters = [waiter._replace(place=waiter.place - PAGE) for waiter in later]
        batch.add(self._take(PAGE - len(batch)), waiters)
        if self._entries:
            self._wake.set()
        return batch if len(batch) else None

    def _open_page(self) -> AuditBatch:
        return AuditBatch(self._chain) if self._next_page is None else self._next_page

    def _take(self, count: int) -> list[Recordable]:
        taken, self._entries = self._entries[:count], self._entries[count:]
        return taken

    def _encode_ahead(self) -> None:
        """Encode some entries of the next page, so that it holds nobody up when it is due."""
        if self._batch is not None or KNOWN.is_pending or not self._entries:
            return
        self._next_page = page = self._open_page()
        page.add(self._take(min(ROWS_A_TURN, PAGE - len(page))))
        page.encode_now()
        if len(page) == PAGE:
            self._wake.set()
        elif len(self._entries) >= ROWS_A_TURN and self._loop is not None:
            self._loop.call_soon(self._encode_ahead)

    async def _store(self, batch: AuditBatch) -> bool:
        try:
            await self._trail.append(
                batch.seal(),
                durable=batch.durable,
                checks=batch.checks,
                after=self._write_checkpoint if batch.durable else None,
            )
        except Exception as error:  # whatever it is: an intent that is not stored must be refused
            if not isinstance(error, StoreUnavailable):
                log.exception("the audit cannot be written")
                error = StoreUnavailable("the audit cannot be written")
            elif not self._failing:
                log.error("the audit cannot be written: %s", error)
            self._failing = True
            self._refuse(error)
            return False
        if self._failing:
            log.warning("the audit is being written again")
        self._failing = False
        self._batch = None
        self._stored += len(batch)
        self._progress.set()
        self._checkpointer.advance(self._chain.seq, self._chain.mac, self._wake.set)
        if batch.durable and not self._checkpointer.is_written:
            batch.refuse(StoreUnavailable("the audit's checkpoint cannot be written"))
        batch.settle()
        if len(self._entries) >= ROWS_A_TURN:
            self._encode_ahead()
        return True

    def _write_checkpoint(self) -> None:
        """Write the checkpoint of the page that was just stored. Called in a thread."""
        self._checkpointer.write_now(self._chain.seq, self._chain.mac, self._now(), durable=False)

    def _refuse(self, error: StoreUnavailable) -> None:
        """Raise an error in all that wait for an intent: it is not on record."""
        waiters, self._waiters = self._waiters, []
        refuse_each(waiters, error)
        if self._batch is not None:
            self._batch.refuse(error)

    async def _heartbeat(self, now: float) -> None:
        try:
            await self._trail.seen(self.writer, now)
            if not self._failing:  # else the rows that close intents are waiting already
                await self.reconcile()
        except StoreUnavailable as error:  # logged when rows cannot be stored
            self._refuse(error)
        except StoreError as error:
            log.error("the audit cannot be reconciled: %s", error)

    def _lose(self, count: int) -> None:
        if not self._untold:
            log.error("audit entries are being lost: the store does not take them")
        self._untold += count
        self.lost += count
