"""Servers: registered servers and their connection history. What may hold a secret is sealed."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from mcp_junction.errors import (
    AlreadyExists,
    MissingKey,
    NotFound,
    UnreadableRow,
    VaultError,
    VersionConflict,
)
from mcp_junction.store.database import (
    Batch,
    Database,
    ProtectedRows,
    Query,
    Row,
    Rows,
    Script,
    bump,
)
from mcp_junction.store.protected import StoreVault
from mcp_junction.store.records import (
    DEFINITION_FIELDS,
    STATUS_FIELDS,
    HistoryEvent,
    HistoryRecord,
    ServerRecord,
)
from mcp_junction.store.table import UNREADABLE, StoreTable, Table, transaction
from mcp_junction.store.tools import lock_skills, mark_skills

SERVERS_TABLE = Table(
    "servers",
    ServerRecord,
    json={"capabilities", "metadata"},
    flags=[f.name for f in msgspec.structs.fields(ServerRecord) if f.type in (bool, bool | None)],
)
SERVERS_TOPIC = "servers"
_CONFIG = SERVERS_TABLE.columns.index("connection_config")
_URL = SERVERS_TABLE.columns.index("health_check_url")
_TIMEOUT = SERVERS_TABLE.columns.index("timeout_ms")
_SEALED = "sealed:"
"""Before a sealed text, in base64, in a column of text."""
_PROTECTED = ("connection_config", "health_check_url")
_DAMAGED = (msgspec.MsgspecError, AttributeError, TypeError, UnicodeError)
"""What opening a damaged row may raise, besides VaultError."""
_SKILLS_OF = (
    "SELECT DISTINCT skill_id FROM skill_members"
    " WHERE tool_id IN (SELECT id FROM tools WHERE server_id = ?)"
)


class Servers(StoreTable):
    """All registered servers."""

    def __init__(
        self,
        database: Database,
        vault: StoreVault,
        drop_grants: Callable[[str, float], Script[object]],
    ) -> None:
        """``drop_grants`` removes the grants for a server, in the transaction that removes it."""
        super().__init__(database)
        self._vault = vault
        self._drop_grants = drop_grants
        database.protected.append(
            ProtectedRows(
                "servers", ("id",), ("id", *_PROTECTED), _PROTECTED, self._is_stale, self._renew
            )
        )

    # -- reading

    async def get(self, id_or_name: str) -> ServerRecord:
        """Read one server. Raises NotFound."""
        found = await self.find(id_or_name)
        if found is None:
            raise NotFound(f"there is no server {id_or_name!r}")
        return found

    async def find(self, id_or_name: str) -> ServerRecord | None:
        """Read a server by its id or else by its name, if there is one."""
        where = "WHERE id = ? OR name = ? ORDER BY id = ?"
        query = SERVERS_TABLE.select(where, (id_or_name,) * 3)
        found = await self._database.read(query, self._open_all)
        return found[-1] if found else None

    async def named(self, name: str) -> ServerRecord | None:
        """Find a server by its name only, not by its id."""
        query = SERVERS_TABLE.select("WHERE name = ?", (name,))
        found = await self._database.read(query, self._open_all)
        return found[0] if found else None

    async def all(
        self, *, status: str | None = None, after: str = "", limit: int = 1_000_000
    ) -> list[ServerRecord]:
        """Read servers by name; ``after`` is the last name of the page before."""
        query = SERVERS_TABLE.select(
            "WHERE name > ? AND (status = ? OR ? = '') ORDER BY name LIMIT ?",
            (after, status or "", status or "", limit),
        )
        return await self._database.read(query, self._open_readable)

    async def count(self) -> dict[str, int]:
        """Count the servers in each status."""
        sql = "SELECT status, count(*) FROM servers GROUP BY status"
        return dict(await self._read_rows(tuple, sql))

    # -- changing

    @transaction()
    def add(self, server: ServerRecord) -> Script[ServerRecord]:
        """Store a new server. Raises AlreadyExists when the name is taken."""
        now = time.time()
        server = msgspec.structs.replace(server, version=1, registered_at=now, updated_at=now)
        values = SERVERS_TABLE.values(server)
        values[_CONFIG] = self._seal_config(server.id, server.connection_config)
        values[_URL] = self._seal_url(server.id, server.health_check_url)
        sql = f"{SERVERS_TABLE.insert} ON CONFLICT DO NOTHING RETURNING id"
        if not (yield Query(sql, values)):
            raise AlreadyExists(f"there is a server {server.name!r} already")
        yield bump(SERVERS_TOPIC)
        return server

    @transaction()
    def change(
        self, server_id: str, changes: Mapping[str, Any], *, version: int | None = None
    ) -> Script[ServerRecord]:
        """Change the definition, the name too; return the server as it is then.

        Raises NotFound, AlreadyExists (the new name), VersionConflict.
        """
        _check_names(changes, DEFINITION_FIELDS)
        before = yield from self._lock(server_id, version)
        after = msgspec.structs.replace(
            before, **changes, version=before.version + 1, updated_at=time.time()
        )
        if after.name != before.name:
            taken = yield Query("SELECT id FROM servers WHERE name = ?", (after.name,))
            if taken:
                raise AlreadyExists(f"there is a server {after.name!r} already")
        stored = {**changes, "updated_at": after.updated_at}
        if "connection_config" in stored:
            stored["connection_config"] = self._seal_config(after.id, after.connection_config)
        if "health_check_url" in stored:
            stored["health_check_url"] = self._seal_url(after.id, after.health_check_url)
        yield SERVERS_TABLE.update(stored, "WHERE id = ?", server_id)
        yield bump(SERVERS_TOPIC)
        return after

    @transaction(durable=False)
    def set_status(self, statuses: Mapping[str, Mapping[str, Any]]) -> Script[None]:
        """Store the status of servers, by id. Unknown ids are passed over."""
        alike: dict[tuple[str, ...], list[Sequence[Any]]] = {}
        for server_id, changes in sorted(statuses.items()):  # one order for all who lock rows
            _check_names(changes, STATUS_FIELDS)
            alike.setdefault(tuple(changes), []).append([*changes.values(), server_id])
        for columns, rows in alike.items():
            clause = ", ".join(f"{column} = ?" for column in columns)
            yield Batch(f"UPDATE servers SET {clause} WHERE id = ?", rows)

    @transaction()
    def remove(self, server_id: str, *, version: int | None = None) -> Script[ServerRecord]:
        """Remove a server with its tools, offers, history and grants.

        Raises NotFound, VersionConflict.
        """
        server = yield from self._lock(server_id, version)
        yield lock_skills()
        rows = yield Query(_SKILLS_OF, (server_id,))
        yield mark_skills(row[0] for row in rows)
        yield Query("DELETE FROM servers WHERE id = ?", (server_id,))
        yield from self._drop_grants(server_id, time.time())
        for topic in (SERVERS_TOPIC, "tools", "tool_settings"):
            yield bump(topic)
        return server

    @transaction()
    def seal_urls(self) -> Script[int]:
        """Seal the health URLs that an older version stored unsealed; return how many."""
        rows = yield Query(
            "SELECT id, health_check_url FROM servers WHERE health_check_url NOT LIKE ?",
            (f"{_SEALED}%",),
        )
        texts = [(key, url) for key, url in rows if isinstance(url, str)]  # others are damaged
        sealed = [(self._seal_url(key, url), key) for key, url in texts]
        if sealed:
            yield Batch("UPDATE servers SET health_check_url = ? WHERE id = ?", sealed)
        return len(sealed)

    def _lock(self, server_id: str, version: int | None) -> Script[ServerRecord]:
        """Read a server, locked until the transaction ends, its version counted up already."""
        rows = yield Query(
            "UPDATE servers SET version = version + 1 WHERE id = ? RETURNING version - 1",
            (server_id,),
        )
        if not rows:
            raise NotFound(f"there is no server with the id {server_id!r}")
        found = int(rows[0][0])
        if version is not None and found != version:
            raise VersionConflict("the server", found)
        rows = yield SERVERS_TABLE.select("WHERE id = ?", (server_id,))
        return msgspec.structs.replace(self._open_record(rows[0]), version=found)

    # -- sealing

    def _is_stale(self, row: Row) -> bool:
        _, config, url = row
        sealed = [config] if isinstance(config, bytes) else []
        if isinstance(url, str) and url.startswith(_SEALED):
            try:
                sealed.append(_decode_url(url))
            except VaultError:
                return True  # which cannot be renewed, and is counted then
        return not all(map(self._vault.is_sealed_by_current_key, sealed))

    def _renew(self, row: Row) -> Mapping[str, Any] | None:
        server_id, config, url = row
        try:
            opened = self._open_config(server_id, config), self._open_url(server_id, url)
        except (VaultError, *_DAMAGED):
            return None
        sealed = self._seal_config(server_id, opened[0]), self._seal_url(server_id, opened[1])
        return dict(zip(_PROTECTED, sealed, strict=True))

    def _seal_config(self, server_id: str, config: dict[str, Any]) -> bytes:
        return self._vault.seal(msgspec.json.encode(config), _identity(server_id))

    def _open_config(self, server_id: str, sealed: bytes) -> dict[str, Any]:
        if not isinstance(sealed, bytes):
            raise VaultError("a sealed connection_config is no longer what was stored")
        plain = self._vault.open(sealed, _identity(server_id))
        return msgspec.json.decode(plain, type=dict[str, Any])

    def _seal_url(self, server_id: str, url: str | None) -> str | None:
        if url is None:
            return None
        sealed = self._vault.seal(url.encode(), _identity(server_id, "health_check_url"))
        return _SEALED + b64encode(sealed).decode()

    def _open_url(self, server_id: str, stored: str | None) -> str | None:
        if stored is None or not stored.startswith(_SEALED):
            return stored  # of an older version, until ``seal_urls`` has seen it
        sealed = _decode_url(stored)
        return self._vault.open(sealed, _identity(server_id, "health_check_url")).decode()

    def _open_all(self, rows: Rows) -> list[ServerRecord]:
        """Open the records of all rows. Raises UnreadableRow, VaultError."""
        return [self._open_record(row) for row in rows]

    def _open_readable(self, rows: Rows) -> list[ServerRecord]:
        """Open what can be read. Raises MissingKey when nothing can, for want of the key."""
        found: list[ServerRecord] = []
        missing: MissingKey | None = None
        for row in rows:
            try:
                found.append(self._open_record(row))
            except UnreadableRow:
                pass  # it is reported
            except VaultError as error:
                missing = missing or (error if isinstance(error, MissingKey) else None)
                UNREADABLE.note(SERVERS_TABLE.name, row, error)
        if missing is not None and not found:
            raise missing
        return found

    def _open_record(self, row: Row) -> ServerRecord:
        values = list(row)
        values[_TIMEOUT] = values[_TIMEOUT] or 0  # older versions have stored NULL for none
        try:
            values[_CONFIG] = self._open_config(row[0], row[_CONFIG])
            values[_URL] = self._open_url(row[0], row[_URL])
        except _DAMAGED:
            values[_CONFIG] = None  # which is no connection: the row cannot be read
        return SERVERS_TABLE.record(values)


def _decode_url(stored: str) -> bytes:
    """Return the sealed bytes of an address. Raises VaultError."""
    try:
        return b64decode(stored.removeprefix(_SEALED), validate=True)
    except ValueError:
        raise VaultError("a sealed health_check_url is no longer what was stored") from None


def _check_names(changes: Mapping[str, Any], allowed: frozenset[str]) -> None:
    if not changes or not changes.keys() <= allowed:
        raise ValueError(f"not to be changed: {sorted(changes.keys() - allowed)}")


def _identity(server_id: str, column: str = "connection_config") -> str:
    return f"servers/{server_id}/{column}"


HISTORY_TABLE = Table("connection_history", HistoryRecord, json={"details"})
KEPT: Final = 1_000
"""Entries per server; older ones make room."""
_PRUNE_EVERY: Final = 100


class History(StoreTable):
    """Connection history."""

    @transaction(durable=False)
    def add(
        self, server_id: str, event: HistoryEvent, details: Mapping[str, Any] | None = None
    ) -> Script[HistoryRecord]:
        """Store what happened to a server. Raises NotFound when the server is gone."""
        at = time.time()
        if not (yield Query("SELECT id FROM servers WHERE id = ?", (server_id,))):
            raise NotFound(f"there is no server with the id {server_id!r}")
        rows = yield bump("connection_history")
        record = HistoryRecord(int(rows[0][0]), server_id, event.value, dict(details or {}), at)
        yield HISTORY_TABLE.add(record)
        if record.id % _PRUNE_EVERY == 0:
            yield Query(
                "DELETE FROM connection_history WHERE server_id = ? AND id <= ("
                "SELECT id FROM connection_history WHERE server_id = ? ORDER BY id DESC"
                " LIMIT 1 OFFSET ?)",
                (server_id, server_id, KEPT),
            )
        return record

    async def of(
        self, server_id: str, *, before: int | None = None, limit: int = 100
    ) -> list[HistoryRecord]:
        """Read entries, newest first; ``before`` is the last id of the page before."""
        where = "WHERE server_id = ? AND id < ? ORDER BY id DESC LIMIT ?"
        last = 2**62 if before is None else before
        return await self._read(HISTORY_TABLE, where, server_id, last, limit)

    async def count(self, server_id: str) -> int:
        """Count the entries of a server that are kept."""
        sql = "SELECT count(*) FROM connection_history WHERE server_id = ?"
        return await self._read_number(sql, server_id) or 0
