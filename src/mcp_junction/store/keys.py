"""KeyTable: stores bearer keys, hashed and signed. ``identity/`` checks them.

Each row carries a MAC over all its fields, under a key that is derived from the vault's: who can
only write to the database can make no key, change none and take no revocation back by editing a
row. A row without a valid MAC is not handed out. Rows that an older version stored
unsigned are signed once; the row of ``key_state`` says that this was done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from mcp_junction.errors import AlreadyExists, NotFound
from mcp_junction.store.database import Database, Query, Rows, Script, bump, insert
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.table import Table

TABLE = Table("keys", KeyRecord)
TOPIC = "keys"
PURPOSE: Final = "keys"
"""What the MACs of keys are made for: no other value of the vault's verifies as one."""
_ADMIN: Final = "admin"
_ALL: Final = f"SELECT {TABLE.selected} FROM keys ORDER BY created_at, id"
_STATE: Final = "SELECT issued, mac FROM key_state WHERE id = 1"
_encode = msgspec.json.Encoder().encode


class Signer(Protocol):
    """Signs rows, and verifies that somebody with the vault's key wrote them."""

    def sign(self, message: bytes, purpose: str) -> bytes: ...

    def verifies(self, message: bytes, mac: bytes, purpose: str) -> bool:
        """Whether any of the vault's keys made this MAC."""
        ...

    def is_by_current_key(self, mac: bytes) -> bool:
        """Whether the key that signs now made this MAC."""
        ...


class StoredKeys(msgspec.Struct, frozen=True):
    """What was read from the table of keys."""

    keys: list[KeyRecord]
    """Those with a valid MAC, oldest first."""
    rejected: list[str]
    """The ids of rows that are no keys, because their MAC is missing or not valid."""
    has_issued_client_keys: bool
    """Whether a key for anybody but an administrator was ever made; true when that is not known."""


