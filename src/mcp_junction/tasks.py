"""TaskScope: the owner of background tasks.

Every task has one owner, which keeps it from being collected half-way, reports what it died of and
ends it when the owner ends. It is not a structured-concurrency library: a failing task does not
take its siblings with it, because one bad server must not end another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any

log = logging.getLogger("mcp_junction.tasks")


class TaskScope:
    """A set of tasks with one owner."""

    __slots__ = ("_loop", "_name", "_tasks")

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None  # asking for it costs a system call

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start ``coro``; it ends by itself or with this scope."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        task = loop.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of %s failed: %r", self._name, error, exc_info=error)

    async def settle(self, timeout: float) -> None:
        """Give what is running ``timeout`` seconds to end by itself."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)

    async def close(self) -> None:
        """Cancel what is left and wait until it is gone."""
        current = asyncio.current_task()
        tasks = {task for task in self._tasks if task is not current}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def unless(stopped: asyncio.Event, what: Awaitable[object]) -> bool:
    """Wait for ``what`` or for being stopped; whether it was the former."""
    stop = asyncio.ensure_future(stopped.wait())  # noqa: TID251 - awaited right here
    waited = asyncio.ensure_future(what)  # noqa: TID251 - awaited right here
    try:
        await asyncio.wait({stop, waited}, return_when=asyncio.FIRST_COMPLETED)
        if waited.done():
            waited.result()
        return waited.done()
    finally:
        stop.cancel()
        waited.cancel()
