"""TaskScope: the owner of background tasks.

Every task has one owner, which keeps it from being collected half-way, reports what it died of and
ends it when the owner ends. It is not a structured-concurrency library: a failing task does not
take its siblings with it, because one bad server must not end another.

A task that must not end is supervised (``supervise``): when it fails it is run again, and the
scope's ``Supervision`` says which are down and how often each has failed.

What is short and comes by the thousand is handed over (``hand``) instead: tasks that have done one
such thing wait for the next, because making a task costs as much as a tenth of a call.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

log = logging.getLogger("mcp_junction.tasks")


MOST_RESTING: Final = 256
REST: Final = 1.0
"""Seconds after which those who rest are sent home: an idle process has no tasks to spare."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds before a failed task is run again: at least half of it, doubled with each failure."""
STEADY: Final = 1.0
"""Seconds that a task must run again before it counts as up, and its next pause is short."""


class Supervision:
    """Says which supervised tasks are down, and how often each has failed. It runs none itself.

    Tasks of one name are counted together. Other supervisions can be included, so that one answer
    covers the scopes of a whole program.
    """

    __slots__ = ("_down", "_failures", "_included")

    def __init__(self) -> None:
        self._included: list[Supervision] = []
        self._down: set[_Supervised] = set()
        self._failures: Counter[str] = Counter()

    def include(self, *others: Supervision) -> None:
        """Report the tasks of other supervisions, too."""
        self._included += others

    @property
    def down(self) -> list[str]:
        """The names of the vital tasks that are down."""
        return sorted({task.name for task in self._all_down() if task.is_vital})

    @property
    def down_by_name(self) -> Counter[str]:
        """How many tasks of each name are down, vital or not."""
        return Counter(task.name for task in self._all_down())

    @property
    def failures(self) -> Counter[str]:
        """How often tasks of each name have failed."""
        return sum((other.failures for other in self._included), Counter(self._failures))

    def is_down(self, name: str) -> bool:
        return any(task.name == name for task in self._all_down())

    def _all_down(self) -> Iterator[_Supervised]:
        yield from self._down
        for other in self._included:
            yield from other._all_down()

    def note_failure(self, task: _Supervised) -> None:
        self._failures[task.name] += 1
        self._down.add(task)

    def note_up(self, task: _Supervised) -> None:
        self._down.discard(task)


class _Supervised:
    """One task that is run again whenever it fails."""

    __slots__ = ("_in_a_row", "_run", "_supervision", "_up_timer", "is_vital", "name")

    def __init__(
        self,
        supervision: Supervision,
        name: str,
        run: Callable[[], Coroutine[Any, Any, None]],
        is_vital: bool,
    ) -> None:
        self.name = name
        self.is_vital = is_vital
        self._supervision = supervision
        self._run = run
        self._in_a_row = 0
        self._up_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Run it until it returns or is cancelled."""
        try:
            while (error := await self._run_once()) is not None:
                pause = self._note(error)
                await asyncio.sleep(pause)
                loop = asyncio.get_running_loop()
                self._up_timer = loop.call_later(STEADY, self._note_up)
        finally:
            self._note_up()

    async def _run_once(self) -> BaseException | None:
        """Run it once; returns what it failed with, None when it has returned."""
        try:
            await self._run()
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            return error  # something that it waited for was cancelled, not the task itself
        except Exception as error:  # noqa: BLE001 - whatever it is, the task is run again
            return error
        return None

    def _note(self, error: BaseException) -> float:
        """Count and report a failure; how long to wait before the next run."""
        self._stop_timer()
        self._supervision.note_failure(self)
        doubled: float = FIRST_PAUSE * 2.0 ** min(self._in_a_row, 16)
        pause = min(LONGEST_PAUSE, doubled) * random.uniform(0.5, 1.0)
        details = error if self._in_a_row == 0 else None  # the same traceback once an outage
        self._in_a_row += 1
        words = "the task %r failed and is run again in %.1f s: %r"
        log.error(words, self.name, pause, error, exc_info=details)
        return pause

    def _note_up(self) -> None:
        self._stop_timer()
        self._in_a_row = 0
        self._supervision.note_up(self)

    def _stop_timer(self) -> None:
        if self._up_timer is not None:
            self._up_timer.cancel()
            self._up_timer = None


class TaskScope:
    """A set of tasks with one owner."""

    __slots__ = ("_ending", "_evening", "_loop", "_name", "_resting", "_tasks", "supervision")

    def __init__(self, name: str, supervision: Supervision | None = None) -> None:
        self._name = name
        self.supervision = supervision or Supervision()
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

    def supervise(
        self, name: str, run: Callable[[], Coroutine[Any, Any, None]], *, is_vital: bool = True
    ) -> asyncio.Task[None]:
        """Run ``run()``, and run it again whenever it fails, until it returns or this scope ends.

        ``name`` labels a metric: a fixed word, the same for all tasks of a kind. While a vital task
        is down the program is not ready.
        """
        return self.spawn(_Supervised(self.supervision, name, run, is_vital).run())

    def hand(self, coro: Coroutine[Any, Any, Any]) -> None:
        """Start ``coro``, in a task that has done others before. Nobody can wait for it."""
        if self._resting:
            self._resting.pop().set_result(coro)
        else:  # closing ends what was never begun, and is nothing to what is over
            self.spawn(self._work(coro)).add_done_callback(lambda _: coro.close())

    async def _work(self, coro: Coroutine[Any, Any, Any] | None) -> None:
        """Do one thing after another, and rest in between."""
        loop = self._loop
        assert loop is not None
        while coro is not None:
            try:
                await coro
            except asyncio.CancelledError:
                if _is_being_cancelled():
                    raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one has its turn
                self._report(error)
            coro = None
            if not self._ending and len(self._resting) < MOST_RESTING:
                rest: asyncio.Future[Coroutine[Any, Any, Any]] = loop.create_future()
                self._resting.append(rest)
                if self._evening is None:
                    self._evening = loop.call_later(REST, self._send_home)
                try:
                    coro = await rest
                except asyncio.CancelledError:
                    if not rest.cancelled():
                        rest.result().close()  # it came too late
                    if _is_being_cancelled():
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


async def wait_unless(stopped: asyncio.Event, what: Awaitable[object]) -> bool:
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
        # What it failed with has this frame in its traceback, which must not lead back to it.
        del stop, waited


def _unheard(task: asyncio.Future[object]) -> None:
    """Nobody waits for it any more, so its failure is not news, either."""
    if not task.cancelled():
        task.exception()


def _is_being_cancelled() -> bool:
    """Whether the current task itself is to end.

    A frame that held the task would lead back to it from the traceback of what the task ended with.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
