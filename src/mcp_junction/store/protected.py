"""SignedTable: base of tables whose rows carry a MAC, because a row alone is no right.
ProtectedStore: renews all that the store seals and signs. VaultUsers: who has which keys.

A MAC covers all fields of a row, under a key that is derived from the vault's for the purpose of
the table: write access to the database is not enough to add a row, change one or move it to another
table. Rows without a valid MAC are left out and reported; keys are left out without a word.

Each table declares its protected columns when it is made; a signed table does so by itself. When
the vault's key changes, everything in the list is sealed and signed anew, in pages, while other
processes read and write: each stale row is locked, read again and only its protected columns are
written. Rows that are not genuine are left as they are, and counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from mcp_junction.errors import NotFound, UnreadableRow, VaultError
from mcp_junction.store.database import (
    Database,
    Dialect,
    ProtectedRows,
    Query,
    Row,
    Rows,
    Script,
    quote,
)
from mcp_junction.store.table import StoreTable, Table, transaction

log = logging.getLogger("mcp_junction.store")

PAGE: Final = 200
"""Rows that are looked at in one transaction."""
ALIVE: Final = 20.0
"""Seconds without a heartbeat of the audit's writer after which a service counts as gone."""
_LOCK: Final = {Dialect.SQLITE: "", Dialect.POSTGRES: " FOR UPDATE SKIP LOCKED"}
"""SQLite has one writer at a time. A row that somebody is changing is renewed in the next pass."""
_SHOWN: Final = 20
_encode = msgspec.json.Encoder().encode


class StoreVault(Protocol):
    """What the store needs of a vault: sealing and signing."""

    def seal(self, plain: bytes, identity: str) -> bytes:
        """Make a value unreadable to those who only have the database."""
        ...

    def open(self, sealed: bytes, identity: str) -> bytes:
        """Raises VaultError when it was sealed for something else, or changed."""
        ...

    def is_sealed_by_current_key(self, sealed: bytes) -> bool:
        """Whether the key that seals now sealed this value."""
        ...

    def sign(self, message: bytes, purpose: str) -> bytes: ...

    def verify(self, message: bytes, mac: bytes, purpose: str) -> bool:
        """Whether any of the vault's keys made this MAC."""
        ...

    def is_by_current_key(self, mac: bytes) -> bool:
        """Whether the key that signs now made this MAC."""
        ...


# -- signed rows


class SignedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record whose last column is its MAC."""

    mac: bytes | None = None


S = TypeVar("S", bound=msgspec.Struct)
"""A SignedRecord, or another record whose last field is ``mac``."""


class SignedTable(StoreTable, Generic[S]):
    """A table of signed rows; its purpose is its name."""

    _table: Table[S]
    protected: tuple[str, ...] = ("mac",)
    """Its sealed columns, whose values are bound to the first column, and its MAC."""
    noun = "row"
    """What a row is called where one is missing."""
    consequence = "are ignored"
    """What becomes of rows without a valid MAC, for the log."""

    def __init__(self, database: Database, vault: StoreVault) -> None:
        super().__init__(database)
        self._vault = vault
        self._reported: set[str] = set()
        table = self._table
        database.protected.append(
            ProtectedRows(
                table.name,
                table.key,
                table.columns,
                self.protected,
                self._is_stale,
                self._renew_row,
            )
        )

    def sign(self, record: S) -> S:
        """Return the record, as it will be read from the store, with its MAC."""
        record = self._table.record(self._table.values(record))  # an integer becomes a float
        return msgspec.structs.replace(record, mac=self._make_mac(self._form(record)))

    def is_signed(self, record: S) -> bool:
        """Whether a record carries a valid MAC."""
        mac = record.mac  # type: ignore[attr-defined]  # its last field
        return self._verifies(self._form(record), mac)

    def genuine(self, rows: Rows) -> list[S]:
        """Make the records of all rows that can be read and carry a valid MAC."""
        return self._drop_unsigned(self._table.records(rows))

    def put(self, record: S) -> Query:
        """Make the statement that stores a record, signed, in place of one with the same key."""
        key = self._table.key
        changed = [quote(name) for name in self._table.columns if name not in key]
        changes = ", ".join(f"{name} = excluded.{name}" for name in changed)
        sql = f"{self._table.insert} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
        return Query(sql, self._table.values(self.sign(record)))

    def read_one(self, rest: str, *args: object) -> Script[S | None]:
        """Read one record inside a transaction; None when there is none with a valid MAC."""
        found = yield from self.read_many(rest, *args)
        return found[0] if found else None

    def get_one(self, row_id: str) -> Script[S]:
        """Read the record with this id inside a transaction. Raises NotFound."""
        rest = f"WHERE {self._table.key[0]} = ?"
        return self._check_found((yield from self.read_one(rest, row_id)), row_id)

    async def get(self, row_id: str) -> S:
        """Read the record with this id. Raises NotFound."""
        rest = f"WHERE {self._table.key[0]} = ?"
        return self._check_found(await self.read_first(rest, row_id), row_id)

    def _check_found(self, found: S | None, row_id: str) -> S:
        if found is None:
            raise NotFound(f"there is no {self.noun} {row_id!r}")
        return found

    def read_many(self, rest: str = "", *args: object) -> Script[list[S]]:
        """Read records with a valid MAC inside a transaction."""
        return self.genuine((yield self._table.select(rest, args)))

    async def read_all(self, rest: str = "", *args: object) -> list[S]:
        """Read records with a valid MAC; ``rest`` is what follows the table's name."""
        return await self._database.read(self._table.select(rest, args), self.genuine)

    async def read_first(self, rest: str, *args: object) -> S | None:
        """Read one record; None when there is none with a valid MAC."""
        return next(iter(await self.read_all(rest, *args)), None)

    def seal(self, plain: bytes, row_id: str) -> bytes:
        """Encrypt the value of a sealed column for its row."""
        return self._vault.seal(plain, f"{self._table.name}/{row_id}")

    def _open(self, sealed: bytes, row_id: str) -> bytes:
        """Decrypt the value of a sealed column. Raises VaultError."""
        return self._vault.open(sealed, f"{self._table.name}/{row_id}")

    def _form(self, record: S) -> bytes:
        """Encode all fields of a row but its MAC, for signing."""
        return _encode(msgspec.structs.astuple(msgspec.structs.replace(record, mac=None)))

    def _make_mac(self, form: bytes) -> bytes:
        return self._vault.sign(form, self._table.name)

    def _verifies(self, form: bytes, mac: object) -> bool:
        # SQLite keeps whatever it is given.
        return isinstance(mac, bytes) and self._vault.verify(form, mac, self._table.name)

    def _is_stale(self, row: Row) -> bool:
        mac = row[-1]
        return not isinstance(mac, bytes) or not self._vault.is_by_current_key(mac)

    def _renew_row(self, row: Row) -> Mapping[str, Any] | None:
        """Seal and sign a row again with the current key; None if it is not genuine."""
        found = self.genuine([row])
        try:
            signed = [self.sign(self._reseal(record)) for record in found]
        except VaultError:
            return None
        return {name: getattr(signed[0], name) for name in self.protected} if signed else None

    def _reseal(self, record: S) -> S:
        row_id = msgspec.structs.astuple(record)[0]
        sealed = {name: getattr(record, name) for name in self.protected if name != "mac"}
        anew = {
            name: self.seal(self._open(value, row_id), row_id)
            for name, value in sealed.items()
            if value is not None
        }
        return msgspec.structs.replace(record, **anew)

    def _drop_unsigned(self, records: list[S]) -> list[S]:
        good = [record for record in records if self.is_signed(record)]
        if len(good) != len(records):
            names = {str(msgspec.structs.astuple(r)[0]) for r in records if not self.is_signed(r)}
            if not names <= self._reported:
                self._reported |= names
                log.error(
                    "%d rows of the table %s carry no valid signature and %s: %s; if the"
                    " store's key was changed, give both: MCP_CREDENTIAL_KEY='NEW OLD'",
                    len(names),
                    self._table.name,
                    self.consequence,
                    ", ".join(sorted(names)[:_SHOWN]),
                )
        return good


def sealed_rows(table: Table[S], vault: StoreVault, identity: Callable[[S], str]) -> ProtectedRows:
    """Declare a table with a column ``sealed``; ``identity`` is what a row's value is bound to."""
    place = table.columns.index("sealed")

    def is_stale(row: Row) -> bool:
        value = row[place]
        return value is not None and not (
            isinstance(value, bytes) and vault.is_sealed_by_current_key(value)
        )

    def renew(row: Row) -> Mapping[str, Any] | None:
        try:
            bound = identity(table.record(row))
            return {"sealed": vault.seal(vault.open(row[place], bound), bound)}
        except (UnreadableRow, VaultError):
            return None

    return ProtectedRows(table.name, table.key, table.columns, ("sealed",), is_stale, renew)


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


class VaultUser(msgspec.Struct, frozen=True):
    """A running service and the ids of its keys, the one that seals first."""

    writer: str
    host: str
    pid: int
    keys: tuple[str, ...]


class VaultUsers(StoreTable):
    """The services that use this store now."""

    @transaction()
    def report(self, writer: str, keys: Sequence[str]) -> Script[None]:
        """Say which keys a service has; rows of services that have ended are removed."""
        yield Query(
            "INSERT INTO vault_users (writer, keys) VALUES (?, ?)"
            " ON CONFLICT (writer) DO UPDATE SET keys = excluded.keys",
            (writer, " ".join(keys)),
        )
        yield Query(
            "DELETE FROM vault_users WHERE writer NOT IN"
            " (SELECT writer FROM audit_writers WHERE closed_at IS NULL)"
        )

    async def alive(self) -> list[VaultUser]:
        """Read the services that run now, as far as the store knows."""
        return await self._read_rows(
            lambda row: VaultUser(row[0], row[1], int(row[2]), tuple(row[3].split())),
            "SELECT u.writer, w.host, w.pid, u.keys FROM vault_users u"
            " JOIN audit_writers w ON w.writer = u.writer"
            " WHERE w.closed_at IS NULL AND w.seen_at > ? ORDER BY w.host, w.pid",
            time.time() - ALIVE,
        )
