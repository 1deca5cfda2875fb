"""SignedTable: base of the store's tables whose rows carry a MAC, because a row alone is no right.

The MAC covers all fields of a row, under a key that is derived from the vault's for the purpose of
the table: write access to the database is not enough to add a row, change one or move it to another
table. Rows without a valid MAC are left out and reported. Keys have a table of their own kind
(``keys.py``), which knows rows from before there were MACs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from mcp_junction.errors import VaultError
from mcp_junction.store.database import (
    Database,
    ProtectedRows,
    Query,
    Row,
    Rows,
    Script,
    insert,
    quote,
)
from mcp_junction.store.table import StoreTable, Table

log = logging.getLogger("mcp_junction.store")
_encode = msgspec.json.Encoder().encode
_SHOWN: Final = 20


class Signer(Protocol):
    """Signs rows, and verifies that a holder of the vault's key wrote them."""

    def sign(self, message: bytes, purpose: str) -> bytes: ...

    def verify(self, message: bytes, mac: bytes, purpose: str) -> bool:
        """Whether any of the vault's keys made this MAC."""
        ...

    def is_by_current_key(self, mac: bytes) -> bool:
        """Whether the key that signs now made this MAC."""
        ...


class SignedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record whose last column is its MAC."""

    mac: bytes | None = None


S = TypeVar("S", bound=msgspec.Struct)
"""A SignedRecord, or another record whose last field is ``mac``."""


class SignedTable(StoreTable, Generic[S]):
    """A table of signed rows; its purpose is its name."""

    protected: tuple[str, ...] = ("mac",)
    """Its sealed columns and its MAC."""
    consequence = "are ignored"
    """What becomes of rows without a valid MAC, for the log."""

    def __init__(self, database: Database, signer: Signer, table: Table[S]) -> None:
        super().__init__(database)
        self._signer = signer
        self._table = table
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
        self._reported: set[str] = set()

    def sign(self, record: S) -> S:
        """Return the record, as it will be read from the store, with its MAC."""
        record = self._table.record(self._table.values(record))  # an integer becomes a float
        return msgspec.structs.replace(record, mac=self._signer.sign(_form(record), self._purpose))

    def is_signed(self, record: S) -> bool:
        """Whether a record carries a valid MAC."""
        mac = _mac_of(record)  # SQLite keeps whatever it is given
        return isinstance(mac, bytes) and self._signer.verify(_form(record), mac, self._purpose)

    def genuine(self, rows: Rows) -> list[S]:
        """Make the records of all rows that can be read and carry a valid MAC."""
        return self._drop_unsigned(self._table.records(rows))

    def put(self, record: S, key: Iterable[str]) -> Query:
        """Make the statement that stores a record, signed, in place of one with the same key."""
        columns, keys = self._table.columns, tuple(key)
        changed = [quote(name) for name in columns if name not in keys]
        changes = ", ".join(f"{name} = excluded.{name}" for name in changed)
        sql = insert(self._table.name, columns)
        sql += f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
        return Query(sql, self._table.values(self.sign(record)))

    def read_one(self, rest: str, *args: object) -> Script[S | None]:
        """Read one record inside a transaction; None when there is none with a valid MAC."""
        found = yield from self.read_many(rest, *args)
        return found[0] if found else None

    def read_many(self, rest: str = "", *args: object) -> Script[list[S]]:
        """Read records with a valid MAC inside a transaction."""
        return self.genuine((yield self._table.select(rest, args)))

    async def read_all(self, rest: str = "", *args: object) -> list[S]:
        """Read records with a valid MAC; ``rest`` is what follows the table's name."""
        return await self._database.read(self._table.select(rest, args), self.genuine)

    def _is_stale(self, row: Row) -> bool:
        mac = row[-1]  # SQLite keeps whatever it is given
        return not isinstance(mac, bytes) or not self._signer.is_by_current_key(mac)

    def _renew_row(self, row: Row) -> Mapping[str, Any] | None:
        """Sign a row again with the current key; None if it is not genuine."""
        found = self.genuine([row])
        try:
            signed = [self.sign(self._reseal(record)) for record in found]
        except VaultError:
            return None
        return {name: getattr(signed[0], name) for name in self.protected} if signed else None

    def _reseal(self, record: S) -> S:
        """Seal anew what is sealed in a record, for a subclass that seals. Raises VaultError."""
        return record

    @property
    def _purpose(self) -> str:
        return self._table.name

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


def _mac_of(record: msgspec.Struct) -> bytes | None:
    mac: bytes | None = record.mac  # type: ignore[attr-defined]  # its last field
    return mac


def _form(record: msgspec.Struct) -> bytes:
    """Encode all fields of a row but its MAC, for signing."""
    return _encode(msgspec.structs.astuple(msgspec.structs.replace(record, mac=None)))
