"""PostgresDatabase: a pool of asyncpg connections. Imported only when a store's URL asks for it.

Every write is durable: rows that a crashed server forgot would look as if somebody had removed
them. A read is retried once when its connection turns out to be dead; a write never is, because it
may have been executed.

Errors of PostgreSQL, asyncpg or the network become StoreUnavailable, except two that callers can
act on: a name that is taken (AlreadyExists), and a value that PostgreSQL does not store
(StoreError). A connection whose statement is not answered in time is terminated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, TypeVar

import asyncpg

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
    is_whole,
)

T = TypeVar("T")

CONNECTIONS: Final = 8
LOCK_MS: Final = 2_000
_ACQUIRE: Final = 2.0
_CONNECT: Final = 2.0
_CLOSE: Final = 5.0
_GRACE: Final = 0.1
_FEW: Final = 200
"""At most so many rows are converted on the event loop; more are converted in a thread."""
_MIGRATION: Final = 60.0
"""Seconds for each statement of a migration: another process may be migrating, too."""
_FAILED: Final = (
    OSError,
    EOFError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
_REFUSED: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    ValueError,
)


class PostgresDatabase:
    """A database behind a URL."""

    dialect = Dialect.POSTGRES

    def __init__(self, pool: Any, patience: float = PATIENCE) -> None:
        self._pool = pool
        self.protected: list[ProtectedRows] = []
        self._patience = patience

    @classmethod
    async def open(
        cls,
        url: str,
        migration: Script[int],
        connection_class: type[Any] = asyncpg.Connection,
        patience: float = PATIENCE,
    ) -> PostgresDatabase:
        """Connect, and migrate the schema."""
        try:
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=CONNECTIONS,
                timeout=_CONNECT,
                connection_class=connection_class,
                server_settings={"lock_timeout": f"{LOCK_MS}"},
            )
        except _REFUSED as error:
            raise UsageError(
                f"PostgreSQL refuses the store's URL: {type(error).__name__}"
            ) from None
        except _FAILED as error:
            raise _unavailable(error) from None
        database = cls(pool, patience)
        try:
            await database._write(migration, _MIGRATION)
        except BaseException:  # also when cancelled: nobody else would close the pool
            pool.terminate()
            raise
        return database

    async def read(self, query: Query, make: Callable[[Rows], T]) -> T:
        with _as_store_errors():
            async with asyncio.timeout(self._patience):
                try:
                    rows = await self._fetch(query)
                except TimeoutError:
                    raise
                except _FAILED:
                    rows = await self._fetch(query)
        return make(rows) if len(rows) < _FEW else await asyncio.to_thread(make, rows)

    async def _fetch(self, query: Query) -> Rows:
        async with self._pool.acquire(timeout=_ACQUIRE) as connection:
            with _terminate_on_timeout(connection):
                rows: Rows = await connection.fetch(_numbered(query.sql), *query.args)
                return rows

    async def write(
        self,
        script: Script[T],
        *,
        durable: bool = True,
        after: Callable[[], object] | None = None,
    ) -> T:
        result = await self._write(script, self._patience)
        if after is not None:
            await asyncio.to_thread(after)
        return result

    async def _write(self, script: Script[T], patience: float) -> T:
        try:
            with _as_store_errors():
                async with (
                    asyncio.timeout(patience) as limit,
                    self._pool.acquire(timeout=_ACQUIRE) as connection,
                ):
                    with _terminate_on_timeout(connection):
                        return await _transact(connection, script, _Progress(limit, patience))
        finally:
            script.close()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


class _Progress:
    """Extends a timeout with each statement, and suspends it while we compute."""

    def __init__(self, limit: asyncio.Timeout, patience: float) -> None:
        self._limit = limit
        self._patience = patience

    def extend(self, patience: float = 0.0) -> None:
        if not self._limit.expired():
            seconds = max(patience, self._patience)
            self._limit.reschedule(asyncio.get_running_loop().time() + seconds)

    def suspend(self) -> None:
        if not self._limit.expired():
            self._limit.reschedule(None)

    @contextmanager
    def ending(self, connection: Any) -> Iterator[None]:
        """Terminate a connection when the time is over: asyncpg does not stop to wait for a server
        that takes no more of a large batch."""
        end = self._limit.when()
        loop = asyncio.get_running_loop()
        timer = None if end is None else loop.call_at(end + _GRACE, connection.terminate)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()


@contextmanager
def _as_store_errors() -> Iterator[None]:
    """Turn errors of the driver into errors of the store."""
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        what = f"{error.table_name}: {error.constraint_name}"
        raise AlreadyExists(f"{what} is taken or refers to nothing") from None
    except asyncpg.DataError as error:
        raise StoreError(f"PostgreSQL takes no such value: {type(error).__name__}") from None
    except _FAILED as error:
        raise _unavailable(error) from None


@contextmanager
def _terminate_on_timeout(connection: Any) -> Iterator[None]:
    """Terminate a connection when waiting for its statement is given up.

    The pool would first ask the server to cancel the statement, and wait for its answer.
    """
    try:
        yield
    except (TimeoutError, asyncio.CancelledError):
        connection.terminate()
        raise


async def _transact(connection: Any, script: Script[T], progress: _Progress) -> T:
    transaction = connection.transaction()
    try:
        result = await _drive(connection, script, transaction, progress)
    except (TimeoutError, asyncio.CancelledError):
        raise  # the connection is terminated, and the transaction with it
    except Exception:  # whatever a script raises undoes it
        if not connection.is_closed() and connection.is_in_transaction():
            await transaction.rollback()
        raise
    if connection.is_in_transaction():
        await transaction.commit()
    return result


async def _drive(connection: Any, script: Script[T], transaction: Any, progress: _Progress) -> T:
    """Run the statements of a script; the transaction begins with the first that needs one."""
    try:
        statement = next(script)
        while True:
            if not (connection.is_in_transaction() or is_whole(statement)):
                await transaction.start()
            rows = await _run(connection, statement, progress)
            progress.extend()
            statement = script.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


async def _run(connection: Any, statement: Statement, progress: _Progress) -> Rows:
    match statement:
        case Query(sql=sql, args=args, patience=patience):
            if patience:
                progress.extend(patience)
            rows: Rows = await connection.fetch(_numbered(sql), *args)
            return rows
        case Batch(sql=sql, rows=many):
            with progress.ending(connection):
                await connection.executemany(_numbered(sql), many)
        case Load(table=table, columns=columns, rows=many):
            await connection.copy_records_to_table(table, columns=columns, records=many)
        case Compute(work=work):
            progress.suspend()
            return ((await asyncio.to_thread(work),),)
    return ()


@lru_cache(maxsize=512)
def _numbered(sql: str) -> str:
    """Replace ``?`` by PostgreSQL's placeholders. No statement has a question mark otherwise."""
    parts = sql.split("?")
    return parts[0] + "".join(f"${number}{part}" for number, part in enumerate(parts[1:], 1))


def _unavailable(error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"PostgreSQL does not serve us: {type(error).__name__}")
