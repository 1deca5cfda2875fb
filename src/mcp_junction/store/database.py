"""Database: what a backend is; Script: a transaction that knows no backend; and migrations.

Migrations are numbered SQL files, applied in order, each once, by one process at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from importlib import resources
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from mcp_junction.errors import UsageError

T = TypeVar("T")
PATIENCE: Final = 4.0
"""Seconds without progress after which a database is down: callers know within five."""
Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]


class Dialect(StrEnum):
    SQLITE = "sqlite"
    POSTGRES = "postgres"


class Query(msgspec.Struct, frozen=True):
    """One statement; answered with its rows. After the ``only`` one of a script comes none."""

    sql: str
    args: Sequence[Any] = ()
    only: bool = False


class Batch(msgspec.Struct, frozen=True):
    """One statement, once for each row of arguments; answered with nothing."""

    sql: str
    rows: Rows


class Load(msgspec.Struct, frozen=True):
    """Rows that are certain to be new, the fastest way in; answered with nothing."""

    table: str
    columns: Sequence[str]
    rows: Rows


class Compute(msgspec.Struct, frozen=True):
    """Work that must not be done on the event loop; answered with what it gives, as one row."""

    work: Callable[[], Any]


Statement: TypeAlias = Query | Batch | Load | Compute
Script: TypeAlias = Generator[Statement, Rows, T]


class Database(Protocol):
    """One opened database. Every method may raise StoreUnavailable."""

    dialect: Dialect

    async def read(self, query: Query, make: Callable[[Rows], T]) -> T:
        """What ``make`` makes of the rows; it is called off the loop where that is possible."""
        ...

    async def write(self, script: Script[T], *, durable: bool = True) -> T:
        """Run a script in one transaction; what it returns, once that is committed.

        ``durable`` means that not even a power failure takes it back. Raises AlreadyExists when a
        unique name is taken; whatever the script raises undoes it.
        """
        ...

    async def close(self) -> None: ...


def insert(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"


def bump(topic: str, by: int = 1) -> Query:
    """Count a topic up, and hold it until the transaction ends: nobody else's number is between."""
    return Query(
        "INSERT INTO counters (topic, value) VALUES (?, ?) ON CONFLICT (topic)"
        " DO UPDATE SET value = counters.value + excluded.value RETURNING value",
        (topic, by),
    )


def statements(sql: str) -> list[str]:
    """The single statements of a file."""
    return [part.strip() for part in sql.split(";\n") if part.strip()]


# PostgreSQL: any number that is only ours. SQLite needs none: its write lock is the guard.
_LOCK: Final = 0x6A756E63


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All that this program knows, in order."""
    found = []
    for file in resources.files("mcp_junction.store").joinpath("migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    return sorted(found)


def in_dialect(sql: str, dialect: Dialect) -> str:
    """The lines of a migration that are meant for one dialect."""
    kept = []
    for line in sql.splitlines():
        text, marked, only = line.partition("-- only ")
        if not marked:
            kept.append(text.partition("--")[0].rstrip())
        elif only.strip() == dialect:
            kept.append(text.rstrip())
    return "\n".join(line for line in kept if line) + "\n"


def migrate(dialect: Dialect) -> Script[int]:
    """Bring the schema up to date; the number it then has."""
    if dialect is Dialect.POSTGRES:
        yield Query("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
    yield Query(
        "CREATE TABLE IF NOT EXISTS migrations"
        " (number BIGINT PRIMARY KEY, name TEXT NOT NULL, applied_at DOUBLE PRECISION NOT NULL)"
    )
    rows = yield Query("SELECT number FROM migrations")
    applied = {int(row[0]) for row in rows}
    known = migrations()
    latest = known[-1].number
    if applied and max(applied) > latest:
        raise UsageError(
            f"the store has schema {max(applied)}, this program knows {latest}:"
            " it was used by a newer version; upgrade mcp-junction"
        )
    for migration in known:
        if migration.number not in applied:
            for sql in statements(in_dialect(migration.sql, dialect)):
                yield Query(sql)
            yield Query(
                "INSERT INTO migrations (number, name, applied_at) VALUES (?, ?, ?)",
                (migration.number, migration.name, time.time()),
            )
    return latest
