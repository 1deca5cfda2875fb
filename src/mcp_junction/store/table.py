"""Table: converts records to rows and back; StoreTable: the base of the store's tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import msgspec

from mcp_junction.errors import UnreadableRow
from mcp_junction.store.database import Database, Query, Row, Rows, Script, insert, quote

log = logging.getLogger("mcp_junction.store")

_MOST: Final = 10_000
_WIDEST: Final = 64


class UnreadableRows:
    """The damaged rows that were met so far."""

    def __init__(self) -> None:
        self._rows: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forget all rows, as when another database is opened."""
        self._rows.clear()

    def note(self, table: str, row: Row, error: Exception) -> None:
        """Log a damaged row, once."""
        key = (table, row_id(row))
        if key not in self._rows and len(self._rows) < _MOST:
            self._rows.add(key)
            words = (
                "a row of the table %s cannot be read and is left out: id %s (%s);"
                " restore the store from a backup, or remove the row"
            )
            log.error(words, table, key[1], type(error).__name__)

    def forget(self, table: str, row: Row) -> None:
        """Forget a row that could be read now."""
        if self._rows:
            self._rows.discard((table, row_id(row)))


def row_id(row: Row) -> str:
    """Name a row in a message: by its first column, which never holds a secret."""
    return ascii(row[0])[:_WIDEST]


UNREADABLE: Final = UnreadableRows()


R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")
P = ParamSpec("P")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Table(Generic[R]):
    """A table and its record type. ``json`` columns hold text; ``flags`` may be read as 0 and 1."""

    def __init__(
        self,
        name: str,
        record: type[R],
        json: Collection[str] = (),
        flags: Collection[str] = (),
        salvage: Callable[[Row], R] | None = None,
        key: tuple[str, ...] = (),
    ) -> None:
        """``salvage`` makes a record of what is left of a damaged row, or raises UnreadableRow.

        ``key`` is the primary key; the first column, if it is not given.
        """
        self.name = name
        self.columns: Sequence[str] = record.__struct_fields__
        self.key = key or (self.columns[0],)
        self.insert = insert(name, self.columns)
        self.selected = ", ".join(f"{name}.{quote(column)}" for column in self.columns)
        self._record = record
        # The first use of a type leaves garbage for the collector: now, and not behind a call.
        msgspec.json.Decoder(record)
        self._json = frozenset(json)
        self._salvage = salvage
        self._encoded = [self.columns.index(column) for column in json]
        self._decoders = [
            (index, _decode if column in self._json else bool)
            for index, column in enumerate(self.columns)
            if column in self._json or column in flags
        ]

    def select(self, rest: str = "", args: Sequence[Any] = ()) -> Query:
        """Make a query for whole rows; ``rest`` is what follows the table's name."""
        return Query(f"SELECT {self.selected} FROM {self.name} {rest}", args)

    def add(self, record: R, rest: str = "") -> Query:
        """Make the statement that inserts a record; ``rest`` is what follows its values."""
        return Query(self.insert + rest, self.values(record))

    def record(self, row: Row) -> R:
        """Make the record of a row. Raises UnreadableRow."""
        values = list(row)
        try:
            for index, decode in self._decoders:
                if values[index] is not None:
                    values[index] = decode(values[index])
            found = msgspec.convert(dict(zip(self.columns, values, strict=True)), self._record)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            UNREADABLE.note(self.name, row, error)
            words = f"the row {row_id(row)} of the table {self.name} cannot be read"
            raise UnreadableRow(words) from None
        UNREADABLE.forget(self.name, row)
        return found

    def records(self, rows: Rows) -> list[R]:
        """Make the records of all rows that can be read."""
        found = []
        for row in rows:
            try:
                found.append(self.record(row))
            except UnreadableRow:  # it is reported
                if self._salvage is not None:
                    with suppress(UnreadableRow):
                        found.append(self._salvage(row))
        return found

    def first(self, rows: Rows) -> R | None:
        """Make the record of the first row, if there is one. Raises UnreadableRow."""
        return self.record(rows[0]) if rows else None

    def values(self, record: R) -> list[Any]:
        """Convert a record to the arguments of an INSERT."""
        values = list(msgspec.structs.astuple(record))
        for index in self._encoded:
            values[index] = _encode(values[index]).decode()
        return values

    def value(self, column: str, value: Any) -> Any:
        """Convert one value to what its column holds."""
        return _encode(value).decode() if column in self._json else value

    def update(self, changes: Mapping[str, Any], rest: str, *args: Any) -> Query:
        """Make the statement that changes columns; ``rest`` is what follows their values."""
        clause = ", ".join(f"{quote(column)} = ?" for column in changes)
        values = [self.value(column, value) for column, value in changes.items()]
        return Query(f"UPDATE {self.name} SET {clause} {rest}", (*values, *args))


class StoreTable:
    """Base of the store's tables: holds the database for the methods marked ``transaction``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def _read(self, table: Table[R], rest: str = "", *args: Any) -> list[R]:
        """Read records; ``rest`` is what follows the table's name in the query."""
        return await self._database.read(table.select(rest, args), table.records)

    async def _read_first(self, table: Table[R], rest: str = "", *args: Any) -> R | None:
        """Read the first record that a query finds. Raises UnreadableRow."""
        return await self._database.read(table.select(rest, args), table.first)

    async def _read_rows(self, convert: Callable[[Row], T], sql: str, *args: Any) -> list[T]:
        """Read the rows that a query finds, each converted: those that are no whole records."""
        return await self._database.read(Query(sql, args), lambda rows: [*map(convert, rows)])

    async def _read_number(self, sql: str, *args: Any) -> int | None:
        """Read the one number that a query finds; None for NULL, or when there is no row."""
        rows = await self._database.read(Query(sql, args), list)
        return None if not rows or rows[0][0] is None else int(rows[0][0])


S = TypeVar("S", bound=StoreTable)


def transaction(
    *, durable: bool = True
) -> Callable[
    [Callable[Concatenate[S, P], Script[T]]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
]:
    """Decorate a method that is a Script: calling it runs the script in one transaction."""

    def decorate(
        script: Callable[Concatenate[S, P], Script[T]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        @wraps(script)
        async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._database.write(script(self, *args, **kwargs), durable=durable)

        return run

    return decorate
