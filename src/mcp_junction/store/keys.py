"""KeyTable and RevokedSubjects: which bearer keys there are, and which access tokens are revoked.

Keys are stored hashed and signed. ``identity/`` checks both.

Each row carries a MAC (``protected.py``). It does not keep an old row from being put back: whoever
has a copy from before a revocation can undo that. Rows of keys without a valid MAC are ignored.
Rows that an older version stored unsigned are signed once; the row of ``key_state`` records that
this was done.

Access tokens of the door's issuer are not stored; what is revoked of them is all that were issued
to a subject before a time, which RevokedSubjects stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mcp_junction.errors import AlreadyExists, NotFound
from mcp_junction.store.database import Database, ProtectedRows, Query, Row, Rows, Script, bump
from mcp_junction.store.protected import SignedRecord, SignedTable, StoreVault
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.table import Table, transaction

TOPIC: Final = "keys"
REVOKED_SUBJECTS_TOPIC: Final = "door"
_ADMIN: Final = "admin"
_AGENT: Final = "agent"
_ORDER: Final = "ORDER BY created_at, id"
_STATE: Final = Query("SELECT issued, mac FROM key_state WHERE id = 1")


class StoredKeys(msgspec.Struct, frozen=True):
    """The content of the table of keys."""

    keys: list[KeyRecord]
    """Keys with a valid MAC, oldest first."""
    rejected: list[str]
    """The ids of rows whose MAC is missing or not valid."""
    has_issued_client_keys: bool
    """Whether a key for a role other than admin was ever made; true when that is not known."""


class KeyTable(SignedTable[KeyRecord]):
    """All keys, in force or revoked."""

    _table = Table("keys", KeyRecord)

    def __init__(self, database: Database, vault: StoreVault) -> None:
        super().__init__(database, vault)
        state = "key_state", ("id",), ("issued", "mac"), ("mac",)
        database.protected.append(ProtectedRows(*state, self._is_stale, self._renew_state))

    async def all(self) -> list[KeyRecord]:
        """Read all keys with a valid MAC, oldest first."""
        return await self.read_all(_ORDER)

    async def read(self) -> StoredKeys:
        """Read the table, and check the MAC of every row."""
        rows = await self._read(self._table, _ORDER)
        state = await self._database.read(_STATE, list)
        keys = self._drop_unsigned(rows)
        rejected = [str(key.id) for key in rows if not self.is_signed(key)]
        issued = any(key.role != _ADMIN for key in rows)
        return StoredKeys(keys, rejected, issued or self._says_issued(state, rows))

    # -- signing

    async def unsigned(self) -> list[str] | None:
        """Return the ids of rows that an older version stored unsigned; None once signed."""
        if await self._database.read(_STATE, list):
            return None
        return (await self.read()).rejected

    @transaction()
    def add(self, key: KeyRecord) -> Script[KeyRecord]:
        """Store a new key, signed. Raises AlreadyExists."""
        signed = self.sign(key)
        if not (yield self._table.add(signed, " ON CONFLICT DO NOTHING RETURNING id")):
            raise AlreadyExists(f"there is a key {key.id!r} already")
        if key.role != _ADMIN:
            yield self._put_state(issued=True)
        yield bump(TOPIC)
        return signed

    @transaction()
    def revoke(self, key_id: str, at: float, by: str) -> Script[KeyRecord]:
        """Revoke a key for ever: a second time changes nothing. Raises NotFound."""
        key = self._table.first((yield self._table.select("WHERE id = ?", (key_id,))))
        if key is None or not self.is_signed(key):
            raise NotFound(f"there is no key {key_id!r}")
        if key.revoked_at is not None:
            return key
        key = yield from self._revoke(key, at, by)
        yield bump(TOPIC)
        return key

    def _revoke(self, key: KeyRecord, at: float, by: str) -> Script[KeyRecord]:
        key = self.sign(msgspec.structs.replace(key, revoked_at=at, revoked_by=by))
        yield Query(
            "UPDATE keys SET revoked_at = ?, revoked_by = ?, mac = ? WHERE id = ?",
            (at, by, key.mac, key.id),
        )
        return key

    def revoke_of_agent(self, agent: str, at: float, by: str) -> Script[list[str]]:
        """Revoke all keys of an agent, as part of a transaction; return their ids."""
        wanted = "WHERE agent = ? AND role = ? AND revoked_at IS NULL"
        keys = yield from self.read_many(wanted, agent, _AGENT)
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
        rows = self._table.records((yield self._table.select(_ORDER)))
        was_done = any(map(self.is_signed, rows))
        chosen = [] if was_done else [key for key in rows if key.id in ids]
        for key in chosen:
            yield Query("UPDATE keys SET mac = ? WHERE id = ?", (self.sign(key).mac, key.id))
        yield self._put_state(issued=was_done or any(key.role != _ADMIN for key in rows))
        return len(chosen)

    # -- MACs

    def _form(self, record: KeyRecord) -> bytes:
        return b"key/" + super()._form(record)

    def _drop_unsigned(self, records: list[KeyRecord]) -> list[KeyRecord]:
        """Without a word: those who read keys report the others."""
        return [record for record in records if self.is_signed(record)]

    def _put_state(self, *, issued: bool) -> Query:
        return Query(
            "INSERT INTO key_state (id, issued, mac) VALUES (1, ?, ?) ON CONFLICT (id)"
            " DO UPDATE SET issued = excluded.issued, mac = excluded.mac",
            (issued, self._make_mac(_state_form(issued))),
        )

    def _says_issued(self, state: Rows, keys: Sequence[KeyRecord]) -> bool:
        if not state:
            return bool(keys)  # a new store, or the row was removed
        issued, mac = bool(state[0][0]), state[0][1]
        return issued or not self._verifies(_state_form(issued), mac)

    def _renew_state(self, row: Row) -> Mapping[str, Any] | None:
        form = _state_form(bool(row[0]))
        return {"mac": self._make_mac(form)} if self._verifies(form, row[1]) else None


def _state_form(issued: bool) -> bytes:
    return b"state/" + msgspec.json.encode(issued)


class RevokedSubject(SignedRecord, frozen=True):
    """A subject whose tokens were revoked."""

    issuer: str
    subject: str
    not_before: float
    """Tokens that were issued before are not accepted."""
    revoked_by: str


class RevokedSubjects(SignedTable[RevokedSubject]):
    """All subjects whose tokens were revoked."""

    _table = Table("revoked_subjects", RevokedSubject, key=("issuer", "subject"))

    async def of_issuer(self, issuer: str) -> dict[str, float]:
        """Read since when tokens of each subject must have been issued."""
        found = await self.read_all("WHERE issuer = ?", issuer)
        return {one.subject: one.not_before for one in found}

    @transaction()
    def revoke(self, revoked: RevokedSubject) -> Script[None]:
        """Revoke the tokens of a subject; a second time those that were issued since."""
        yield bump(REVOKED_SUBJECTS_TOPIC)
        yield self.put(revoked)
