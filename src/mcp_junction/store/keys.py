"""Keys: the shelf of bearer keys, hashed. Not how a key is checked: that is ``identity/``."""

from __future__ import annotations

from mcp_junction.errors import AlreadyExists, NotFound
from mcp_junction.store.database import Database, Query, Script, bump, insert
from mcp_junction.store.records import KeyRecord
from mcp_junction.store.table import Table

TABLE = Table("keys", KeyRecord)
TOPIC = "keys"


class Keys:
    """All keys, in force or revoked."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[KeyRecord]:
        """Oldest first."""
        query = Query(f"SELECT {TABLE.selected} FROM keys ORDER BY created_at, id")
        return await self._database.read(query, TABLE.records)

    async def add(self, key: KeyRecord) -> None:
        await self._database.write(_add(key))

    async def revoke(self, key_id: str, at: float, by: str) -> KeyRecord:
        """For ever: a second time changes nothing. Raises NotFound."""
        return await self._database.write(_revoke(key_id, at, by))


def _add(key: KeyRecord) -> Script[None]:
    sql = insert("keys", TABLE.columns) + " ON CONFLICT DO NOTHING RETURNING id"
    if not (yield Query(sql, TABLE.values(key))):
        raise AlreadyExists(f"there is a key {key.id!r} already")
    yield bump(TOPIC)


def _revoke(key_id: str, at: float, by: str) -> Script[KeyRecord]:
    yield Query(
        "UPDATE keys SET revoked_at = ?, revoked_by = ? WHERE id = ? AND revoked_at IS NULL",
        (at, by, key_id),
    )
    rows = yield Query(f"SELECT {TABLE.selected} FROM keys WHERE id = ?", (key_id,))
    if not rows:
        raise NotFound(f"there is no key {key_id!r}")
    yield bump(TOPIC)
    return TABLE.record(rows[0])
