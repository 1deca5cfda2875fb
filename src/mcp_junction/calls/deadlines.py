"""Deadlines: one sweep for all attempts and calls that have one, instead of a timer for each.

A deadline stands still while what it is for is paused: the client is being asked something.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from mcp_junction.resilience.clock import Clock

TICK: Final = 0.05


class Expiring(Protocol):
    """An attempt or a call."""

    deadline: float

    @property
    def is_paused(self) -> bool: ...

    def expire(self, seconds: float) -> None:
        """End it: it has had its ``seconds``."""
        ...


class Deadlines:
    """Ends attempts and calls whose time is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watched: dict[Expiring, float] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, what: Expiring, seconds: float, left: float | None = None) -> None:
        """Give ``what`` its seconds, or what is ``left`` of them."""
        what.deadline = self._clock.now() + (seconds if left is None else left)
        self._watched[what] = seconds
        self._some.set()

    def forget(self, what: Expiring) -> None:
        self._watched.pop(what, None)

    def left(self, what: Expiring) -> float | None:
        """The seconds that it has left; None if it has no deadline."""
        return max(0.0, what.deadline - self._clock.now()) if what in self._watched else None

    async def run(self) -> None:
        """Sweep while there is anything to sweep."""
        while True:
            await self._some.wait()
            before = self._clock.now()
            await self._clock.sleep(TICK)
            self.sweep(self._clock.now() - before)
            if not self._watched:
                self._some.clear()

    def sweep(self, elapsed: float) -> None:
        now = self._clock.now()
        for what, seconds in list(self._watched.items()):
            if what.is_paused:
                what.deadline += elapsed
            elif what.deadline <= now:
                del self._watched[what]
                what.expire(seconds)
