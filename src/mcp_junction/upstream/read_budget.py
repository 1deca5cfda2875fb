"""ReadBudget: how many bytes from all servers together one turn of the event loop may process."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

LONG: Final = 0.002
"""Seconds after which a turn has lasted long enough."""

Portion = Callable[[float], bool]
"""Takes some of what waits, until a moment by the clock; whether there is more."""


class ReadBudget:
    """What of the servers' output waits for its turn."""

    __slots__ = ("_due", "_now", "_spent", "_waiting")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._waiting: deque[Portion] = deque()
        self._spent = 0.0
        self._due = False

    @property
    def is_over(self) -> bool:
        """Whether no more is to be taken in this turn."""
        return self._spent >= LONG

    def spend(self, seconds: float) -> None:
        """Something was taken as it came, and took so long."""
        self._spent += seconds
        self._next_soon()

    def wait(self, portion: Portion) -> None:
        """Have ``portion`` called in later turns, until it says that there is no more."""
        self._waiting.append(portion)
        self._next_soon()

    def _next_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """The next turn has begun."""
        self._due = False
        began = now = self._now()
        for _ in range(len(self._waiting)):
            portion = self._waiting.popleft()
            if portion(began + LONG):
                self._waiting.append(portion)
            now = self._now()
            if now - began >= LONG:
                break
        self._spent = now - began
        if self._waiting or self.is_over:
            self._next_soon()
