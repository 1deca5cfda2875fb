"""Deadlines: one sweep for all attempts and calls that have one, instead of a timer for each.

A deadline stands still while what it is for is paused: the client is being asked something. An
attempt may have two: how long it may take, and for how long its server may say nothing.
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


class TimedAttempt(Expiring, Protocol):
    """An attempt, as far as its time is concerned."""

    idle: IdleLimit | None

    def expire_silent(self, seconds: float) -> None:
        """End it: its server has said nothing for so many ``seconds``."""
        ...


class IdleLimit:
    """Ends an attempt whose server says nothing; whatever it says begins the time anew."""

    __slots__ = ("_attempt", "_now", "_seconds", "deadline")

    def __init__(self, attempt: TimedAttempt, clock: Clock, seconds: float) -> None:
        self._attempt = attempt
        self._now = clock.now
        self._seconds = seconds
        self.deadline = 0.0

    @property
    def is_paused(self) -> bool:
        return self._attempt.is_paused

    def restart(self) -> None:
        """Begin the time anew, because the server has said something."""
        self.deadline = self._now() + self._seconds

    def expire(self, seconds: float) -> None:
        self._attempt.expire_silent(seconds)


class Deadlines:
    """Ends attempts and calls whose time is over."""

    def __init__(self, clock: Clock, idle: float = 0.0) -> None:
        """``idle`` is for how many seconds a server may say nothing; 0 is for ever."""
        self._clock = clock
        self.idle = idle
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

    def begin(self, attempt: TimedAttempt, seconds: float, left: float | None = None) -> None:
        """Give an attempt its seconds, or what is ``left`` of them; 0 is no limit."""
        if seconds or left is not None:
            self.watch(attempt, seconds, left)
        if self.idle:
            attempt.idle = IdleLimit(attempt, self._clock, self.idle)
            self.watch(attempt.idle, self.idle)

    def end(self, attempt: TimedAttempt) -> None:
        """Forget an attempt that has ended."""
        self.forget(attempt)
        if attempt.idle is not None:
            self.forget(attempt.idle)
            attempt.idle = None  # they refer to each other

    def left(self, what: Expiring) -> float | None:
        """The seconds that it has left; None if it has no deadline."""
        return max(0.0, what.deadline - self._clock.now()) if what.deadline else None

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
