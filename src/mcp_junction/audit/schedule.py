"""Schedule: what is too old leaves the audit, once a day. How it leaves is ``retention.py``'s."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from mcp_junction.audit.checkpoints import Checkpoints
from mcp_junction.audit.log import AuditLog
from mcp_junction.audit.retention import retire
from mcp_junction.errors import StoreUnavailable
from mcp_junction.resilience.clock import Clock
from mcp_junction.store.audit import AuditTrail

log = logging.getLogger("mcp_junction.audit")

DAY: Final = 24 * 3600.0
FIRST: Final = 60.0
"""Seconds after the start: a service that never lives for a day forgets, too."""
AGAIN: Final = 600.0
"""Seconds until the next attempt, when the store does not let us."""


async def retire_daily(
    days: int,
    trail: AuditTrail,
    writer: AuditLog,
    checkpoints: Checkpoints,
    keys: Sequence[bytes],
    clock: Clock,
    now: Callable[[], float] = time.time,
) -> None:
    """Keep the rows of the last ``days`` days, for as long as this runs. It ends by being ended."""
    pause = FIRST
    while True:
        await clock.sleep(pause)
        try:
            removed = await retire(trail, writer, checkpoints, keys, now() - days * DAY)
        except (StoreUnavailable, OSError) as error:
            log.warning("old rows of the audit cannot be removed now: %s", error)
            pause = AGAIN
            continue
        if removed:
            log.info("%d rows of the audit were older than %d days and are gone", removed, days)
        pause = DAY
