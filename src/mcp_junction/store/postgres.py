"""PostgresDatabase: a pool of asyncpg connections. Imported only when a store's URL asks for it.

Every write is durable here: the server may crash while we live, and rows that it forgot would look
like rows that somebody took out. Reads are tried once more when their connection turns out to be
dead; writes never are, because nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final, TypeVar

import asyncpg

from mcp_junction.errors import AlreadyExists, StoreError, StoreUnavailable, UsageError
from mcp_junction.store.database import Batch, Compute, Dialect, Load, Query, Rows, Script

T = TypeVar("T")

CONNECTIONS: Final = 8
LOCK_MS: Final = 2_000
_ACQUIRE: Final = 2.0
_COMMAND: Final = 5.0
_CLOSE: Final = 5.0
_GONE: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,  # disk full, too many connections
    asyncpg.OperatorInterventionError,  # shut down, cancelled, not yet up
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
)
_REFUSED: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    ValueError,
)


class PostgresDatabase:
    """A database behind a URL."""

    dialect = Dialect.POSTGRES

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @classmethod
    async def open(cls, url: str, migration: Script[int]) -> PostgresDatabase:
        """Connect, and bring the schema up to date."""
        try:
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=CONNECTIONS,
                timeout=_COMMAND,
                command_timeout=_COMMAND,
                server_settings={"lock_timeout": f"{LOCK_MS}"},
            )
        except _REFUSED as error:
            raise UsageError(
                f"PostgreSQL refuses the store's URL: {type(error).__name__}"
            ) from None
        except _GONE as error:
            raise _unavailable(error) from None
        database = cls(pool)
        try:
            await database.write(migration)
        except BaseException:
            pool.terminate()
            raise
        return database

    async def read(self, query: Query, make: Callable[[Rows], T]) -> T:
        try:
            return make(await self._fetch(query))
        except StoreUnavailable:
            return make(await self._fetch(query))

    async def _fetch(self, query: Query) -> Rows:
        async with self._connection() as connection:
            rows: Rows = await connection.fetch(_numbered(query.sql), *query.args)
            return rows

    async def write(self, script: Script[T], *, durable: bool = True) -> T:
        try:
            async with self._connection() as connection, connection.transaction():
                return await _drive(connection, script)
        finally:
            script.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        try:
            async with self._pool.acquire(timeout=_ACQUIRE) as connection:
                yield connection
        except asyncpg.IntegrityConstraintViolationError as error:
            what = f"{error.table_name}: {error.constraint_name}"
            raise AlreadyExists(f"{what} is taken or refers to nothing") from None
        except asyncpg.DataError as error:
            raise StoreError(f"PostgreSQL takes no such value: {type(error).__name__}") from None
        except _GONE as error:
            raise _unavailable(error) from None

    async def close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


async def _drive(connection: Any, script: Script[T]) -> T:
    """Play the database's part in a script."""
    rows: Rows = ()
    try:
        statement = next(script)
        while True:
            match statement:
                case Query(sql=sql, args=args):
                    rows = await connection.fetch(_numbered(sql), *args)
                case Batch(sql=sql, rows=many):
                    await connection.executemany(_numbered(sql), many)
                    rows = ()
                case Load(table=table, columns=columns, rows=many):
                    await connection.copy_records_to_table(table, columns=columns, records=many)
                    rows = ()
                case Compute(work=work):
                    rows = ((await asyncio.to_thread(work),),)
            statement = script.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


@lru_cache(maxsize=512)
def _numbered(sql: str) -> str:
    """Our placeholders as PostgreSQL's. No statement of ours holds a question mark otherwise."""
    parts = sql.split("?")
    return parts[0] + "".join(f"${number}{part}" for number, part in enumerate(parts[1:], 1))


def _unavailable(error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"PostgreSQL does not serve us: {type(error).__name__}")
