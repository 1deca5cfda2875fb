"""Database: the protocol of both backends; Script: a transaction for either; and migrations.

ProtectedRows says what a table seals or signs. Migrations are numbered SQL files, applied in order,
each once, by one process at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from enum import StrEnum
from importlib import resources
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from mcp_junction.errors import UsageError

T = TypeVar("T")
PATIENCE: Final = 4.0
"""Seconds without progress after which a database counts as down."""
Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]


class Dialect(StrEnum):
    SQLITE = "sqlite"
    POSTGRES = "postgres"


class Query(msgspec.Struct, frozen=True):
    """One statement; the script is sent its rows.

    ``only``: the script has no other statement, so that it needs no transaction around it.
    ``patience``: seconds that it may take, where that is more than others get (PostgreSQL only).
    """

    sql: str
    args: Sequence[Any] = ()
    only: bool = False
    patience: float = 0.0


class Batch(msgspec.Struct, frozen=True):
    """One statement, run once for each row of arguments."""

    sql: str
    rows: Rows


class Load(msgspec.Struct, frozen=True):
    """New rows of a table, inserted the fastest way."""

    table: str
    columns: Sequence[str]
    rows: Rows


class Compute(msgspec.Struct, frozen=True):
    """Work to do off the event loop; the script is sent its result, as one row."""

    work: Callable[[], Any]


Statement: TypeAlias = Query | Batch | Load | Compute
Script: TypeAlias = Generator[Statement, Rows, T]


class ProtectedRows(msgspec.Struct, frozen=True):
    """The protected columns of one table."""

    table: str
    key: tuple[str, ...]
    """The columns of its primary key."""
    columns: Sequence[str]
    """The columns that ``is_stale`` and ``renew`` are given."""
    protected: tuple[str, ...]
    """The columns that are sealed, or hold a MAC."""
    is_stale: Callable[[Row], bool]
    """Whether another key than the vault's current one protects a row."""
    renew: Callable[[Row], Mapping[str, Any] | None]
    """Returns the protected columns, sealed and signed by the current key; None for a row that is
    not genuine, or was sealed with a key that is not here."""


class Database(Protocol):
    """An open database. Every method may raise StoreUnavailable."""

    dialect: Dialect
    protected: list[ProtectedRows]
    """What the tables of this database have declared as sealed or signed."""

    async def read(self, query: Query, make: Callable[[Rows], T]) -> T:
        """Return ``make(rows)``; ``make`` is called off the event loop where that is possible."""
        ...

    async def write(
        self,
        script: Script[T],
        *,
        durable: bool = True,
        after: Callable[[], object] | None = None,
    ) -> T:
        """Run a script in one transaction, and return its result once that is committed.

        ``durable``: it survives a power failure. ``after`` is called off the event loop once the
        transaction is committed; whatever it raises is raised here. Raises AlreadyExists when a
        unique name is taken. Whatever the script raises rolls the transaction back.
        """
        ...

    async def close(self) -> None: ...


def is_whole(statement: Statement) -> bool:
    """Whether a statement needs no transaction: it computes, or is the only one."""
    return isinstance(statement, Compute) or (isinstance(statement, Query) and statement.only)


def placeholders(values: Sequence[object]) -> str:
    """Make the placeholders of an IN list; NULL, which matches nothing, for an empty one."""
    return ", ".join("?" * len(values)) or "NULL"


def make_where(*tests: tuple[str, Sequence[object]] | None) -> tuple[str, list[object]]:
    """Make a WHERE clause of all these tests, and its arguments; a test that is None is left out.

    Without any test it finds all rows.
    """
    given = [test for test in tests if test is not None]
    clause = " AND ".join(sql for sql, _ in given) or "TRUE"
    return f"WHERE {clause}", [arg for _, args in given for arg in args]


def insert(table: str, columns: Sequence[str]) -> str:
    """Make an INSERT statement with a placeholder for each column."""
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(map(quote, columns))}) VALUES ({marks})"


def quote(column: str) -> str:
    """Quote the name of a column that SQL reserves."""
    return f'"{column}"' if column in _RESERVED else column


_RESERVED: Final = frozenset({"when"})


def bump(topic: str, by: int = 1) -> Query:
    """Increment a topic's counter, and lock it until the transaction ends."""
    return Query(
        "INSERT INTO counters (topic, value) VALUES (?, ?) ON CONFLICT (topic)"
        " DO UPDATE SET value = counters.value + excluded.value RETURNING value",
        (topic, by),
    )


def begin_topic(topic: str) -> Query:
    """Begin to count a topic at 1; no rows when that was done before."""
    return Query(
        "INSERT INTO counters (topic, value) VALUES (?, 1) ON CONFLICT DO NOTHING RETURNING value",
        (topic,),
    )


# PostgreSQL: an advisory lock that nobody else uses. SQLite needs none: it has one write lock.
_LOCK: Final = 0x6A756E63


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """Read the migrations that this program has, in order."""
    found = []
    for file in resources.files("mcp_junction.store").joinpath("migrations").iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append(Migration(int(number), name, file.read_text("utf-8")))
    return sorted(found)


def in_dialect(sql: str, dialect: Dialect) -> str:
    """Select the lines of a migration that are for one dialect."""
    kept = []
    for line in sql.splitlines():
        text, marked, only = line.partition("-- only ")
        if not marked:
            kept.append(text.partition("--")[0].rstrip())
        elif only.strip() == dialect:
            kept.append(text.rstrip())
    return "\n".join(line for line in kept if line) + "\n"


def migrate(dialect: Dialect) -> Script[int]:
    """Bring the schema up to date, and return its number."""
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
            for sql in in_dialect(migration.sql, dialect).split(";\n"):
                if sql.strip():
                    yield Query(sql.strip())
            yield Query(
                "INSERT INTO migrations (number, name, applied_at) VALUES (?, ?, ?)",
                (migration.number, migration.name, time.time()),
            )
    return latest
