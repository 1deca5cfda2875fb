"""SqliteDatabase: one writer thread with group commit, a few reader threads, one file (WAL).

Everybody who is waiting to write shares the next transaction: each script has a savepoint of its
own, so that one that fails takes nobody with it, and one commit serves them all; one that is alone
needs none. A batch in which
somebody asked for durability is synced to the disk, the others only to the operating system.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from mcp_junction.errors import AlreadyExists, StoreError, StoreUnavailable, UsageError
from mcp_junction.store.database import (
    Batch,
    Compute,
    Dialect,
    Load,
    Query,
    Rows,
    Script,
    Statement,
    insert,
)

log = logging.getLogger("mcp_junction.store")
T = TypeVar("T")

BUSY_MS: Final = 2_000
_MIGRATION_MS: Final = 30_000
_MOST: Final = 512
_READERS: Final = 2
_PAGE: Final = 8_192
"""Bytes. Each is written three times on its way: the audit's pages are long, an intent is short."""


class _Job:
    """A script that waits for its turn, and who waits for it."""

    __slots__ = ("durable", "failure", "future", "loop", "result", "script")

    def __init__(self, script: Script[Any], durable: bool) -> None:
        self.script = script
        self.durable = durable
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.failure: BaseException | None = None

    def settle(self) -> None:
        """On the loop: tell who waits. They may have gone."""
        if self.future.done():
            return
        if self.failure is not None:
            self.future.set_exception(self.failure)
        else:
            self.future.set_result(self.result)


class SqliteDatabase:
    """A database in one file."""

    dialect = Dialect.SQLITE

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(_READERS, "store-reader", self._start_reader)
        self._reading: list[sqlite3.Connection] = []
        self._syncing: bool | None = None
        self._writer = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._closed = False

    @classmethod
    async def open(cls, path: Path, migration: Script[int]) -> SqliteDatabase:
        """Open or make the file, and bring its schema up to date."""
        database = cls(path)
        await asyncio.get_running_loop().run_in_executor(
            database._readers, database._prepare, migration
        )
        database._writer.start()
        return database

    # -- asking

    async def read(self, query: Query, make: Callable[[Rows], T]) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, query, make)

    async def write(self, script: Script[T], *, durable: bool = True) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        job = _Job(script, durable)
        self._jobs.put(job)
        result: T = await job.future
        return result

    async def close(self) -> None:
        """Finish what is waiting, then let the file go."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._writer.join)
            await loop.run_in_executor(None, self._readers.shutdown)
            for connection in self._reading:
                connection.close()

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
            _drive(connection, migration)
            connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise UsageError(f"{self._path} cannot be read: {error}") from None
        finally:
            if connection is not None:
                connection.close()

    def _connect(self, busy_ms: int = BUSY_MS) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA busy_timeout = {busy_ms}")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    # -- reading, in a reader thread

    def _start_reader(self) -> None:
        self._local.connection = None

    def _read(self, query: Query, make: Callable[[Rows], T]) -> T:
        try:
            connection = self._local.connection
            if connection is None:
                connection = self._local.connection = self._connect()
                connection.execute("PRAGMA query_only = ON")
                self._reading.append(connection)
            return make(connection.execute(query.sql, query.args).fetchall())
        except sqlite3.DatabaseError as error:
            raise StoreUnavailable(f"the store cannot be read: {error}") from None

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
            except sqlite3.Error as error:
                _refuse(batch, StoreUnavailable(f"the store cannot be written: {error}"))
                _drop(connection)
                connection = None
            except BaseException as error:  # the writer outlives whatever it meets
                log.exception("the writer failed")
                _refuse(batch, StoreUnavailable(f"the store failed: {type(error).__name__}"))
                _drop(connection)
                connection = None
            _settle(batch)
        _drop(connection)

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
        """Each statement lets the event loop in, and waits for its turn again: be sparing."""
        durable = any(job.durable for job in batch)
        if durable is not self._syncing:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._syncing = durable
        if len(batch) == 1:
            alone = batch[0]
            _try(connection, alone)
            if connection.in_transaction:
                connection.execute("COMMIT" if alone.failure is None else "ROLLBACK")
            return
        connection.execute("BEGIN IMMEDIATE")
        for job in batch:
            connection.execute("SAVEPOINT job")
            _try(connection, job)
            if job.failure is not None:
                connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
        connection.execute("COMMIT")


def _try(connection: sqlite3.Connection, job: _Job) -> None:
    """Run a script, unless nobody waits for it any more. What it fails with is its own."""
    if job.future.cancelled():
        return
    try:
        job.result = _drive(connection, job.script)
    except sqlite3.IntegrityError as error:
        job.failure = AlreadyExists(_constraint(error))
    except UnicodeError as error:
        job.failure = StoreError(f"SQLite takes no such value: {type(error).__name__}")
    except sqlite3.OperationalError:
        raise  # the disk, the lock or the file: nobody in this batch can be served
    except Exception as error:  # noqa: BLE001 - it belongs to the one who asked
        job.failure = error


def _drive(connection: sqlite3.Connection, script: Script[T]) -> T:
    """Play the database's part in a script. Its transaction begins with its first statement."""
    rows: Rows = ()
    try:
        statement = next(script)
        while True:
            if not (connection.in_transaction or _is_whole(statement)):
                connection.execute("BEGIN IMMEDIATE")
            match statement:
                case Query(sql=sql, args=args):
                    rows = connection.execute(sql, args).fetchall()
                case Batch(sql=sql, rows=many):
                    connection.executemany(sql, many)
                    rows = ()
                case Load(table=table, columns=columns, rows=many):
                    connection.executemany(insert(table, columns), many)
                    rows = ()
                case Compute(work=work):
                    rows = ((work(),),)
            statement = script.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


def _is_whole(statement: Statement) -> bool:
    """Whether a statement needs no transaction around it: it touches nothing, or is all."""
    return isinstance(statement, Compute) or (isinstance(statement, Query) and statement.only)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Two that open a new file at once may both try: the loser is told "locked" at once."""
    for attempt in range(50):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:
            if attempt == 49:
                raise
            time.sleep(0.02)


def _drop(connection: sqlite3.Connection | None) -> None:
    """Let a connection go, with whatever it had begun."""
    if connection is not None:
        try:
            connection.close()
        except sqlite3.Error:
            pass


def _refuse(batch: list[_Job], failure: StoreUnavailable) -> None:
    for job in batch:
        job.script.close()
        job.failure = failure


def _settle(batch: list[_Job]) -> None:
    """One wake-up for each loop that waits."""
    loops: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in batch:
        loops.setdefault(job.loop, []).append(job)
    for loop, jobs in loops.items():
        try:
            loop.call_soon_threadsafe(_settle_all, jobs)
        except RuntimeError:  # it has ended
            pass


def _settle_all(jobs: list[_Job]) -> None:
    for job in jobs:
        job.settle()


def _constraint(error: sqlite3.IntegrityError) -> str:
    """What is taken, without its value: "UNIQUE constraint failed: servers.name"."""
    return f"{str(error).rpartition(': ')[2]} is taken or refers to nothing"
