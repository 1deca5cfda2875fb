"""MetricsHistory: stores what was counted of calls, minute by minute, and reads it back.

Each process stores its own minutes; what cannot be stored now is stored later, in a later minute if
its hour was closed meanwhile. Hours are made of the minutes of all processes when they are over for
a while. It counts nothing itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final

from mcp_junction.errors import StoreUnavailable
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.call_metrics import HOUR, MINUTE, CallMetricRecord, CallMetricTable
from mcp_junction.telemetry.tallies import Tally, ToolKey, add_tallies, keep_busiest

log = logging.getLogger("mcp_junction.telemetry")

STORED: Final = 500
"""Pairs of server and tool that are stored one by one."""
MINUTES_KEPT: Final = 2 * 24 * HOUR
_LATE: Final = 600
"""Seconds after its end when an hour is made of its minutes."""
_UNSTORED: Final = 120
"""Minutes that wait for the store at most; then they are stored as one."""
_FOR_EVER: Final = 0

Tallies = dict[ToolKey, Tally]


class MetricsHistory:
    """The counts of calls over time."""

    def __init__(
        self,
        table: CallMetricTable,
        writer: str,
        take_minute: Callable[[], Mapping[ToolKey, Tally]],
        current: Callable[[], Mapping[ToolKey, Tally]],
        clock: Clock,
        *,
        days: int = _FOR_EVER,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``take_minute`` takes out what was counted, ``current`` only looks at it.

        ``days`` is how long hours are kept; 0 is for ever.
        """
        self._table = table
        self._writer = writer
        self._take_minute = take_minute
        self._current = current
        self._clock = clock
        self._days = days
        self._now = now
        self._unstored: dict[int, Tallies] = {}
        self._is_failing = False
        self._storing = asyncio.Lock()
        """Held while minutes are stored: at the end that may be asked for twice at once."""

    # -- writing

    async def run(self) -> None:
        """Store each minute when it is over, until cancelled. A supervised task."""
        while True:
            await self._clock.sleep(MINUTE - self._now() % MINUTE)
            await self.store_minute(int(self._now() - MINUTE / 2) // MINUTE * MINUTE)
            await self._try(self.close_hours)

    async def store_minute(self, minute: int) -> None:
        """Store what was counted as that of a minute that is over."""
        self._take(minute)
        if len(self._unstored) > _UNSTORED:
            self._merge(list(self._unstored), minute)
        await self._try(partial(self._store, self._this_minute()))

    async def store_last(self) -> None:
        """Store what was counted in the current minute, too: this process ends."""
        self._take(self._this_minute())
        await self._try(partial(self._store, self._this_minute() + MINUTE))

    def _take(self, minute: int) -> None:
        if taken := self._take_minute():
            add_tallies(self._unstored.setdefault(minute, {}), taken)

    def _this_minute(self) -> int:
        return int(self._now()) // MINUTE * MINUTE

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except StoreUnavailable as error:
            if not self._is_failing:
                log.warning("what was counted of calls cannot be stored now: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False

    async def _store(self, before: int) -> None:
        """Store the minutes that wait, and are before a time; each is stored once."""
        async with self._storing:
            if not self._unstored:
                return
            opened = await self._table.first_open_hour() * HOUR
            late = [minute for minute in self._unstored if minute < opened]
            if late:
                self._merge(late, self._this_minute())
            for minute in sorted(minute for minute in self._unstored if minute < before):
                tallies = keep_busiest(self._unstored[minute], STORED)
                records = _to_records(tallies, MINUTE, minute, self._writer)
                await self._table.add(await asyncio.to_thread(self._table.prepare, records))
                del self._unstored[minute]

    def _merge(self, minutes: Iterable[int], into: int) -> None:
        """Make some minutes that wait into one."""
        whole: Tallies = {}
        for minute in minutes:
            add_tallies(whole, self._unstored.pop(minute))
        add_tallies(self._unstored.setdefault(into, {}), whole)

    async def close_hours(self) -> None:
        """Make hours of minutes that are over for a while; remove what is too old."""
        while (opened := await self._next_hour()) is not None:
            before, hour = opened
            records = await self._table.read(MINUTE, hour * HOUR, (hour + 1) * HOUR)
            rows = await asyncio.to_thread(self._make_hour, records, hour * HOUR)
            if not await self._table.close_hours(before, hour + 1, rows):
                return
            now = int(self._now())
            await self._table.remove(MINUTE, now - MINUTES_KEPT)
            if self._days:
                await self._table.remove(HOUR, now - self._days * 24 * HOUR)

    async def _next_hour(self) -> tuple[int, int] | None:
        """Return the first open hour, and the first one with minutes, if that is over."""
        before = await self._table.first_open_hour()
        minute = await self._table.first_minute(before * HOUR)
        if minute is None or (minute // HOUR + 1) * HOUR + _LATE > self._now():
            return None
        return before, minute // HOUR

    def _make_hour(self, records: list[CallMetricRecord], at: int) -> list[list[object]]:
        by_writer: dict[str, list[CallMetricRecord]] = {}
        for record in records:
            by_writer.setdefault(record.writer, []).append(record)
        made: list[CallMetricRecord] = []
        for writer, own in by_writer.items():
            made += _to_records(keep_busiest(_sum_up(own), STORED), HOUR, at, writer)
        return self._table.prepare(made)

    # -- reading

    async def read(
        self, since: float, until: float, server_id: str | None, tool_name: str | None
    ) -> Tallies:
        """Return what all processes counted from one time to another, by server and tool.

        Of the current minute that is what this process counted. Times are taken by the minute, and
        by the hour where the minutes are gone.
        """
        first = int(since) // MINUTE * MINUTE
        last = -int(-until // MINUTE) * MINUTE
        opened = await self._table.first_open_hour() * HOUR
        if first < self._now() - MINUTES_KEPT:
            first = whole = first // HOUR * HOUR
        else:
            whole = -(-first // HOUR) * HOUR
        closed = min(opened, last // HOUR * HOUR)
        parts = [(MINUTE, first, last)]
        if whole < closed:
            parts = [(HOUR, whole, closed), (MINUTE, first, whole), (MINUTE, closed, last)]
        records = [
            one for part in parts for one in await self._table.read(*part, server_id, tool_name)
        ]
        found = await asyncio.to_thread(_sum_up, records)
        for minute, tallies in (*self._unstored.items(), (self._this_minute(), self._current())):
            if first <= minute < last:
                add_tallies(found, _choose(tallies, server_id, tool_name))
        return found


def _choose(
    tallies: Mapping[ToolKey, Tally], server_id: str | None, tool_name: str | None
) -> Tallies:
    """Return the tallies of one server, or of one tool, or all."""
    return {
        key: tally
        for key, tally in tallies.items()
        if server_id in (None, key[0]) and tool_name in (None, key[1])
    }


def _sum_up(records: Iterable[CallMetricRecord]) -> Tallies:
    found: Tallies = {}
    for record in records:
        bins = {int(place): count for place, count in record.latencies.items()}
        tally = Tally.restore(
            bins, record.total_ms, record.errors, record.retries, record.fallbacks
        )
        add_tallies(found, {(record.server_id, record.tool_name): tally})
    return found


def _to_records(
    tallies: Mapping[ToolKey, Tally], span: int, at: int, writer: str
) -> list[CallMetricRecord]:
    return [
        CallMetricRecord(
            server_id=server_id,
            tool_name=tool_name,
            span=span,
            at=at,
            writer=writer,
            retries=tally.retries,
            fallbacks=tally.fallbacks,
            total_ms=round(tally.total_ms, 3),
            errors=tally.errors,
            latencies={str(place): count for place, count in sorted(tally.bins.items())},
        )
        for (server_id, tool_name), tally in tallies.items()
    ]
