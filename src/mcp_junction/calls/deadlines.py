"""Deadlines: one sweep for all calls that have one, instead of a timer for each.

A deadline stands still while the client is being asked something on the call's behalf.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mcp_junction.calls.call import Call
from mcp_junction.resilience.clock import Clock

TICK: Final = 0.05


class Deadlines:
    """The calls that may not last for ever."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: dict[Call, float] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._calls)

    def watch(self, call: Call, seconds: float) -> None:
        call.deadline = self._clock.now() + seconds
        self._calls[call] = seconds
        self._some.set()

    def forget(self, call: Call) -> None:
        self._calls.pop(call, None)

    async def run(self) -> None:
        """Sweep while there is anything to sweep."""
        while True:
            await self._some.wait()
            before = self._clock.now()
            await self._clock.sleep(TICK)
            self.sweep(self._clock.now() - before)
            if not self._calls:
                self._some.clear()

    def sweep(self, elapsed: float) -> None:
        now = self._clock.now()
        for call, seconds in list(self._calls.items()):
            assert call.deadline is not None
            if call.asking:
                call.deadline += elapsed
            elif call.deadline <= now:
                del self._calls[call]
                call.expire(seconds)
