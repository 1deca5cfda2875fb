"""ThreadJob: work for a thread, and the coroutine that waits for its result.

The waiting ends when the thread makes no progress: it may hang in a system call, and threads cannot
be cancelled. Its result is then discarded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from mcp_junction.errors import StoreUnavailable


class ThreadJob:
    """Work that a thread does, and the future that waits for it."""

    __slots__ = ("_future", "_loop", "failure", "result")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self.result: Any = None
        self.failure: BaseException | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._future.cancelled()

    async def wait(self, moved_at: Callable[[], float], patience: float) -> Any:
        """Wait for the result for as long as there is progress.

        ``moved_at`` says when there was some last, by the monotonic clock. Raises what the job
        failed with, or StoreUnavailable.
        """
        future = self._future
        try:
            while not future.done():
                left = moved_at() + patience - time.monotonic()
                if left <= 0:
                    raise StoreUnavailable(f"the store has not answered for {patience:g} s")
                await asyncio.wait({future}, timeout=min(left, patience))
        finally:
            if not future.cancel() and not future.cancelled():
                future.exception()  # if we are cancelled at this moment, nobody wants it
        return future.result()

    def settle_soon(self) -> None:
        """Wake up who waits; called in the thread."""
        settle_all([self])

    def _settle(self) -> None:
        if self._future.done():
            return  # they have gone
        if self.failure is not None:
            self._future.set_exception(self.failure)
        else:
            self._future.set_result(self.result)


def settle_all(jobs: Iterable[ThreadJob]) -> None:
    """Wake up all who wait, each event loop once; called in a thread."""
    loops: dict[asyncio.AbstractEventLoop, list[ThreadJob]] = {}
    for job in jobs:
        loops.setdefault(job._loop, []).append(job)
    for loop, those in loops.items():
        try:
            loop.call_soon_threadsafe(_settle_each, those)
        except RuntimeError:  # it has ended
            pass


def _settle_each(jobs: list[ThreadJob]) -> None:
    for job in jobs:
        job._settle()
