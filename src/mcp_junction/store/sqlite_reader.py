"""SqliteReaders: a few threads that run queries on one SQLite file. They never write.

The threads are daemons: one that hangs in a read of a dead disk does not keep the program from
ending. Who waits for it is told that the store is unavailable.
"""

from __future__ import annotations

import math
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from mcp_junction.errors import StoreError, StoreUnavailable
from mcp_junction.store.database import Query, Rows
from mcp_junction.store.waiting import ThreadJob

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
