"""Slices: cuts long work on the event loop into pieces, between which other tasks run.

For work that cannot leave the loop's thread, like an index that searches read; other work belongs
in a thread, or in the worker process. Breaks are the same for a job in another process that comes
in steps, since it takes processor time from calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from time import perf_counter, sleep, thread_time
from typing import Final, TypeVar

T = TypeVar("T")

WORK: Final = 0.002
"""Seconds of work at a time."""
REST: Final = 0.003
"""Seconds between two slices. More than a slice, or calls would get less than half of the loop."""
BUSY_REST: Final = 0.02
"""The same while the loop is busy."""
IDLE_WORK: Final = 0.004
IDLE_REST: Final = 0.001
"""Both while the loop is otherwise idle."""
_IDLE: Final = 0.1
_BUSY: Final = 0.3
LONGEST_BREAK: Final = 0.5


class Slices:
    """Tells when a slice is over, and waits until the next one may begin.

    How busy the loop was during the last pause decides how long slices and pauses are.
    """

    __slots__ = ("_end", "_rest", "count")

    def __init__(self) -> None:
        self._end = perf_counter() + WORK
        self._rest = REST
        self.count = 0
        """How many slices are over."""

    @property
    def is_over(self) -> bool:
        """Whether to pause now; cheap enough for every step."""
        return perf_counter() >= self._end

    async def rest(self) -> None:
        """Let other tasks run, and begin the next slice."""
        self.count += 1
        began, worked = perf_counter(), thread_time()
        await asyncio.sleep(self._rest)
        share = (thread_time() - worked) / (perf_counter() - began)
        if share < _IDLE:
            work, self._rest = IDLE_WORK, IDLE_REST
        else:
            work, self._rest = WORK, REST if share < _BUSY else BUSY_REST
        self._end = perf_counter() + work


def pace(items: Iterable[T]) -> Iterator[T]:
    """Iterate at a third of the speed; for another thread than the loop's.

    Such a thread holds the interpreter's lock while it computes; the loop has it for the rest.
    """
    end = perf_counter() + WORK
    for item in items:
        yield item
        if perf_counter() >= end:
            sleep(2 * WORK)
            end = perf_counter() + WORK


class Breaks:
    """Waits between the steps of a long job, as long as each took, while the loop is busy."""

    __slots__ = ("_begun", "_worked")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._begun, self._worked = perf_counter(), thread_time()

    async def rest(self) -> None:
        """Wait after a step, as long as it took, if the loop was busy meanwhile."""
        took = perf_counter() - self._begun
        if thread_time() - self._worked > took / 2:
            await asyncio.sleep(min(took, LONGEST_BREAK))
        self._begin()
