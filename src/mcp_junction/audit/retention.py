"""Retention: removes old audit rows once a day, leaving an anchor row for each cut chain."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from mcp_junction.audit.checkpoints import CheckpointDirectory
from mcp_junction.audit.log import AuditLog
from mcp_junction.audit.seals import Seals
from mcp_junction.audit.writers import describe_head
from mcp_junction.errors import StoreUnavailable
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.audit import AuditTrail
from mcp_junction.store.records import AuditHead, AuditPage

log = logging.getLogger("mcp_junction.audit")

DAY: Final = 24 * 3600.0
FIRST: Final = 60.0
"""Seconds after the start: so a service that is restarted every day removes rows, too."""
AGAIN: Final = 600.0
"""Seconds until the next attempt, after the store has failed."""


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
    pause = FIRST
    while True:
        await clock.sleep(pause)
        try:
            removed = await retire(trail, audit, checkpoints, keys(), now() - days * DAY)
        except (StoreUnavailable, OSError) as error:
            log.warning("old rows of the audit cannot be removed now: %s", error)
            pause = AGAIN
            continue
        if removed:
            log.info("%d rows of the audit were older than %d days and are gone", removed, days)
        pause = DAY
