"""Servers: registered servers and their connection history. What may hold a secret is sealed."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

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
    insert,
)
from mcp_junction.store.records import (
    DEFINITION_FIELDS,
    STATUS_FIELDS,
    HistoryEvent,
    HistoryRecord,
    ServerRecord,
)
from mcp_junction.store.table import UNREADABLE, Table
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
_BY_ID_OR_NAME = (
    f"SELECT {SERVERS_TABLE.selected} FROM servers WHERE id = ? OR name = ? ORDER BY id = ?"
)
_SKILLS_OF = (
    "SELECT DISTINCT skill_id FROM skill_members"
    " WHERE tool_id IN (SELECT id FROM tools WHERE server_id = ?)"
)


class Sealer(Protocol):
    """What makes a value unreadable to those who only have the database."""

    def seal(self, plain: bytes, identity: str) -> bytes: ...

    def open(self, sealed: bytes, identity: str) -> bytes:
        """Raises VaultError when it was sealed for something else, or changed."""
        ...

    def is_sealed_by_current_key(self, sealed: bytes) -> bool:
        """Whether the key that seals now sealed this value."""
        ...


class Servers:
    """All registered servers."""

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        drop_grants: Callable[[str, float], Script[object]],
    ) -> None:
        """``drop_grants`` removes the grants for a server, in the transaction that removes it."""
        self._database = database
        self._sealer = sealer
        self._drop_grants = drop_grants
        database.protected.append(
            ProtectedRows(
                "servers", ("id",), ("id", *_PROTECTED), _PROTECTED, self._is_stale, self._renew
            )
        )

    # -- reading

    async def get(self, id_or_name: str) -> ServerRecord:
        """Raises NotFound."""
        found = await self.find(id_or_name)
        if found is None:
            raise NotFound(f"there is no server {id_or_name!r}")
        return found

    async def find(self, id_or_name: str) -> ServerRecord | None:
        query = Query(_BY_ID_OR_NAME, (id_or_name,) * 3)
        found = await self._database.read(query, self._opened_all)
        return found[-1] if found else None

    async def named(self, name: str) -> ServerRecord | None:
        """Find a server by its name only, not by its id."""
        query = Query(f"SELECT {SERVERS_TABLE.selected} FROM servers WHERE name = ?", (name,))
        found = await self._database.read(query, self._opened_all)
        return found[0] if found else None

    async def all(
        self, *, status: str | None = None, after: str = "", limit: int = 1_000_000
    ) -> list[ServerRecord]:
        """By name; ``after`` is the last name of the page before."""
        query = Query(
            f"SELECT {SERVERS_TABLE.selected} FROM servers WHERE name > ?"
            " AND (status = ? OR ? = '') ORDER BY name LIMIT ?",
            (after, status or "", status or "", limit),
        )
        return await self._database.read(query, self._readable)

    async def count(self) -> dict[str, int]:
        """How many there are in each status."""
        query = Query("SELECT status, count(*) FROM servers GROUP BY status")
        return await self._database.read(query, lambda rows: {row[0]: row[1] for row in rows})

    # -- changing

    async def add(self, server: ServerRecord) -> ServerRecord:
        """Raises AlreadyExists when the name is taken."""
        now = time.time()
        server = msgspec.structs.replace(server, version=1, registered_at=now, updated_at=now)
        return await self._database.write(self._add(server))

    async def change(
        self, server_id: str, changes: Mapping[str, Any], *, version: int | None = None
    ) -> ServerRecord:
        """Change the definition; a new name too. The server as it is then.

        Raises NotFound, AlreadyExists (the new name), VersionConflict.
        """
        _only(changes, DEFINITION_FIELDS)
        return await self._database.write(self._change(server_id, dict(changes), version))

    async def set_status(self, statuses: Mapping[str, Mapping[str, Any]]) -> None:
        """Store the status of servers, by id. Unknown ids are passed over."""
        for changes in statuses.values():
            _only(changes, STATUS_FIELDS)
        await self._database.write(_write_status(statuses), durable=False)

    async def remove(self, server_id: str, *, version: int | None = None) -> ServerRecord:
        """Remove it with its tools, offers, history and grants.

        Raises NotFound, VersionConflict.
        """
        return await self._database.write(self._remove(server_id, version))

    async def seal_urls(self) -> int:
        """Seal the health URLs that an older version has stored as they were; how many."""
        return await self._database.write(self._seal_urls())

    # -- scripts

    def _add(self, server: ServerRecord) -> Script[ServerRecord]:
        sql = insert("servers", SERVERS_TABLE.columns) + " ON CONFLICT DO NOTHING RETURNING id"
        values = SERVERS_TABLE.values(server)
        values[_CONFIG] = self._sealed(server.id, server.connection_config)
        values[_URL] = self._sealed_url(server.id, server.health_check_url)
        if not (yield Query(sql, values)):
            raise AlreadyExists(f"there is a server {server.name!r} already")
        yield bump(SERVERS_TOPIC)
        return server

    def _change(
        self, server_id: str, changes: dict[str, Any], version: int | None
    ) -> Script[ServerRecord]:
        before = yield from self._locked(server_id, version)
        after = msgspec.structs.replace(
            before, **changes, version=before.version + 1, updated_at=time.time()
        )
        if after.name != before.name:
            taken = yield Query("SELECT id FROM servers WHERE name = ?", (after.name,))
            if taken:
                raise AlreadyExists(f"there is a server {after.name!r} already")
        stored = {**changes, "updated_at": after.updated_at}
        if "connection_config" in stored:
            stored["connection_config"] = self._sealed(after.id, after.connection_config)
        if "health_check_url" in stored:
            stored["health_check_url"] = self._sealed_url(after.id, after.health_check_url)
        clause, args = SERVERS_TABLE.assignments(stored)
        yield Query(f"UPDATE servers SET {clause} WHERE id = ?", (*args, server_id))
        yield bump(SERVERS_TOPIC)
        return after

    def _remove(self, server_id: str, version: int | None) -> Script[ServerRecord]:
        server = yield from self._locked(server_id, version)
        yield lock_skills()
        rows = yield Query(_SKILLS_OF, (server_id,))
        yield mark_skills(row[0] for row in rows)
        yield Query("DELETE FROM servers WHERE id = ?", (server_id,))
        yield from self._drop_grants(server_id, time.time())
        yield bump(SERVERS_TOPIC)
        yield bump("tools")
        yield bump("tool_settings")
        return server

    def _locked(self, server_id: str, version: int | None) -> Script[ServerRecord]:
        """The server, held until the transaction ends, its version counted up already."""
        rows = yield Query(
            "UPDATE servers SET version = version + 1 WHERE id = ? RETURNING version - 1",
            (server_id,),
        )
        if not rows:
            raise NotFound(f"there is no server with the id {server_id!r}")
        found = int(rows[0][0])
        if version is not None and found != version:
            raise VersionConflict("the server", found)
        rows = yield Query(
            f"SELECT {SERVERS_TABLE.selected} FROM servers WHERE id = ?", (server_id,)
        )
        return msgspec.structs.replace(self._opened_all(rows)[0], version=found)

    def _seal_urls(self) -> Script[int]:
        rows = yield Query(
            "SELECT id, health_check_url FROM servers WHERE health_check_url NOT LIKE ?",
            (f"{_SEALED}%",),
        )
        texts = [(key, url) for key, url in rows if isinstance(url, str)]  # others are damaged
        sealed = [(self._sealed_url(key, url), key) for key, url in texts]
        if sealed:
            yield Batch("UPDATE servers SET health_check_url = ? WHERE id = ?", sealed)
        return len(sealed)

    # -- sealing

    def _is_stale(self, row: Row) -> bool:
        _, config, url = row
        texts = [config] if isinstance(config, bytes) else []
        if isinstance(url, str) and url.startswith(_SEALED):
            texts.append(b64decode(url.removeprefix(_SEALED)[:12]))
        return not all(map(self._sealer.is_sealed_by_current_key, texts))

    def _renew(self, row: Row) -> Mapping[str, Any] | None:
        server_id, config, url = row
        try:
            opened = self._opened(server_id, config), self._opened_url(server_id, url)
        except (VaultError, msgspec.MsgspecError, UnicodeError):
            return None
        sealed = self._sealed(server_id, opened[0]), self._sealed_url(server_id, opened[1])
        return dict(zip(_PROTECTED, sealed, strict=True))

    def _sealed(self, server_id: str, config: dict[str, Any]) -> bytes:
        return self._sealer.seal(msgspec.json.encode(config), _identity(server_id))

    def _opened(self, server_id: str, sealed: bytes) -> dict[str, Any]:
        plain = self._sealer.open(bytes(sealed), _identity(server_id))
        return msgspec.json.decode(plain, type=dict[str, Any])

    def _sealed_url(self, server_id: str, url: str | None) -> str | None:
        if url is None:
            return None
        sealed = self._sealer.seal(url.encode(), _identity(server_id, "health_check_url"))
        return _SEALED + b64encode(sealed).decode()

    def _opened_url(self, server_id: str, stored: str | None) -> str | None:
        if stored is None or not stored.startswith(_SEALED):
            return stored  # of an older version, until ``seal_urls`` has seen it
        try:
            sealed = b64decode(stored.removeprefix(_SEALED), validate=True)
        except ValueError:
            raise VaultError("a sealed health_check_url is no longer what was stored") from None
        return self._sealer.open(sealed, _identity(server_id, "health_check_url")).decode()

    def _opened_all(self, rows: Rows) -> list[ServerRecord]:
        """Raises UnreadableRow, VaultError."""
        return [self._record(row) for row in rows]

    def _readable(self, rows: Rows) -> list[ServerRecord]:
        """The records that can be read. Raises MissingKey when none can, for want of the key."""
        found: list[ServerRecord] = []
        missing: MissingKey | None = None
        for row in rows:
            try:
                found.append(self._record(row))
            except UnreadableRow:
                pass  # it is reported
            except VaultError as error:
                missing = missing or (error if isinstance(error, MissingKey) else None)
                UNREADABLE.note(SERVERS_TABLE.name, row, error)
        if missing is not None and not found:
            raise missing
        return found

    def _record(self, row: Row) -> ServerRecord:
        values = list(row)
        values[_TIMEOUT] = values[_TIMEOUT] or 0  # older versions have stored NULL for none
        try:
            values[_CONFIG] = self._opened(row[0], row[_CONFIG])
            values[_URL] = self._opened_url(row[0], row[_URL])
        except (msgspec.MsgspecError, AttributeError, TypeError, UnicodeError):
            values[_CONFIG] = None  # which is no connection: the row cannot be read
        return SERVERS_TABLE.record(values)


def _write_status(statuses: Mapping[str, Mapping[str, Any]]) -> Script[None]:
    alike: dict[tuple[str, ...], list[Sequence[Any]]] = {}
    for server_id in sorted(statuses):  # one order for all who lock several rows
        changes = statuses[server_id]
        alike.setdefault(tuple(changes), []).append([*changes.values(), server_id])
    for columns, rows in alike.items():
        clause = ", ".join(f"{column} = ?" for column in columns)
        yield Batch(f"UPDATE servers SET {clause} WHERE id = ?", rows)


def _only(changes: Mapping[str, Any], allowed: frozenset[str]) -> None:
    if not changes or not changes.keys() <= allowed:
        raise ValueError(f"not to be changed: {sorted(changes.keys() - allowed)}")


def _identity(server_id: str, column: str = "connection_config") -> str:
    return f"servers/{server_id}/{column}"


HISTORY_TABLE = Table("connection_history", HistoryRecord, json={"details"})
KEPT: Final = 1_000
"""Entries per server; older ones make room."""
_PRUNE_EVERY: Final = 100


class History:
    """Connection history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self, server_id: str, event: HistoryEvent, details: Mapping[str, Any] | None = None
    ) -> HistoryRecord:
        """Raises NotFound when the server is gone."""
        script = _add(server_id, event, dict(details or {}), time.time())
        return await self._database.write(script, durable=False)

    async def of(
        self, server_id: str, *, before: int | None = None, limit: int = 100
    ) -> list[HistoryRecord]:
        """Newest first; ``before`` is the last id of the page before."""
        query = Query(
            f"SELECT {HISTORY_TABLE.selected} FROM connection_history"
            " WHERE server_id = ? AND id < ? ORDER BY id DESC LIMIT ?",
            (server_id, before if before is not None else 2**62, limit),
        )
        return await self._database.read(query, HISTORY_TABLE.records)

    async def count(self, server_id: str) -> int:
        """How many entries of a server are kept."""
        query = Query("SELECT count(*) FROM connection_history WHERE server_id = ?", (server_id,))
        return await self._database.read(query, lambda rows: int(rows[0][0]))


def _add(
    server_id: str, event: HistoryEvent, details: dict[str, Any], at: float
) -> Script[HistoryRecord]:
    if not (yield Query("SELECT id FROM servers WHERE id = ?", (server_id,))):
        raise NotFound(f"there is no server with the id {server_id!r}")
    rows = yield bump("connection_history")
    record = HistoryRecord(int(rows[0][0]), server_id, event.value, details, at)
    yield Query(insert(HISTORY_TABLE.name, HISTORY_TABLE.columns), HISTORY_TABLE.values(record))
    if record.id % _PRUNE_EVERY == 0:
        yield Query(
            "DELETE FROM connection_history WHERE server_id = ? AND id <= ("
            "SELECT id FROM connection_history WHERE server_id = ? ORDER BY id DESC"
            " LIMIT 1 OFFSET ?)",
            (server_id, server_id, KEPT),
        )
    return record
