"""Clock: the source of time, which tests can replace."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and sleeps."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of the system."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)
