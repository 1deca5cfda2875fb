"""Retention: removing what is old without making a hole that looks like tampering.

Before the old end of a chain goes, an *anchor* is written, durably, into our own chain: which row
was the last to go, and the mac of its page. So the rest of that chain can still be verified. Whole
pages go: a row is kept a moment longer than it must be when a younger one lies in its page.

An anchor vouches for what is gone, so the last page to go is checked first: it must be what its
writer wrote, and its rows as old as the store says. Otherwise whoever changes a time in the store
would have us remove, and vouch for, rows that nobody should lose.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mcp_junction.audit.chain import Seals
from mcp_junction.audit.checkpoints import Checkpoints
from mcp_junction.audit.log import AuditLog
from mcp_junction.store.audit import AuditTrail
from mcp_junction.store.records import AuditHead, AuditPage

logger = logging.getLogger("mcp_junction.audit")


async def retire(
    trail: AuditTrail,
    log: AuditLog,
    checkpoints: Checkpoints,
    keys: Sequence[bytes],
    before: float,
) -> int:
    """Remove the rows older than ``before``; returns how many. Raises StoreUnavailable.

    ``keys`` are all the audit's keys there have been.
    """
    removed = 0
    seals = [Seals(key) for key in keys]
    for old in await trail.oldest_ends(before):
        found = await trail.pages(old.writer, old.seq - 1, limit=1)
        if not any(_is_removable(page, old, seals, before) for page in found):
            logger.error(
                "no rows of the audit's writer %s are removed: row %d is not what was written, or"
                " is newer than the store says; see: mcp-junction audit verify",
                old.writer,
                old.seq,
            )
            continue
        detail = {"writer": old.writer, "seq": old.seq, "head": old.mac.hex()}
        await log.stored(log.entry("anchor", "junction", "audit.retire", detail=detail))
        removed += await trail.retire(old)
        if not await trail.pages(old.writer, limit=1):
            checkpoints.remove(old.writer)
    return removed


def _is_removable(page: AuditPage, old: AuditHead, seals: Sequence[Seals], before: float) -> bool:
    """Whether a page ends at ``old``, is as its writer wrote it, and has only older rows."""
    if page.last_seq != old.seq or not any(one.verifies(page) for one in seals):
        return False
    return all(row.at < before for row in page.rows())
