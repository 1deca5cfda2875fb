"""Offers: the shelf of prompts, resources and templates, for a restart to serve at once."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_junction.errors import NotFound
from mcp_junction.store.database import Batch, Database, Load, Query, Script, bump
from mcp_junction.store.records import Definition, OfferRecord
from mcp_junction.store.table import Table

TABLE = Table("offers", OfferRecord)
TOPIC = "offers"
_SAME = "server_id = ? AND kind = ?"


class Offers:
    """What servers offer besides tools."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, server_id: str | None = None) -> list[OfferRecord]:
        """In the order their servers list them."""
        where, args = ("WHERE server_id = ?", [server_id]) if server_id else ("", [])
        query = Query(
            f"SELECT {TABLE.selected} FROM offers {where} ORDER BY server_id, kind, position", args
        )
        return await self._database.read(query, TABLE.records)

    async def replace(self, server_id: str, kind: str, definitions: Sequence[Definition]) -> bool:
        """All of one kind as they now are; whether anything changed. Raises NotFound."""
        return await self._database.write(_replace(server_id, kind, definitions))


def _replace(server_id: str, kind: str, definitions: Sequence[Definition]) -> Script[bool]:
    locked = yield Query("UPDATE servers SET id = id WHERE id = ? RETURNING id", (server_id,))
    if not locked:
        raise NotFound(f"there is no server with the id {server_id!r}")
    rows = yield Query(
        f"SELECT name, position, definition FROM offers WHERE {_SAME}", (server_id, kind)
    )
    before = {row[0]: (row[1], bytes(row[2])) for row in rows}
    after: dict[str, tuple[int, bytes]] = {}
    for position, definition in enumerate(definitions):
        after.setdefault(definition.name, (position, definition.definition))
    if before == after:
        return False
    stale = [name for name, value in before.items() if after.get(name) != value]
    fresh = [(name, *value) for name, value in after.items() if before.get(name) != value]
    yield Batch(
        f"DELETE FROM offers WHERE {_SAME} AND name = ?", [(server_id, kind, n) for n in stale]
    )
    yield Load("offers", TABLE.columns, [(server_id, kind, *values) for values in fresh])
    yield bump(TOPIC)
    return True
