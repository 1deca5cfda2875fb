"""StallSweep: ends connections whose peer does not read what is written to it.

One periodic sweep checks all connections, so a write costs no timer, only a count of its bytes. How
a connection is ended is up to that connection.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from mcp_junction.resilience.clock import Clock

STALLED_AFTER: Final = 30.0
"""Seconds within which a peer that is written to must read something."""
SWEEP_EVERY: Final = 5.0
_SLICE: Final = 500


class Writer(Protocol):
    """One connection that is written to."""

    @property
    def written(self) -> int:
        """How many bytes were written in all."""

    @property
    def unsent(self) -> int:
        """How many of them the peer has not read."""

    def cut_stalled(self, seconds: float) -> None:
        """End it, because the peer has read nothing for ``seconds``."""


class StallSweep:
    """Watches connections with unsent bytes, and ends those that make no progress."""

    def __init__(self, clock: Clock, patience: float = STALLED_AFTER) -> None:
        self._clock = clock
        self._patience = patience
        self._writers: set[Writer] = set()
        self._since: dict[Writer, tuple[int, float]] = {}
        """For those with unsent bytes: how many the peer has read, and since when."""

    def __len__(self) -> int:
        return len(self._writers)

    def watch(self, writer: Writer) -> None:
        self._writers.add(writer)

    def forget(self, writer: Writer) -> None:
        self._writers.discard(writer)
        self._since.pop(writer, None)

    def sweep(self, writers: list[Writer] | None = None) -> None:
        """Check connections, all if none are given, and end those that have stalled."""
        now = self._clock.now()
        for writer in list(self._writers) if writers is None else writers:
            unsent = writer.unsent
            if not unsent:
                self._since.pop(writer, None)
                continue
            read = writer.written - unsent
            before, since = self._since.get(writer, (-1, now))
            if read != before:
                self._since[writer] = read, now
            elif now - since >= self._patience:
                self.forget(writer)
                writer.cut_stalled(now - since)

    async def run(self) -> None:
        """Sweep for ever, in slices: there may be thousands of connections."""
        while True:
            await self._clock.sleep(SWEEP_EVERY)
            everyone = list(self._writers)
            for start in range(0, len(everyone), _SLICE):
                self.sweep([w for w in everyone[start : start + _SLICE] if w in self._writers])
                await asyncio.sleep(0)
