"""Retention: removing what is old without making a hole that looks like tampering.

Before the old end of a chain goes, an *anchor* is written, durably, into our own chain: which row
was the last to go, and its mac. So the rest of that chain can still be verified.
"""

from __future__ import annotations

from mcp_junction.audit.checkpoints import Checkpoints
from mcp_junction.audit.log import AuditLog
from mcp_junction.store.audit import AuditTrail


async def retire(trail: AuditTrail, log: AuditLog, checkpoints: Checkpoints, before: float) -> int:
    """Remove the rows that are older than a time; how many. Raises StoreUnavailable."""
    removed = 0
    for sealed in await trail.oldest_ends(before):
        detail = {"writer": sealed.row.writer, "seq": sealed.row.seq, "head": sealed.mac.hex()}
        await log.stored(log.entry("anchor", "junction", "audit.retire", detail=detail))
        removed += await trail.retire(sealed.row.writer, sealed.row.seq)
        if not await trail.chain(sealed.row.writer, limit=1):
            checkpoints.remove(sealed.row.writer)
    return removed
