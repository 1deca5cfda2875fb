"""Keeps the index of the audit: makes what is missing, all of it anew, and checks it.

A writer makes the index of its own pages while it writes them. What a crash left out, or an earlier
version of this program never made, is made here from the pages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from mcp_junction.audit.writers import find_dead
from mcp_junction.errors import StoreUnavailable
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.audit import AuditTrail
from mcp_junction.store.audit_index import StoredSegment
from mcp_junction.store.audit_terms import (
    Segment,
    SegmentBuilder,
    key_of,
    may_hold,
    needs_filter,
    terms_of,
)
from mcp_junction.store.records import AuditPage, AuditRow

log = logging.getLogger("mcp_junction.audit")

EVERY: Final = 60.0
_PAUSE: Final = 0.02
"""Seconds between two reads: others want the store, too."""


async def index_missing(trail: AuditTrail, own: str, now: float) -> int:
    """Index the pages of writers that have ended, as far as they are not; return how many."""
    tails = await trail.index.tails()
    if not tails or tails.keys() == {own}:
        return 0
    ended = await _find_ended(trail, own, now)
    return sum([await _index(trail, one, after) for one, after in tails.items() if one in ended])


async def index_regularly(
    trail: AuditTrail, own: str, clock: Clock, now: Callable[[], float] = time.time
) -> None:
    """Index what is missing, every minute, until cancelled."""
    while True:
        try:
            if pages := await index_missing(trail, own, now()):
                log.info("%d pages of the audit were missing in its index", pages)
        except StoreUnavailable as error:
            log.warning("the audit cannot be indexed now: %s", error)
        await clock.sleep(EVERY)


async def reindex(trail: AuditTrail, now: float) -> int:
    """Make the index anew; return how many pages are in it.

    Of a writer that is at work, only what it has indexed itself is made again.
    """
    ended = await _find_ended(trail, "", now)
    before = {writer: await _last_indexed(trail, writer) for writer in await trail.index.writers()}
    await trail.index.drop_all()
    pages = 0
    for writer in await trail.chains():
        through = None if writer in ended else before.get(writer, 0)
        if through != 0:
            pages += await _index(trail, writer, 0, through)
    return pages


async def _find_ended(trail: AuditTrail, own: str, now: float) -> set[str]:
    writers = await trail.writers()
    closed = {one.writer for one in writers if one.closed_at is not None}
    return closed | set(find_dead(writers, own, now))


async def _last_indexed(trail: AuditTrail, writer: str) -> int:
    last = 0
    while segments := await trail.index.segments(writer, last):
        last = segments[-1].last_seq
    return last


async def _index(trail: AuditTrail, writer: str, after: int, through: int | None = None) -> int:
    """Index the pages of a chain after a row, and through another if one is given."""
    builder, count = SegmentBuilder(writer), 0
    while pages := await trail.pages(writer, after):
        after = pages[-1].last_seq
        kept = [page for page in pages if through is None or page.last_seq <= through]
        for segment in await asyncio.to_thread(_add_all, builder, kept):
            await trail.index.add(segment)
        count += len(kept)
        if len(kept) < len(pages):
            break
        await asyncio.sleep(_PAUSE)
    if (last := builder.close()) is not None:
        await trail.index.add(last)
    return count


def _add_all(builder: SegmentBuilder, pages: list[AuditPage]) -> list[Segment]:
    made = [builder.add_stored(page) for page in pages]
    return [segment for segment in made if segment is not None]


# -- checking


class IndexCheck:
    """Compares the index of one chain with its pages, which it is given in order."""

    def __init__(self, trail: AuditTrail, writer: str) -> None:
        self._trail = trail
        self._writer = writer
        self._segments: list[StoredSegment] = []
        self._after = 0
        self._terms: dict[int, set[int]] = {}
        self._is_bad = False
        self.faults: list[str] = []

    async def add(self, page: AuditPage) -> None:
        """Check one page, and its segment when it is the last one of it."""
        if self._is_bad:
            return
        segment = await self._segment_of(page)
        if segment is None:
            return
        numbers = {spot.last_seq: number for number, spot in enumerate(segment.spots)}
        number = numbers.get(page.last_seq)
        if number is None or page.first_seq < segment.first_seq:
            self._fail(segment)
            return
        for row in page.rows():
            for term in terms_of(key_of(row)):
                self._terms.setdefault(term, set()).add(number)
            if not _is_held(row, segment):
                self._fail(segment)
                return
        if page.last_seq == segment.last_seq:
            await self._check_terms(segment)

    async def _segment_of(self, page: AuditPage) -> StoredSegment | None:
        """Return the segment of a page; None where the index ends before it."""
        while self._segments and self._segments[0].last_seq < page.first_seq:
            self._after = self._segments.pop(0).last_seq
            self._terms = {}
        if not self._segments:
            try:
                self._segments = await self._trail.index.segments(self._writer, page.first_seq - 1)
            except (msgspec.MsgspecError, TypeError, ValueError):
                self._fail(None)
                return None
            self._terms = {}
        if not self._segments:
            return None
        return self._segments[0]

    async def _check_terms(self, segment: StoredSegment) -> None:
        """Compare the terms of a segment, as far as retention has left its pages."""
        stored: Mapping[int, bytes] = await self._trail.index.terms(segment)
        kept = {number for numbers in self._terms.values() for number in numbers}
        named = {term: set(pages) & kept for term, pages in stored.items() if set(pages) & kept}
        if named != self._terms:
            self._fail(segment)

    def _fail(self, segment: StoredSegment | None) -> None:
        where = "" if segment is None else f" at rows {segment.first_seq} to {segment.last_seq}"
        self._is_bad = True
        self.faults.append(f"the index of writer {self._writer} differs from its pages{where}")


def _is_held(row: AuditRow, segment: StoredSegment) -> bool:
    """Whether the correlation id of a row leads to its segment."""
    correlation = row.correlation_id
    if correlation is None or not needs_filter(correlation, row.at):
        return True
    return may_hold(segment.correlations, correlation)
