"""Pulse: measures how long the event loop was held up."""

import asyncio
import time
from collections.abc import Callable

BLOCKED = 0.25
"""The longest that the loop may be held up."""
PAUSE = 0.005


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