class KeyTable:
    """All keys, in force or revoked."""

    def __init__(self, database: Database, signer: Signer) -> None:
        self._database = database
        self._signer = signer

    async def all(self) -> list[KeyRecord]:
        """All keys, oldest first, without rows that have no valid MAC."""
        return (await self.read()).keys

    async def read(self) -> StoredKeys:
        rows = await self._database.read(Query(_ALL), TABLE.records)
        state = await self._database.read(Query(_STATE), list)
        keys = [key for key in rows if self._is_signed(key)]
        rejected = [str(key.id) for key in rows if not self._is_signed(key)]
        issued = any(key.role != _ADMIN for key in rows)
        return StoredKeys(keys, rejected, issued or self._says_issued(state, rows))

    async def add(self, key: KeyRecord) -> KeyRecord:
        """Store a new key, signed. Raises AlreadyExists."""
        return await self._database.write(self._add(key))

    async def revoke(self, key_id: str, at: float, by: str) -> KeyRecord:
        """Revoke a key for ever: a second time changes nothing. Raises NotFound."""
        return await self._database.write(self._revoke(key_id, at, by))

    # -- signing

    async def unsigned(self) -> list[str] | None:
        """The ids of rows that an older version stored unsigned; None once they were signed."""
        if await self._database.read(Query(_STATE), list):
            return None
        rows = await self._database.read(Query(_ALL), TABLE.records)
        return [str(key.id) for key in rows if not self._is_signed(key)]

    async def sign_existing(self, ids: Sequence[str]) -> int:
        """Sign these rows of an older version, and note that it was done: it is done only once.

        Returns how many were signed: 0 as well when another process was first, or when there is a
        signed row already, so that somebody must have removed the note.
        """
        return await self._database.write(self._sign_existing(frozenset(ids)))

    async def renew_signatures(self) -> int:
        """Sign again, with the vault's current key, what an older one has signed; how many."""
        return await self._database.write(self._renew_signatures())

    # -- scripts

    def _add(self, key: KeyRecord) -> Script[KeyRecord]:
        signed = self._signed(key)
        sql = insert("keys", TABLE.columns) + " ON CONFLICT DO NOTHING RETURNING id"
        if not (yield Query(sql, TABLE.values(signed))):
            raise AlreadyExists(f"there is a key {key.id!r} already")
        if key.role != _ADMIN:
            yield self._state(issued=True)
        yield bump(TOPIC)
        return signed

    def _revoke(self, key_id: str, at: float, by: str) -> Script[KeyRecord]:
        rows = yield Query(f"SELECT {TABLE.selected} FROM keys WHERE id = ?", (key_id,))
        key = TABLE.first(rows)
        if key is None or not self._is_signed(key):
            raise NotFound(f"there is no key {key_id!r}")
        if key.revoked_at is not None:
            return key
        key = self._signed(msgspec.structs.replace(key, revoked_at=at, revoked_by=by))
        yield Query(
            "UPDATE keys SET revoked_at = ?, revoked_by = ?, mac = ? WHERE id = ?",
            (at, by, key.mac, key_id),
        )
        yield bump(TOPIC)
        return key

    def _sign_existing(self, ids: frozenset[str]) -> Script[int]:
        yield bump(TOPIC)  # and holds it: no other process does this at the same time
        if (yield Query(_STATE)):
            return 0
        rows = TABLE.records((yield Query(_ALL)))
        was_done = any(map(self._is_signed, rows))
        chosen = [] if was_done else [key for key in rows if key.id in ids]
        for key in chosen:
            yield _put_mac(self._signed(key))
        yield self._state(issued=was_done or any(key.role != _ADMIN for key in rows))
        return len(chosen)

    def _renew_signatures(self) -> Script[int]:
        old = [
            key
            for key in TABLE.records((yield Query(_ALL)))
            if self._is_signed(key) and not self._signer.is_by_current_key(key.mac or b"")
        ]
        for key in old:
            yield _put_mac(self._signed(key))
        for issued, mac in (yield Query(_STATE)):
            if self._verifies_state(bool(issued), mac) and not self._signer.is_by_current_key(mac):
                yield self._state(issued=bool(issued))
        if old:
            yield bump(TOPIC)
        return len(old)

    # -- MACs

    def _signed(self, key: KeyRecord) -> KeyRecord:
        return msgspec.structs.replace(key, mac=self._signer.sign(_key_form(key), PURPOSE))

    def _is_signed(self, key: KeyRecord) -> bool:
        mac = key.mac  # SQLite keeps whatever it is given
        return isinstance(mac, bytes) and self._signer.verifies(_key_form(key), mac, PURPOSE)

    def _state(self, *, issued: bool) -> Query:
        return Query(
            "INSERT INTO key_state (id, issued, mac) VALUES (1, ?, ?) ON CONFLICT (id)"
            " DO UPDATE SET issued = excluded.issued, mac = excluded.mac",
            (issued, self._signer.sign(_state_form(issued), PURPOSE)),
        )

    def _says_issued(self, state: Rows, keys: Sequence[KeyRecord]) -> bool:
        if not state:
            return bool(keys)  # nobody has begun here yet, or what was noted is gone
        issued, mac = bool(state[0][0]), state[0][1]
        return issued or not self._verifies_state(issued, mac)

    def _verifies_state(self, issued: bool, mac: object) -> bool:
        form = _state_form(issued)
        return isinstance(mac, bytes) and self._signer.verifies(form, mac, PURPOSE)


def _key_form(key: KeyRecord) -> bytes:
    """Encode all fields of a row but its MAC, for signing."""
    fields = msgspec.structs.astuple(msgspec.structs.replace(key, mac=None))
    return b"key/" + _encode(fields)


def _state_form(issued: bool) -> bytes:
    return b"state/" + _encode(issued)


def _put_mac(key: KeyRecord) -> Query:
    return Query("UPDATE keys SET mac = ? WHERE id = ?", (key.mac, key.id))
