"""GrantTable: stores the grants of agents. What a grant means is in ``policy/grants.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mcp_junction.policy.grants import ANY, Grant, GrantKey, regrant
from mcp_junction.store.database import Database, Query, Script, placeholders
from mcp_junction.store.signed import SignedTable, Signer
from mcp_junction.store.table import Table

KEY: Final = ("id",)
_SAME: Final = "agent_id = ? AND server_id = ? AND tool_name = ? AND kinds = ?"


class GrantRecord(Grant, frozen=True, gc=False, kw_only=True):
    """A grant as it is stored."""

    mac: bytes | None = None


class GrantTable(SignedTable[GrantRecord]):
    """All grants, expired ones too. Changed by ``PolicyTables``."""

    def __init__(self, database: Database, signer: Signer) -> None:
        table = Table("grants", GrantRecord, json={"kinds", "actions", "limits"})
        super().__init__(database, signer, table)

    async def all(self) -> list[GrantRecord]:
        """Read all grants."""
        return await self.read_all()

    async def of_agents(self, agent_ids: Sequence[str]) -> list[GrantRecord]:
        """Read the grants of some agents."""
        return await self.read_all(f"WHERE agent_id IN ({placeholders(agent_ids)})", *agent_ids)

    async def find(self, grant_id: str) -> GrantRecord | None:
        """Read one grant, if there is one."""
        found = await self.read_all("WHERE id = ?", grant_id)
        return found[0] if found else None

    # -- parts of a transaction

    def give(self, grant: Grant) -> Script[GrantRecord]:
        """Store a grant; where there is one of the same key, that gets the new terms."""
        found = yield from self.read_one(f"WHERE {_SAME}", *self._same(grant.key))
        if found is not None:
            grant = regrant(found, grant)
        # A row of this key that carries no valid MAC is in the way.
        yield Query(
            f"DELETE FROM grants WHERE {_SAME} AND id <> ?", (*self._same(grant.key), grant.id)
        )
        record = to_record(grant)
        yield self.put(record, KEY)
        return record

    def remove(self, grant_id: str) -> Query:
        """Make the statement that removes a grant."""
        return Query("DELETE FROM grants WHERE id = ?", (grant_id,))

    def remove_of_server(self, server_id: str) -> Script[list[GrantRecord]]:
        """Remove the grants for a server that is removed; return them."""
        rows = yield self._table.select("WHERE server_id = ?", (server_id,))
        yield Query("DELETE FROM grants WHERE server_id = ?", (server_id,))
        return self.genuine(rows)

    def check_server(self, server_id: str) -> Script[bool]:
        """Whether there is a server for a grant to be for."""
        if server_id == ANY:
            return True
        return bool((yield Query("SELECT id FROM servers WHERE id = ?", (server_id,))))

    def _same(self, key: GrantKey) -> tuple[str, ...]:
        kinds: str = self._table.value("kinds", key.kinds)
        return key.agent_id, key.server_id, key.tool_name, kinds


def to_record(grant: Grant) -> GrantRecord:
    """Make the record of a grant, without its MAC."""
    if isinstance(grant, GrantRecord):
        return msgspec.structs.replace(grant, mac=None)
    return GrantRecord(**{name: getattr(grant, name) for name in Grant.__struct_fields__})
