"""Retention: has old rows removed, at once and then regularly, also after the store has failed.

Which rows are old, and how they are removed, is the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from mcp_junction.errors import StoreError
from mcp_junction.resilience.clock import Clock

log = logging.getLogger("mcp_junction.store")

DAY: Final = 24 * 3600.0


async def remove_regularly(
    what: str,
    remove: Callable[[], Awaitable[object]],
    clock: Clock,
    *,
    every: float = DAY,
    again: float | None = None,
) -> None:
    """Remove old rows at once and then regularly, until cancelled.

    ``what`` names the rows in the log. After a failure the next attempt is made ``again`` seconds
    later; ``every`` seconds later, without it.
    """
    while True:
        pause = every
        try:
            await remove()
        except (StoreError, OSError) as error:
            log.warning("old %s cannot be removed now: %s", what, error)
            pause = every if again is None else again
        await clock.sleep(pause)
