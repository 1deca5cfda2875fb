"""SqliteReaders: a few threads that run queries on one SQLite file. They never write.

ThreadJob is work for such a thread, and the coroutine that waits for its result.
"""

from __future__ import annotations

import asyncio
import math
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from mcp_junction.errors import StoreError, StoreUnavailable
from mcp_junction.store.database import Query, Rows


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


T = TypeVar("T")

_CLOSE: Final = 2.0


class _Reading(ThreadJob):
    """A query, and what makes a result of its rows."""

    __slots__ = ("is_begun", "make", "moved_at", "query")

    def __init__(self, query: Query, make: Callable[[Rows], Any]) -> None:
        super().__init__()
        self.query = query
        self.make = make
        self.is_begun = False
        self.moved_at = time.monotonic()


class SqliteReaders:
    """Reads in threads, each with a connection of its own."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], threads: int, patience: float
    ) -> None:
        self._connect = connect
        self._patience = patience
        self._jobs: queue.SimpleQueue[_Reading | None] = queue.SimpleQueue()
        self._taken_at = 0.0
        self._threads = [
            threading.Thread(target=self._run, name=f"store-reader-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    async def read(self, query: Query, make: Callable[[Rows], T]) -> T:
        """Raises StoreUnavailable."""
        job = _Reading(query, make)
        self._jobs.put(job)
        result: T = await job.wait(lambda: self._moved_at(job), self._patience)
        return result

    def close(self) -> None:
        """End the threads. Blocks for a moment; a thread that hangs is left behind."""
        for _ in self._threads:
            self._jobs.put(None)
        end = time.monotonic() + _CLOSE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _moved_at(self, job: _Reading) -> float:
        """When there was progress last: with the job itself, or with those before it."""
        return job.moved_at if job.is_begun else max(job.moved_at, self._taken_at)

    # -- in a thread

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while (job := self._jobs.get()) is not None:
            job.is_begun, job.moved_at = True, time.monotonic()
            self._taken_at = job.moved_at
            try:
                if not job.is_abandoned:
                    connection = connection or self._open()
                    self._read(connection, job)
            except sqlite3.Error as error:
                job.failure = StoreUnavailable(f"the store cannot be read: {error}")
                close_quietly(connection)
                connection = None
            except BaseException as error:  # noqa: BLE001 - it belongs to the one who asked
                job.failure = error
            job.settle_soon()
        close_quietly(connection)

    def _open(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _read(self, connection: sqlite3.Connection, job: _Reading) -> None:
        try:
            rows = fetch(connection, job.query.sql, job.query.args)
        except (UnicodeError, OverflowError) as error:
            raise StoreError(f"SQLite takes no such value: {type(error).__name__}") from None
        job.moved_at = math.inf  # from here on it only computes, and that has an end
        job.result = job.make(rows)


def fetch(connection: sqlite3.Connection, sql: str, args: Sequence[Any]) -> Rows:
    """The rows that a statement answers with.

    A text that is no UTF-8 would keep all rows from being read; it is handed out as bytes instead,
    so that only its own row is unreadable. To look at each text costs time: that begins with the
    first such text. Only a SELECT can be run again.
    """
    try:
        return connection.execute(sql, args).fetchall()
    except sqlite3.OperationalError as error:
        is_known = connection.text_factory is _text_or_bytes
        if is_known or "decode to UTF-8" not in str(error) or not sql.startswith("SELECT"):
            raise
    connection.text_factory = _text_or_bytes
    return connection.execute(sql, args).fetchall()


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def close_quietly(connection: sqlite3.Connection | None) -> None:
    """Close a connection, and ignore errors of that."""
    if connection is not None:
        try:
            connection.close()
        except sqlite3.Error:
            pass
