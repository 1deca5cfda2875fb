"""Gate: where calls wait for the link of a server, as long as that makes sense.

That is while a first connection is being made, and in the first moments after a healthy link was
lost; never more than some of them, never for long.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mcp_junction.resilience.clock import Clock

RECONNECT_WINDOW: Final = 10.0
MAX_WAITING: Final = 100


class Gate:
    """The gate of one server."""

    __slots__ = ("_clock", "_open", "down_since", "is_held", "waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = asyncio.Event()
        self.down_since = clock.now()
        self.is_held = False
        """Whether no more calls are wanted there, link or not."""
        self.waiting = 0

    @property
    def down_for(self) -> float:
        return self._clock.now() - self.down_since

    def begin(self) -> None:
        """The server is to be connected to."""
        self.is_held = False
        self.down_since = self._clock.now()

    def open(self) -> None:
        """There is a link."""
        self._open.set()

    def shut(self, *, lost: bool) -> None:
        """There is none any more; ``lost`` if there was one for calls."""
        if lost:
            self.down_since = self._clock.now()
        self._open.clear()

    def send_away(self) -> None:
        """Whoever waits need not any more."""
        self._open.set()
        self._open.clear()

    async def wait(self, limit: float, *, first: bool, again: bool) -> None:
        """Wait for the link. ``first``: it is the first one; ``again``: a lost one is replaced."""
        left = RECONNECT_WINDOW - self.down_for
        if not (first or (again and left > 0)) or self.waiting >= MAX_WAITING:
            return
        wait = RECONNECT_WINDOW if first else left
        self.waiting += 1
        try:
            await asyncio.wait_for(self._open.wait(), min(wait, limit or wait))
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1
