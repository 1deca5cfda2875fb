"""Bus: publishes numbered events to readers, who can resume a stream at a number."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from mcp_junction.errors import StoreUnavailable
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.store.events import Events
from mcp_junction.store.records import EventRecord, NewEvent
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.bus")

GAP: Final = "stream.gap"
"""The type of the event that tells a late reader how many events are no longer kept."""
FLUSH: Final = 0.02
MOST: Final = 10_000
"""Events that wait for the store at most; the loss of more is counted."""
RECENT: Final = 2_000
TRANSIENT_MOST: Final = 1_000
_RETRY: Final = 0.5
_LAST_TRY: Final = 3.0
_POLL: Final = 1.0
"""Seconds between a reader's polls for events of other processes."""
_PAGE: Final = 500


class Bus:
    """The events of this process, and through the store those of the others."""

    def __init__(self, events: Events, origin: str = "") -> None:
        self._events = events
        self.origin = origin
        """What marks the events of this process."""
        self._pending: list[NewEvent] = []
        self._recent: deque[EventRecord] = deque(maxlen=RECENT)
        self._readers: set[_Reader] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._tasks = TaskScope("the bus")
        self.supervision = self._tasks.supervision
        """The status of the task that stores events."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.lost = 0
        """Events that were never stored."""

    # -- publishing

    def publish(self, kind: str, data: Mapping[str, Any], subject: str | None = None) -> None:
        """Publish an event. Never waits, never fails: what is lost is counted."""
        if self._loop is None or len(self._pending) >= MOST:
            self._lose(1)
            return
        now = time.time()
        self._pending.append(NewEvent(kind, KNOWN.redact_data(data), subject, self.origin, now))
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH, self._on_timer)

    def publish_transient(
        self, kind: str, data: Mapping[str, Any], subject: str | None = None
    ) -> None:
        """Send an event to the present readers only; it is neither numbered nor stored."""
        if self._readers:
            event = EventRecord(0, time.time(), self.origin, kind, subject, KNOWN.redact_data(data))
            for reader in self._readers:
                reader.offer(event)

    @property
    def has_readers(self) -> bool:
        """Whether there are readers now."""
        return bool(self._readers)

    # -- reading

    async def subscribe(
        self, after: int | None = None, types: Collection[str] = ()
    ) -> AsyncIterator[EventRecord]:
        """Iterate over events as they come, after number ``after``; None is from now on.

        Raises StoreUnavailable at the beginning only; later an outage is waited out.
        """
        first, last = await self._events.bounds()
        at = last if after is None else min(after, last)
        reader = _Reader(frozenset(types))
        self._readers.add(reader)
        try:
            if at + 1 < first:
                yield make_gap_event(at, first)
                at = first - 1
            while True:
                for event in await self._read_after(at):
                    if event.seq > at + 1:  # what is between was removed before it was read
                        yield make_gap_event(at, event.seq)
                    at = event.seq
                    if reader.wants(event):
                        yield event
                while reader.transient:
                    yield reader.transient.popleft()
                if not (self._recent and self._recent[-1].seq > at):
                    await reader.wait(_POLL)
        finally:
            self._readers.discard(reader)

    async def _read_after(self, seq: int) -> list[EventRecord]:
        recent = self._recent
        if recent and recent[0].seq <= seq + 1 <= recent[-1].seq:
            return [event for event in recent if event.seq > seq]
        try:
            return await self._events.after(seq, limit=_PAGE)
        except StoreUnavailable:
            await asyncio.sleep(_RETRY)
            return []

    # -- life

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._tasks.supervise("events", self._run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            async with asyncio.timeout(_LAST_TRY):
                await self.flush()
        except TimeoutError:
            self._lose(len(self._pending))
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    async def flush(self) -> None:
        """Wait until all that was published is stored."""
        self._idle.clear()
        self._wake.set()
        await self._idle.wait()

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()

    async def _run(self) -> None:
        while True:
            if not self._pending:
                self._idle.set()
                await self._wake.wait()
            self._wake.clear()
            batch = self._pending[:_PAGE]
            try:
                stored = await self._events.append(batch)
            except StoreUnavailable as error:
                log.warning("events cannot be stored now: %s", error)
                await asyncio.sleep(_RETRY)
                continue
            except Exception:  # whatever it is, later events must be stored
                log.exception("events cannot be stored")
                self._lose(len(batch))
                stored = []
            del self._pending[: len(batch)]
            self._remember(stored)

    def _remember(self, stored: list[EventRecord]) -> None:
        if not stored:
            return
        if self._recent and self._recent[-1].seq + 1 != stored[0].seq:
            self._recent.clear()  # another process was between: the store knows the rest
        self._recent.extend(stored)
        for reader in self._readers:
            reader.wake()

    def _lose(self, count: int) -> None:
        if count and not self.lost:
            log.error("events are being lost: the store does not take them")
        self.lost += count


def make_gap_event(after: int, first: int) -> EventRecord:
    """Make the event for a reader that resumes after a number, but ``first`` is the oldest kept."""
    return EventRecord(first - 1, time.time(), "", GAP, None, {"missed": first - 1 - after})


class _Reader:
    """One subscription: the types it wants, and its transient events."""

    __slots__ = ("_more", "_types", "transient")

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._more = asyncio.Event()
        self.transient: deque[EventRecord] = deque(maxlen=TRANSIENT_MOST)

    def wants(self, event: EventRecord) -> bool:
        return not self._types or event.type in self._types

    def offer(self, event: EventRecord) -> None:
        if self.wants(event):
            self.transient.append(event)
            self._more.set()

    def wake(self) -> None:
        self._more.set()

    async def wait(self, limit: float) -> None:
        """Wait for an event, at most ``limit`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):  # wait_for can swallow a cancellation
                await self._more.wait()
        self._more.clear()
