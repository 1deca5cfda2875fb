"""Checkpointer: keeps the checkpoint of one writer of the audit up to date.

It knows how far the chain is stored and when that is to be noted outside the store: soon after the
last row, and at once when an intent waits for it. What a checkpoint holds is ``checkpoints.py``'s.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from mcp_junction.audit.checkpoints import Checkpoint, CheckpointFile

log = logging.getLogger("mcp_junction.audit")

WITHIN: Final = 0.5
"""Seconds after a row is stored within which a checkpoint is begun."""


class Checkpointer:
    """Writes the checkpoint of one chain when it is due."""

    def __init__(self, file: CheckpointFile, key: bytes, writer: str) -> None:
        self._file = file
        self._key = key
        self._writer = writer
        self._stored: tuple[int, bytes] = (0, b"")
        self._written_seq = 0
        self._tried_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._has_timer_fired = False
        self._is_failing = False

    @property
    def is_behind(self) -> bool:
        """Whether rows are stored that are not in the checkpoint yet."""
        return self._written_seq != self._stored[0]

    @property
    def is_due(self) -> bool:
        elapsed = time.monotonic() - self._tried_at
        return self.is_behind and (self._has_timer_fired or elapsed >= WITHIN)

    def advance(self, seq: int, mac: bytes, wake: Callable[[], None]) -> None:
        """Note that the chain is stored up to ``seq``; ``wake`` is called when a write is due."""
        self._stored = seq, mac
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WITHIN, self._on_timer, wake)

    def _on_timer(self, wake: Callable[[], None]) -> None:
        self._timer = None
        self._has_timer_fired = True
        wake()

    async def write(self, at: float) -> bool:
        """Write a checkpoint of how far the chain is stored; returns whether that succeeded."""
        seq, mac = self._stored
        point = Checkpoint(self._writer, seq, mac.hex(), at).sealed(self._key)
        self._tried_at, self._has_timer_fired = time.monotonic(), False
        try:
            await asyncio.to_thread(self._file.write, point)
        except OSError as error:
            if not self._is_failing:
                words = "the audit's checkpoint cannot be written: %s; check the data directory"
                log.error(words, error.strerror)
            self._is_failing = True
            return False
        self._is_failing = False
        self._written_seq = seq
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._file.close()
