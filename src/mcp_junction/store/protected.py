"""ProtectedRows: the one list of what the store seals and signs, and how it is renewed.

Each table declares its protected columns when it is made; a signed table does so by itself. When
the vault's key changes, everything in the list is sealed and signed anew, in pages, while other
processes read and write: each stale row is locked, read again and only its protected columns are
written. Rows that are not genuine are left as they are, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from mcp_junction.errors import UnreadableRow, VaultError
from mcp_junction.store.database import Database, Dialect, ProtectedRows, Query, Row, Script, quote
from mcp_junction.store.table import Table

if TYPE_CHECKING:
    from mcp_junction.store.servers import Sealer

R = TypeVar("R", bound=msgspec.Struct)

PAGE: Final = 200
"""Rows that are looked at in one transaction."""
_LOCK: Final = {Dialect.SQLITE: "", Dialect.POSTGRES: " FOR UPDATE SKIP LOCKED"}
"""SQLite has one writer at a time. A row that somebody is changing is renewed in the next pass."""


def sealed_rows(
    table: Table[R], sealer: Sealer, identity: Callable[[R], str], column: str = "sealed"
) -> ProtectedRows:
    """Declare a table with one sealed column; ``identity`` is what a row's value is bound to."""
    place = table.columns.index(column)

    def is_stale(row: Row) -> bool:
        value = row[place]
        return value is not None and not (
            isinstance(value, bytes) and sealer.is_sealed_by_current_key(value)
        )

    def renew(row: Row) -> Mapping[str, Any] | None:
        try:
            bound = identity(table.record(row))
            return {column: sealer.seal(sealer.open(row[place], bound), bound)}
        except (UnreadableRow, VaultError):
            return None

    return ProtectedRows(table.name, table.key, table.columns, (column,), is_stale, renew)


class RenewedRows(msgspec.Struct):
    """What became of the rows of a table."""

    table: str
    seen: int = 0
    renewed: int = 0
    stale: int = 0
    """Rows of an older key that were not renewed: somebody was changing them, or only counted."""
    invalid: int = 0
    """Rows that are not genuine, or were sealed with a key that is not here."""


class ProtectedStore:
    """Renews and counts everything that a store seals and signs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def tables(self) -> list[ProtectedRows]:
        """Every table with protected columns."""
        return self._database.protected

    async def renew(self) -> list[RenewedRows]:
        """Seal and sign anew, in pages, what the current key did not."""
        return [await self._walk(rows, renews=True) for rows in self.tables]

    async def count(self) -> list[RenewedRows]:
        """Count the rows of each table, and those that an older key protects."""
        return [await self._walk(rows, renews=False) for rows in self.tables]

    async def _walk(self, rows: ProtectedRows, *, renews: bool) -> RenewedRows:
        done = RenewedRows(rows.table)
        after: Sequence[Any] | None = None
        while True:
            page = self._page(rows, after, done, renews)
            after = await self._database.write(page, durable=renews)
            if after is None:
                return done

    def _page(
        self, rows: ProtectedRows, after: Sequence[Any] | None, done: RenewedRows, renews: bool
    ) -> Script[Sequence[Any] | None]:
        """Go through one page; return the key of its last row, or None after the last page."""
        key, columns = ", ".join(map(quote, rows.key)), ", ".join(map(quote, rows.columns))
        size = len(rows.key)
        where = f" WHERE ({key}) > ({', '.join('?' * size)})" if after is not None else ""
        sql = f"SELECT {key}, {columns} FROM {rows.table}{where} ORDER BY {key} LIMIT {PAGE}"
        found = yield Query(sql, after or ())
        for row in found:
            if rows.is_stale(row[size:]):
                yield from self._renew_row(rows, row[:size], done, renews)
        done.seen += len(found)
        return list(found[-1][:size]) if len(found) == PAGE else None

    def _renew_row(
        self, rows: ProtectedRows, key: Row, done: RenewedRows, renews: bool
    ) -> Script[None]:
        columns = ", ".join(map(quote, rows.columns))
        which = " AND ".join(f"{quote(column)} = ?" for column in rows.key)
        lock = _LOCK[self._database.dialect] if renews else ""
        found = yield Query(f"SELECT {columns} FROM {rows.table} WHERE {which}{lock}", key)
        if not found:
            done.stale += 1
            return
        values = rows.renew(found[0]) if rows.is_stale(found[0]) else {}
        if values is None:
            done.invalid += 1
        elif not renews:
            done.stale += 1
        elif values:
            assert values.keys() <= set(rows.protected), "nothing else is written"
            changes = ", ".join(f"{column} = ?" for column in values)
            sql = f"UPDATE {rows.table} SET {changes} WHERE {which}"
            yield Query(sql, (*values.values(), *key))
            done.renewed += 1
