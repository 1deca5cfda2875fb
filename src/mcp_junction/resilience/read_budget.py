"""ReadBudget: limits how long input that comes in floods may be processed in a turn of the loop.

PacedInput feeds what a connection receives to its parser in pieces, within such a budget.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

TURN_LIMIT: Final = 0.002
"""Seconds of one turn of the event loop that input may take."""
AT_ONCE: Final = 8 * 1024
"""Bytes that are parsed without a look at the time, when no more has come."""
_SMALLEST_PIECE: Final = 1024
_LARGEST_PIECE: Final = 64 * 1024
_NOTHING: Final = memoryview(b"")
_MEASURABLE: Final = 0.0002

Portion = Callable[[float], bool]
"""Processes some of what waits, until a moment by the clock; returns whether there is more."""


class ReadBudget:
    """Shares the time of the event loop's turns among the connections whose input waits."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._waiting: deque[Portion] = deque()
        self._spent = 0.0
        self._is_scheduled = False

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be processed in this turn."""
        return self._spent >= TURN_LIMIT

    def process(self, portion: Portion) -> bool:
        """Call ``portion`` for what has just come, if there is time; whether there is more."""
        if self.is_spent:
            return True
        began = self.now()
        has_more = portion(began + TURN_LIMIT)
        took = self.now() - began
        if took > _MEASURABLE:
            self.spend(took)
        return has_more

    def spend(self, seconds: float) -> None:
        """Count the time that input processed on arrival has taken."""
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
        began = now = self.now()
        for _ in range(len(self._waiting)):
            portion = self._waiting.popleft()
            if portion(began + TURN_LIMIT):
                self._waiting.append(portion)
            now = self.now()
            if now - began >= TURN_LIMIT:
                break
        self._spent = now - began
        if self._waiting or self.is_spent:
            self._schedule()


class PieceReceiver(Protocol):
    """The connection that parses the pieces of its input."""

    def receive_piece(self, piece: memoryview, *, is_last: bool) -> None:
        """Parse a piece; after the last one, no more of what has come waits."""

    def resume_input(self) -> None:
        """Read on."""


class PacedInput:
    """The input of one connection that is more than a piece."""

    __slots__ = ("_budget", "_data", "_receiver")

    def __init__(self, receiver: PieceReceiver, budget: ReadBudget) -> None:
        self._receiver = receiver
        self._budget = budget
        self._data = _NOTHING

    @property
    def is_waiting(self) -> bool:
        """Whether there is input that is not parsed."""
        return len(self._data) > 0

    def take(self, data: bytes) -> bool:
        """Parse what has come, in later turns what takes too long.

        Returns whether that is so; then the caller reads nothing until ``resume_input``.
        """
        self._data = memoryview(data)
        if not self._budget.process(self._parse):
            return False
        self._budget.wait(self._parse_later)
        return True

    def finish(self) -> None:
        """Parse all that waits, because the connection has ended."""
        self._parse(math.inf)

    def _parse_later(self, until: float) -> bool:
        if not self.is_waiting:
            return False
        if self._parse(until):
            return True
        self._receiver.resume_input()
        return False

    def _parse(self, until: float) -> bool:
        size, now = _SMALLEST_PIECE, self._budget.now()
        while self._data:
            piece, self._data = self._data[:size], self._data[size:]
            self._receiver.receive_piece(piece, is_last=not self._data)
            began, now = now, self._budget.now()
            if now >= until:
                break
            # Large bodies are quick to parse, and the larger their pieces are the quicker.
            is_quick = now - began < _MEASURABLE
            size = min(size * 2, _LARGEST_PIECE) if is_quick else _SMALLEST_PIECE
        if self._data:
            return True
        self._data = _NOTHING  # even an empty view would hold all that has come
        return False
