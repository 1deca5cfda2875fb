"""Database: what a backend is; and Script, a transaction that knows no backend.

A script is a generator: it yields statements and is sent their rows, so the same script runs in the
writer thread of SQLite and, awaited, on a connection of PostgreSQL. It may run only once, and must
not touch anything but its own values. Placeholders are ``?`` in both dialects.

Whatever goes wrong with a database leaves its backend as StoreUnavailable. One that does not answer
is no different: nobody waits for more than ``PATIENCE`` seconds in which it makes no progress.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

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
