"""Pulse: measures how long the event loop was held up. What that takes in milliseconds is a matter
of `make bench` (`warmup`); a test only shows that long work is cut up.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

BLOCKED = 0.25
"""The longest that the loop may be held up."""
PAUSE = 0.005
TRIES = 3


async def least(measure: Callable[[], Awaitable[float]], bound: float) -> float:
    """Measure until it is less than the bound, at most three times; the least.

    Whatever else the machine does only ever adds to such a figure, so that one good try shows what
    the program itself takes, and a program that takes too long does so in every try.
    """
    found = await measure()
    for _ in range(TRIES - 1):
        if found < bound:
            break
        found = min(found, await measure())
    return found


class Pulse:
    """Beats on the loop; ``worst`` is by how much a beat was late. That is no more than was worked
    meanwhile, so that what else runs on the machine does not count: worked by the loop's own
    thread, or by all threads of the process with ``worked=time.process_time``."""

    def __init__(self, worked: Callable[[], float] = time.thread_time) -> None:
        self.worst = 0.0
        self.beats = 0
        self._worked = worked
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Pulse":
        self._task = asyncio.ensure_future(self._beat())
        return self

    async def __aexit__(self, *_) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _beat(self) -> None:
        while True:
            wall, worked = time.monotonic(), self._worked()
            await asyncio.sleep(PAUSE)
            late = time.monotonic() - wall - PAUSE
            self.worst = max(self.worst, min(late, self._worked() - worked))
            self.beats += 1
