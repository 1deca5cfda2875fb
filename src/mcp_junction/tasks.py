"""TaskScope: the owner of background tasks.

Every task has one owner, which keeps it from being garbage-collected, reports its failure and
cancels it when the owner ends. A failing task does not cancel its siblings, because one bad server
must not end another.

A task that must not end is supervised (``supervise``): when it fails it is run again, and the
scope's ``Supervision`` knows which are down and how often each has failed.

Short coroutines that come by the thousand run in a pool of tasks (``run_pooled``), because creating
a task costs a tenth of a call.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

log = logging.getLogger("mcp_junction.tasks")

T = TypeVar("T")

MAX_IDLE: Final = 256
IDLE_SECONDS: Final = 1.0
"""Seconds after which idle tasks of the pool end: an idle process has none."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds before a failed task is run again: between half of it and all, doubled each time."""
STEADY: Final = 1.0
"""Seconds that a task must run before it counts as up, and its next pause is short again."""


class Supervision:
    """Knows which supervised tasks are down, and how often each has failed.

    Tasks of one name are counted together. Other supervisions can be included, so that one covers
    the scopes of a whole program.
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
        """Whether a task of this name is down."""
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
        """Run it once; returns its error, None when it has returned."""
        try:
            await self._run()
        except asyncio.CancelledError as error:
            if _is_cancelling():
                raise
            return error  # something that it awaited was cancelled, not the task itself
        except Exception as error:  # noqa: BLE001 - whatever it is, the task is run again
            return error
        return None

    def _note(self, error: BaseException) -> float:
        """Count and report a failure; returns the pause before the next run."""
        self._stop_timer()
        self._supervision.note_failure(self)
        doubled: float = FIRST_PAUSE * 2.0 ** min(self._in_a_row, 16)
        pause = min(LONGEST_PAUSE, doubled) * random.uniform(0.5, 1.0)
        details = error if self._in_a_row == 0 else None  # one traceback per outage
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

    __slots__ = ("_idle", "_idle_timer", "_is_closing", "_loop", "_name", "_tasks", "supervision")

    def __init__(self, name: str, supervision: Supervision | None = None) -> None:
        self._name = name
        self.supervision = supervision or Supervision()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle: list[asyncio.Future[Coroutine[Any, Any, Any]]] = []
        self._is_closing = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # looking it up costs a system call

    def __len__(self) -> int:
        """How many coroutines are running."""
        return len(self._tasks) - len(self._idle)

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

    def run_pooled(self, coro: Coroutine[Any, Any, Any]) -> None:
        """Run ``coro`` in a task of the pool. It cannot be awaited."""
        if self._idle:
            self._idle.pop().set_result(coro)
        else:  # close() ends a coroutine that never began, and does nothing to one that is over
            self.spawn(self._run_worker(coro)).add_done_callback(lambda _: coro.close())

    async def _run_worker(self, coro: Coroutine[Any, Any, Any] | None) -> None:
        """Run one coroutine after another, idle in between."""
        loop = self._loop
        assert loop is not None
        while coro is not None:
            try:
                await coro
            except asyncio.CancelledError:
                if _is_cancelling():
                    raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one has its turn
                self._report(error)
            coro = None
            if not self._is_closing and len(self._idle) < MAX_IDLE:
                coming: asyncio.Future[Coroutine[Any, Any, Any]] = loop.create_future()
                self._idle.append(coming)
                if self._idle_timer is None:
                    self._idle_timer = loop.call_later(IDLE_SECONDS, self._dismiss_idle)
                try:
                    coro = await coming
                except asyncio.CancelledError:
                    if not coming.cancelled():
                        coming.result().close()  # it came too late
                    if _is_cancelling():
                        raise
                del coming

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        log.error("a task of %s failed: %r", self._name, error, exc_info=error)

    async def settle(self, timeout: float) -> None:
        """Wait until the tasks have ended, for at most ``timeout`` seconds."""
        self._is_closing = True
        self._dismiss_idle()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)

    async def close(self) -> None:
        """Cancel the tasks that are left and wait until they have ended."""
        self._is_closing = True
        self._dismiss_idle()
        current = asyncio.current_task()
        tasks = {task for task in self._tasks if task is not current}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _dismiss_idle(self) -> None:
        """End the idle tasks of the pool."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        idle, self._idle = self._idle, []
        for coming in idle:
            coming.cancel()


class OnDemandTask:
    """A supervised task that is started when there is something to do, and ends when there is not.

    ``run`` is called while ``news`` is set, and clears it before it looks for work.
    """

    __slots__ = ("_name", "_run", "_task", "_tasks", "news")

    def __init__(
        self, tasks: TaskScope, name: str, run: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self.news = asyncio.Event()
        self._tasks = tasks
        self._name = name
        self._run = run
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Have it look for work soon; if it is at work, once more after that."""
        self.news.set()
        if self._task is None or self._task.done():
            self._task = self._tasks.supervise(self._name, self._work, is_vital=False)

    async def _work(self) -> None:
        try:
            while self.news.is_set():
                await self._run()
        except BaseException:
            self.news.set()  # what it was at is not done: it is run again
            raise

    async def wait_until_done(self, limit: float | None = None) -> None:
        """Wait until nothing is left to do, at most ``limit`` seconds."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=limit)


async def wait_unless(stopped: asyncio.Event, what: Awaitable[object]) -> bool:
    """Wait for ``what`` unless ``stopped`` is set before; whether ``what`` is done."""
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
        waited.add_done_callback(_ignore_error)
        # Its exception has this frame in its traceback, which must not refer back to it.
        del stop, waited


async def wait_until_set(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, at most so many seconds; return whether it is set.

    Unlike ``asyncio.wait_for`` in Python 3.11, it never swallows a cancellation.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()


async def wait_for_any(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of some futures is done, for at most ``timeout`` seconds; cancels none."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Set the result of a future, unless it is done."""
    if not future.done():
        future.set_result(result)


def _ignore_error(task: asyncio.Future[object]) -> None:
    """Retrieve the exception of a task that nobody awaits, so that it is not logged."""
    if not task.cancelled():
        task.exception()


def _is_cancelling() -> bool:
    """Whether the current task itself is being cancelled.

    In a function of its own: a frame that held the task would be in the traceback of the exception
    that the task ends with, and so make a reference cycle.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
