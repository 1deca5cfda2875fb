"""SqliteDatabase: one writer thread with group commit, a few reader threads, one file (WAL).

All waiting scripts share the next transaction and its commit. Each has its own savepoint, so that
one that fails is undone alone; a single script needs none. A batch with a durable script is synced
to the disk, others only to the operating system. What a caller has done after the commit is done in
the writer thread, too: passing it to another thread would take longer than most of it.

Errors of SQLite become StoreUnavailable, except two that callers can act on: a name that is taken
(AlreadyExists), and a value that SQLite does not store (StoreError).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from mcp_junction.errors import AlreadyExists, StoreError, StoreUnavailable, UsageError
from mcp_junction.store.database import (
    PATIENCE,
    Batch,
    Compute,
    Dialect,
    Load,
    ProtectedRows,
    Query,
    Rows,
    Script,
    Statement,
    insert,
    is_whole,
)
from mcp_junction.store.sqlite_reader import (
    SqliteReaders,
    ThreadJob,
    close_quietly,
    fetch,
    settle_all,
)

log = logging.getLogger("mcp_junction.store")
T = TypeVar("T")

BUSY_MS: Final = 2_000
_MIGRATION_MS: Final = 30_000
_MOST: Final = 512
_READERS: Final = 2
_PAGE: Final = 8_192
"""Bytes. A compromise: pages of the audit are long, an intent is short."""


class _Job(ThreadJob):
    """A script that waits to be run."""

    __slots__ = ("after", "durable", "given_at", "is_kept", "script")

    def __init__(
        self, script: Script[Any], durable: bool, after: Callable[[], object] | None
    ) -> None:
        super().__init__()
        self.script = script
        self.durable = durable
        self.after = after
        self.is_kept = False
        """Whether to keep what it wrote: it succeeded, and its caller still waited."""
        self.given_at = time.monotonic()


class SqliteDatabase:
    """A database in one file."""

    dialect = Dialect.SQLITE

    def __init__(
        self,
        path: Path,
        connection_class: type[sqlite3.Connection] = sqlite3.Connection,
        patience: float = PATIENCE,
    ) -> None:
        self._path = path
        self.protected: list[ProtectedRows] = []
        self._connection_class = connection_class
        self._patience = patience
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._readers = SqliteReaders(self._connect, _READERS, patience)
        self._moved_at = 0.0
        """When the writer last finished a statement."""
        self._syncing: bool | None = None
        self._writer = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        migration: Script[int],
        connection_class: type[sqlite3.Connection] = sqlite3.Connection,
        patience: float = PATIENCE,
    ) -> SqliteDatabase:
        """Open or create the file, and migrate its schema."""
        database = cls(path, connection_class, patience)
        await asyncio.to_thread(database._prepare, migration)
        database._readers.start()
        database._writer.start()
        return database

    # -- asking

    async def read(self, query: Query, make: Callable[[Rows], T]) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        return await self._readers.read(query, make)

    async def write(
        self,
        script: Script[T],
        *,
        durable: bool = True,
        after: Callable[[], object] | None = None,
    ) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        job = _Job(script, durable, after)
        self._jobs.put(job)
        result: T = await job.wait(lambda: max(job.given_at, self._moved_at), self._patience)
        return result

    async def close(self) -> None:
        """Run the waiting scripts, then close the file; do not wait for one that hangs."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            await asyncio.to_thread(self._writer.join, self._patience)
            await asyncio.to_thread(self._readers.close)

    # -- opening, in a thread

    def _prepare(self, migration: Script[int]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._path.chmod(0o600)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be opened: {error.strerror}") from None
        connection = None
        try:
            connection = self._connect(_MIGRATION_MS)
            connection.execute(f"PRAGMA page_size = {_PAGE}")  # heeded by a new file alone
            _use_wal(connection)
            connection.execute("BEGIN IMMEDIATE")
            self._drive(connection, migration)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise UsageError(f"{self._path} cannot be read: {error}") from None
        finally:
            close_quietly(connection)

    def _connect(self, busy_ms: int = BUSY_MS) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path,
            isolation_level=None,
            check_same_thread=False,
            factory=self._connection_class,
        )
        connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    # -- writing, in the writer thread

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        going = True
        while going:
            batch, going = self._next_batch()
            if not batch:
                break
            try:
                if connection is None:
                    connection = self._connect()
                    self._syncing = None
                self._commit(connection, batch)
                self._finish(batch)
            except Exception as error:  # the thread must survive: every later write needs it
                words = f"the store cannot be written: {error}"
                if not isinstance(error, sqlite3.Error):
                    log.exception("the writer failed")
                    words = f"the store failed: {type(error).__name__}"
                _refuse(batch, StoreUnavailable(words))
                close_quietly(connection)
                connection = None
                settle_all(batch)
        close_quietly(connection)

    def _finish(self, batch: list[_Job]) -> None:
        """Tell all that wait; those who have something done after the commit when it is done."""
        settle_all(job for job in batch if job.after is None)
        for job in batch:
            if job.after is not None:
                self._moved_at = time.monotonic()
                try:
                    if job.is_kept:
                        job.after()
                except Exception as error:  # noqa: BLE001 - it is its caller's
                    job.failure = error
                settle_all([job])

    def _next_batch(self) -> tuple[list[_Job], bool]:
        job = self._jobs.get()
        batch: list[_Job] = []
        while job is not None:
            batch.append(job)
            if len(batch) == _MOST:
                return batch, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _commit(self, connection: sqlite3.Connection, batch: list[_Job]) -> None:
        """Run a batch in one transaction. Few statements: each gives up the interpreter's lock."""
        self._moved_at = time.monotonic()
        durable = any(job.durable for job in batch)
        if durable is not self._syncing:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._syncing = durable
        if len(batch) == 1:
            alone = batch[0]
            self._try(connection, alone)
            if connection.in_transaction:
                connection.execute("COMMIT" if alone.is_kept else "ROLLBACK")
            return
        connection.execute("BEGIN IMMEDIATE")
        for job in batch:
            connection.execute("SAVEPOINT job")
            self._try(connection, job)
            if not job.is_kept:
                connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
        connection.execute("COMMIT")

    def _try(self, connection: sqlite3.Connection, job: _Job) -> None:
        """Run a script, unless it is abandoned; keep its error for its caller."""
        if job.is_abandoned:
            return
        try:
            job.result = self._drive(connection, job.script)
            job.is_kept = not job.is_abandoned
        except sqlite3.IntegrityError as error:
            # "UNIQUE constraint failed: servers.name" names the column without its value.
            taken = str(error).rpartition(": ")[2]
            job.failure = AlreadyExists(f"{taken} is taken or refers to nothing")
        except (UnicodeError, OverflowError, sqlite3.ProgrammingError) as error:
            job.failure = StoreError(f"SQLite takes no such value: {type(error).__name__}")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR:
                raise  # not of this statement: the disk, the lock or the file fails the batch
            job.failure = StoreUnavailable(f"the store cannot be written: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a script raises is its caller's
            job.failure = error

    def _drive(self, connection: sqlite3.Connection, script: Script[T]) -> T:
        """Run the statements of a script. Its transaction begins with its first statement."""
        rows: Rows = ()
        try:
            statement = next(script)
            while True:
                if not (connection.in_transaction or is_whole(statement)):
                    connection.execute("BEGIN IMMEDIATE")
                if isinstance(statement, Compute):
                    self._moved_at = math.inf  # it only computes, and that has an end
                rows = _run(connection, statement)
                self._moved_at = time.monotonic()
                statement = script.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result


def _run(connection: sqlite3.Connection, statement: Statement) -> Rows:
    match statement:
        case Query(sql=sql, args=args):
            return fetch(connection, sql, args)
        case Batch(sql=sql, rows=many):
            connection.executemany(sql, many)
        case Load(table=table, columns=columns, rows=many):
            connection.executemany(insert(table, columns), many)
        case Compute(work=work):
            return ((work(),),)
    return ()


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL; retry, since another process that opens the new file may hold the lock."""
    for attempt in range(50):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:
            if attempt == 49:
                raise
            time.sleep(0.02)


def _refuse(batch: list[_Job], failure: StoreUnavailable) -> None:
    for job in batch:
        job.script.close()
        job.failure = failure
