"""Clock: the one way to ask for the time, so that tests can give their own."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real one."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)
