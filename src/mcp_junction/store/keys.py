"""KeyTable: stores bearer keys, hashed and signed. ``identity/`` checks them.

Each row carries a MAC over all its fields, under a key that is derived from the vault's: write
access to the database alone is not enough to make up a key or change one. It does not keep an old
row from being put back: whoever has a copy from before a revocation can undo that. Rows without a
valid MAC are ignored. Rows that an older version stored unsigned are signed once; the row of
``key_state`` records that this was done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mcp_junction.errors import AlreadyExists, NotFound
from mcp_junction.store.database import (
    Database,
    ProtectedRows,
    Query,
    Row,
    Rows,
    Script,
    bump,
    insert,
)
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.signed import Signer
from mcp_junction.store.table import StoreTable, Table, transaction

TABLE = Table("keys", KeyRecord)
TOPIC = "keys"
PURPOSE: Final = "keys"
"""The purpose of the MACs of keys: a MAC of the vault for another purpose is not valid here."""
_ADMIN: Final = "admin"
_AGENT: Final = "agent"
_ALL: Final = TABLE.select("ORDER BY created_at, id")
_STATE: Final = Query("SELECT issued, mac FROM key_state WHERE id = 1")
_encode = msgspec.json.Encoder().encode


class StoredKeys(msgspec.Struct, frozen=True):
    """The content of the table of keys."""

    keys: list[KeyRecord]
    """Keys with a valid MAC, oldest first."""
    rejected: list[str]
    """The ids of rows whose MAC is missing or not valid."""
    has_issued_client_keys: bool
    """Whether a key for a role other than admin was ever made; true when that is not known."""


class KeyTable(StoreTable):
    """All keys, in force or revoked."""

    def __init__(self, database: Database, signer: Signer) -> None:
        super().__init__(database)
        self._signer = signer
        database.protected += [
            ProtectedRows(
                TABLE.name, TABLE.key, TABLE.columns, ("mac",), self._is_stale, self._renew
            ),
            ProtectedRows(
                "key_state",
                ("id",),
                ("issued", "mac"),
                ("mac",),
                self._is_stale,
                self._renew_state,
            ),
        ]

    async def all(self) -> list[KeyRecord]:
        """Read all keys with a valid MAC, oldest first."""
        return (await self.read()).keys

    async def read(self) -> StoredKeys:
        """Read the table, and check the MAC of every row."""
        rows = await self._database.read(_ALL, TABLE.records)
        state = await self._database.read(_STATE, list)
        keys = [key for key in rows if self._is_signed(key)]
        rejected = [str(key.id) for key in rows if not self._is_signed(key)]
        issued = any(key.role != _ADMIN for key in rows)
        return StoredKeys(keys, rejected, issued or self._says_issued(state, rows))

    # -- signing

    async def unsigned(self) -> list[str] | None:
        """Return the ids of rows that an older version stored unsigned; None once signed."""
        if await self._database.read(_STATE, list):
            return None
        rows = await self._database.read(_ALL, TABLE.records)
        return [str(key.id) for key in rows if not self._is_signed(key)]

    @transaction()
    def add(self, key: KeyRecord) -> Script[KeyRecord]:
        """Store a new key, signed. Raises AlreadyExists."""
        signed = self._sign(key)
        sql = insert("keys", TABLE.columns) + " ON CONFLICT DO NOTHING RETURNING id"
        if not (yield Query(sql, TABLE.values(signed))):
            raise AlreadyExists(f"there is a key {key.id!r} already")
        if key.role != _ADMIN:
            yield self._put_state(issued=True)
        yield bump(TOPIC)
        return signed

    @transaction()
    def revoke(self, key_id: str, at: float, by: str) -> Script[KeyRecord]:
        """Revoke a key for ever: a second time changes nothing. Raises NotFound."""
        key = TABLE.first((yield TABLE.select("WHERE id = ?", (key_id,))))
        if key is None or not self._is_signed(key):
            raise NotFound(f"there is no key {key_id!r}")
        if key.revoked_at is not None:
            return key
        key = yield from self._revoke(key, at, by)
        yield bump(TOPIC)
        return key

    def _revoke(self, key: KeyRecord, at: float, by: str) -> Script[KeyRecord]:
        key = self._sign(msgspec.structs.replace(key, revoked_at=at, revoked_by=by))
        yield Query(
            "UPDATE keys SET revoked_at = ?, revoked_by = ?, mac = ? WHERE id = ?",
            (at, by, key.mac, key.id),
        )
        return key

    def revoke_of_agent(self, agent: str, at: float, by: str) -> Script[list[str]]:
        """Revoke all keys of an agent, as part of a transaction; return their ids."""
        wanted = "WHERE agent = ? AND role = ? AND revoked_at IS NULL"
        rows = TABLE.records((yield TABLE.select(wanted, (agent, _AGENT))))
        keys = [key for key in rows if self._is_signed(key)]
        for key in keys:
            yield from self._revoke(key, at, by)
        if keys:
            yield bump(TOPIC)
        return [key.id for key in keys]

    @transaction()
    def sign_existing(self, ids: Sequence[str]) -> Script[int]:
        """Sign these rows of an older version, once in the life of a store; return how many.

        Returns 0 as well when another process was first, or when there is a signed row already:
        then somebody must have removed the record of it.
        """
        yield bump(TOPIC)  # and lock it: no other process does this at the same time
        if (yield _STATE):
            return 0
        rows = TABLE.records((yield _ALL))
        was_done = any(map(self._is_signed, rows))
        chosen = [] if was_done else [key for key in rows if key.id in ids]
        for key in chosen:
            yield _put_mac(self._sign(key))
        yield self._put_state(issued=was_done or any(key.role != _ADMIN for key in rows))
        return len(chosen)

    # -- MACs

    def _is_stale(self, row: Row) -> bool:
        return not isinstance(row[-1], bytes) or not self._signer.is_by_current_key(row[-1])

    def _renew(self, row: Row) -> Mapping[str, Any] | None:
        found = [key for key in TABLE.records([row]) if self._is_signed(key)]
        return {"mac": self._sign(found[0]).mac} if found else None

    def _renew_state(self, row: Row) -> Mapping[str, Any] | None:
        if not self._verifies_state(bool(row[0]), row[1]):
            return None
        return {"mac": self._signer.sign(_state_form(bool(row[0])), PURPOSE)}

    def _sign(self, key: KeyRecord) -> KeyRecord:
        return msgspec.structs.replace(key, mac=self._signer.sign(_key_form(key), PURPOSE))

    def _is_signed(self, key: KeyRecord) -> bool:
        mac = key.mac  # SQLite keeps whatever it is given
        return isinstance(mac, bytes) and self._signer.verify(_key_form(key), mac, PURPOSE)

    def _put_state(self, *, issued: bool) -> Query:
        return Query(
            "INSERT INTO key_state (id, issued, mac) VALUES (1, ?, ?) ON CONFLICT (id)"
            " DO UPDATE SET issued = excluded.issued, mac = excluded.mac",
            (issued, self._signer.sign(_state_form(issued), PURPOSE)),
        )

    def _says_issued(self, state: Rows, keys: Sequence[KeyRecord]) -> bool:
        if not state:
            return bool(keys)  # a new store, or the row was removed
        issued, mac = bool(state[0][0]), state[0][1]
        return issued or not self._verifies_state(issued, mac)

    def _verifies_state(self, issued: bool, mac: object) -> bool:
        form = _state_form(issued)
        return isinstance(mac, bytes) and self._signer.verify(form, mac, PURPOSE)


def _key_form(key: KeyRecord) -> bytes:
    """Encode all fields of a row but its MAC, for signing."""
    fields = msgspec.structs.astuple(msgspec.structs.replace(key, mac=None))
    return b"key/" + _encode(fields)


def _state_form(issued: bool) -> bytes:
    return b"state/" + _encode(issued)


def _put_mac(key: KeyRecord) -> Query:
    return Query("UPDATE keys SET mac = ? WHERE id = ?", (key.mac, key.id))
