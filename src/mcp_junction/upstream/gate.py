"""Gate: where calls wait for the link of a server, for a limited time and in limited number.

They wait while a first connection is being made, and in the first seconds after a healthy link was
lost.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mcp_junction.resilience.clock import Clock

RECONNECT_WINDOW: Final = 10.0
MAX_WAITING: Final = 100


class Gate:
    """The calls that wait for the link of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = asyncio.Event()
        self._down_since = clock.now()
        self.is_held = False
        """Whether the operator wants no more calls there, link or not."""
        self.waiting = 0
        """How many calls wait."""

    @property
    def down_for(self) -> float:
        """Seconds since the last link was lost, or since connecting began."""
        return self._clock.now() - self._down_since

    def begin(self) -> None:
        """Let calls wait for a first link."""
        self.is_held = False
        self._down_since = self._clock.now()

    def open(self) -> None:
        """Let waiting calls pass: there is a link."""
        self._open.set()

    def shut(self, *, was_open: bool) -> None:
        """Let calls wait again: the link, which calls could use if ``was_open``, has ended."""
        if was_open:
            self._down_since = self._clock.now()
        self._open.clear()

    def turn_away(self) -> None:
        """Let waiting calls go without a link."""
        self._open.set()
        self._open.clear()

    async def wait(self, limit: float, *, is_first: bool, is_restarted: bool) -> None:
        """Wait for the link: the first one, or, where it ``is_restarted``, another one."""
        left = RECONNECT_WINDOW if is_first else RECONNECT_WINDOW - self.down_for
        if not (is_first or (is_restarted and left > 0)) or self.waiting >= MAX_WAITING:
            return
        self.waiting += 1
        try:
            await asyncio.wait_for(self._open.wait(), min(left, limit or left))
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1
