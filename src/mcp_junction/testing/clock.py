"""FakeClock: time that moves only when it is told to."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Final

_TURNS: Final = 10
"""Turns of the event loop that those who were woken get before time goes on."""


class FakeClock:
    """A Clock. ``advance`` wakes sleepers one by one, in the order in which they are due."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """How many wait for time to pass."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Let time pass. Whoever is woken may sleep again, and is woken again if due by then."""
        until = self._now + seconds
        await _others_run()
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                self._now = due
                woken.set_result(None)
                await _others_run()
        self._now = until


async def _others_run() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
