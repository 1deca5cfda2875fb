"""SqliteReaders: threads that run queries on one SQLite file, and never write.

ThreadJob is a job for a database thread, with the future that waits for its result.
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
    """A job for a thread, and the future that waits for it."""

    __slots__ = ("_future", "_loop", "failure", "result")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self.result: Any = None
        self.failure: BaseException | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether its caller was cancelled or has given up."""
        return self._future.cancelled()

    async def wait(self, moved_at: Callable[[], float], patience: float) -> Any:
        """Wait for the result for as long as there is progress.

        ``moved_at`` returns the monotonic time of the last progress. Raises the job's failure, or
        StoreUnavailable.
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
                future.exception()  # cancelled at this moment: mark it as retrieved
        return future.result()

    def _settle(self) -> None:
        if self._future.done():
            return  # its caller has given up
        if self.failure is not None:
            self._future.set_exception(self.failure)
        else:
            self._future.set_result(self.result)


def settle_all(jobs: Iterable[ThreadJob]) -> None:
    """Pass results and failures to the waiting futures, waking each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[ThreadJob]] = {}
    for job in jobs:
        loops.setdefault(job._loop, []).append(job)
    for loop, those in loops.items():
        try:
            loop.call_soon_threadsafe(_settle_each, those)
        except RuntimeError:  # the loop is closed
            pass


def _settle_each(jobs: list[ThreadJob]) -> None:
    for job in jobs:
        job._settle()


T = TypeVar("T")

_CLOSE: Final = 2.0


class _Reading(ThreadJob):
    """A query, and the function that makes a result of its rows."""

    __slots__ = ("is_begun", "make", "moved_at", "query")

    def __init__(self, query: Query, make: Callable[[Rows], Any]) -> None:
        super().__init__()
        self.query = query
        self.make = make
        self.is_begun = False
        self.moved_at = time.monotonic()


class SqliteReaders:
    """Runs queries in threads, each with its own connection."""

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
        """Run a query in one of the threads. Raises StoreUnavailable."""
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
        """When there was progress last: of the job itself, or of those before it."""
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
            except Exception as error:  # noqa: BLE001 - whatever ``make`` raises is the caller's
                job.failure = error
            settle_all([job])
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
    """Run a statement and return its rows.

    A text that is not UTF-8 is returned as bytes, so that only its own row is unreadable. Checking
    each text costs time, so it begins with the first such text. Only a SELECT can be run again.
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
    """Close a connection, ignoring errors."""
    if connection is not None:
        try:
            connection.close()
        except sqlite3.Error:
            pass
