"""TaskScope: the owner of background tasks.

Every task has one owner, which keeps it from being collected half-way, reports what it died of and
ends it when the owner ends. It is not a structured-concurrency library: a failing task does not
take its siblings with it, because one bad server must not end another.

What is short and comes by the thousand is handed over (``hand``) instead: tasks that have done one
such thing wait for the next, because making a task costs as much as a tenth of a call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

log = logging.getLogger("mcp_junction.tasks")


MOST_RESTING: Final = 256
REST: Final = 1.0
"""Seconds after which those who rest are sent home: an idle process has no tasks to spare."""


class TaskScope:
    """A set of tasks with one owner."""

    __slots__ = ("_ending", "_evening", "_loop", "_name", "_resting", "_tasks")

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._resting: list[asyncio.Future[Coroutine[Any, Any, Any]]] = []
        self._ending = False
        self._evening: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # asking for it costs a system call

    def __len__(self) -> int:
        """How many things are being done."""
        return len(self._tasks) - len(self._resting)

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start ``coro``; it ends by itself or with this scope."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        task = loop.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def hand(self, coro: Coroutine[Any, Any, Any]) -> None:
        """Start ``coro``, in a task that has done others before. Nobody can wait for it."""
        if self._resting:
            self._resting.pop().set_result(coro)
        else:  # closing ends what was never begun, and is nothing to what is over
            self.spawn(self._work(coro)).add_done_callback(lambda _: coro.close())

    async def _work(self, coro: Coroutine[Any, Any, Any] | None) -> None:
        """Do one thing after another, and rest in between."""
        task, loop = asyncio.current_task(), self._loop
        assert task is not None
        assert loop is not None
        while coro is not None:
            try:
                await coro
            except asyncio.CancelledError:
                if task.cancelling():
                    raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one has its turn
                self._report(error)
            coro = None
            if not (self._ending or task.cancelling() or len(self._resting) >= MOST_RESTING):
                rest: asyncio.Future[Coroutine[Any, Any, Any]] = loop.create_future()
                self._resting.append(rest)
                if self._evening is None:
                    self._evening = loop.call_later(REST, self._send_home)
                try:
                    coro = await rest
                except asyncio.CancelledError:
                    if not rest.cancelled():
                        rest.result().close()  # it came too late
                    raise
                del rest

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        log.error("a task of %s failed: %r", self._name, error, exc_info=error)

    async def settle(self, timeout: float) -> None:
        """Give what is running ``timeout`` seconds to end by itself."""
        self._ending = True  # nobody rests any more
        self._send_home()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)

    async def close(self) -> None:
        """Cancel what is left and wait until it is gone."""
        self._ending = True
        self._send_home()
        current = asyncio.current_task()
        tasks = {task for task in self._tasks if task is not current}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _send_home(self) -> None:
        """Those who rest need not wait for more."""
        if self._evening is not None:
            self._evening.cancel()
            self._evening = None
        resting, self._resting = self._resting, []
        for rest in resting:
            rest.cancel()


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
        waited.add_done_callback(_unheard)


def _unheard(task: asyncio.Future[object]) -> None:
    """Nobody waits for it any more, so its failure is not news, either."""
    if not task.cancelled():
        task.exception()
