"""Maintenance of the audit while it is written: retention, and the index of what has none.

Retention removes old rows once a day, and leaves an anchor row for each chain that it cuts.

A writer makes the index of its own pages while it writes them. What a crash left out, or an earlier
version of this program never made, is made here from the pages. ``verify.py`` checks it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from mcp_junction.audit.checkpoints import CheckpointDirectory, Seals
from mcp_junction.audit.log import AuditLog
from mcp_junction.audit.writers import describe_head, find_dead
from mcp_junction.errors import StoreUnavailable
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.audit import AuditTrail
from mcp_junction.store.audit_records import AuditHead, AuditPage
from mcp_junction.store.audit_terms import Segment, SegmentBuilder
from mcp_junction.store.retention import DAY, remove_regularly

log = logging.getLogger("mcp_junction.audit")

FIRST: Final = 60.0
"""Seconds after the start: so a service that is restarted every day removes rows, too."""
AGAIN: Final = 600.0
"""Seconds until the next attempt, after the store has failed."""
EVERY: Final = 60.0
"""Seconds between two looks for pages that are not indexed."""
_PAUSE: Final = 0.02
"""Seconds between two reads: others want the store, too."""


# -- retention


async def retire(
    trail: AuditTrail,
    audit: AuditLog,
    checkpoints: CheckpointDirectory,
    keys: Sequence[bytes],
    before: float,
) -> int:
    """Remove the rows older than ``before``, and return how many. Raises StoreUnavailable.

    ``keys`` are all keys that the audit has had.
    """
    removed = 0
    seals = [Seals(key) for key in keys]
    for old in await trail.oldest_ends(before):
        found = await trail.pages(old.writer, old.seq - 1, limit=1)
        if not any(_is_removable(page, old, seals, before) for page in found):
            log.error(
                "no rows of the audit's writer %s are removed: row %d is not what was written, or"
                " is newer than the store says; see: mcp-junction audit verify",
                old.writer,
                old.seq,
            )
            continue
        await audit.intent(
            audit.entry("anchor", "junction", "audit.retire", detail=describe_head(old))
        )
        removed += await trail.retire(old)
        await trail.index.drop(old.writer, old.seq)
        if not await trail.pages(old.writer, limit=1):
            checkpoints.remove(old.writer)
    return removed


def _is_removable(page: AuditPage, old: AuditHead, seals: Sequence[Seals], before: float) -> bool:
    """Whether a page ends at ``old``, is unchanged, and has only older rows."""
    if page.last_seq != old.seq or not any(one.is_intact(page) for one in seals):
        return False
    return all(row.at < before for row in page.rows())


async def retire_daily(
    days: int,
    trail: AuditTrail,
    audit: AuditLog,
    checkpoints: CheckpointDirectory,
    keys: Callable[[], Sequence[bytes]],
    clock: Clock,
    now: Callable[[], float] = time.time,
) -> None:
    """Remove rows older than ``days`` days, once a day, until cancelled."""

    async def remove() -> None:
        removed = await retire(trail, audit, checkpoints, keys(), now() - days * DAY)
        if removed:
            log.info("%d rows of the audit were older than %d days and are gone", removed, days)

    await clock.sleep(FIRST)
    await remove_regularly("rows of the audit", remove, clock, again=AGAIN)


# -- the index


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
