"""Coalescer: many changes in a short time are told once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

DELAY: Final = 0.02


class Coalescer:
    """Calls ``tell`` a moment after the first of a run of changes."""

    __slots__ = ("_delay", "_handle", "_tell")

    def __init__(self, tell: Callable[[], None], delay: float = DELAY) -> None:
        self._tell = tell
        self._delay = delay
        self._handle: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._delay, self._now)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _now(self) -> None:
        self._handle = None
        self._tell()
