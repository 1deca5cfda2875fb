"""VaultUsers: which keys of the vault each running service has, so that a rotation can wait for it.

A row counts while the service's audit writer is alive. Ids of keys are no secret.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from mcp_junction.store.database import Query, Rows, Script
from mcp_junction.store.table import StoreTable, transaction

ALIVE: Final = 20.0
"""Seconds without a heartbeat of the audit's writer after which a service counts as gone."""


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
        query = Query(
            "SELECT u.writer, w.host, w.pid, u.keys FROM vault_users u"
            " JOIN audit_writers w ON w.writer = u.writer"
            " WHERE w.closed_at IS NULL AND w.seen_at > ? ORDER BY w.host, w.pid",
            (time.time() - ALIVE,),
        )
        return await self._database.read(query, _users)


def _users(rows: Rows) -> list[VaultUser]:
    return [VaultUser(row[0], row[1], int(row[2]), tuple(row[3].split())) for row in rows]
