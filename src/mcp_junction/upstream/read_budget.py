"""ReadBudget: how long servers' output may be processed in one turn of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

TURN_LIMIT: Final = 0.002
"""Seconds of one turn of the event loop that servers' output may take."""

Portion = Callable[[float], bool]
"""Processes some of what waits, until a moment by the clock; returns whether there is more."""


class ReadBudget:
    """Shares the time of the event loop's turns among the servers whose output waits."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._waiting: deque[Portion] = deque()
        self._spent = 0.0
        self._is_scheduled = False

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be processed in this turn."""
        return self._spent >= TURN_LIMIT

    def spend(self, seconds: float) -> None:
        """Count the time that output processed on arrival has taken."""
        self._spent += seconds
        self._schedule()

    def wait(self, portion: Portion) -> None:
        """Have ``portion`` called in later turns, until it returns that there is no more."""
        self._waiting.append(portion)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        """Process waiting portions at the beginning of a turn, each at most once."""
        self._is_scheduled = False
        began = now = self._now()
        for _ in range(len(self._waiting)):
            portion = self._waiting.popleft()
            if portion(began + TURN_LIMIT):
                self._waiting.append(portion)
            now = self._now()
            if now - began >= TURN_LIMIT:
                break
        self._spent = now - began
        if self._waiting or self.is_spent:
            self._schedule()
