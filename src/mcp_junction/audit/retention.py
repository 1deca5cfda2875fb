"""Retention: removing what is old without making a hole that looks like tampering.

Before the old end of a chain goes, an *anchor* is written, durably, into our own chain: which row
was the last to go, and the mac of its page. So the rest of that chain can still be verified. Whole
pages go: a row is kept a moment longer than it must be when a younger one lies in its page.
"""

from __future__ import annotations

from mcp_junction.audit.checkpoints import Checkpoints
from mcp_junction.audit.log import AuditLog
from mcp_junction.store.audit import AuditTrail


async def retire(trail: AuditTrail, log: AuditLog, checkpoints: Checkpoints, before: float) -> int:
    """Remove the rows that are older than a time; how many. Raises StoreUnavailable."""
    removed = 0
    for old in await trail.oldest_ends(before):
        detail = {"writer": old.writer, "seq": old.seq, "head": old.mac.hex()}
        await log.stored(log.entry("anchor", "junction", "audit.retire", detail=detail))
        removed += await trail.retire(old)
        if not await trail.pages(old.writer, limit=1):
            checkpoints.remove(old.writer)
    return removed
