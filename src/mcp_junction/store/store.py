"""Store: all tables of one database, and how it is opened by URL."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import unquote, urlsplit

from mcp_junction.errors import UsageError, VersionConflict
from mcp_junction.store.audit import AuditTrail
from mcp_junction.store.classification import Classification
from mcp_junction.store.database import (
    PATIENCE,
    Database,
    Dialect,
    Query,
    Rows,
    Script,
    bump,
    migrate,
)
from mcp_junction.store.events import KEPT, Events
from mcp_junction.store.keys import KeyTable, Signer
from mcp_junction.store.records import SettingRecord
from mcp_junction.store.servers import History, Sealer, Servers
from mcp_junction.store.skills import Skills
from mcp_junction.store.table import UNREADABLE, Table
from mcp_junction.store.tools import Offers, Tools

TABLE = Table("settings", SettingRecord, json={"value"})
TOPIC = "settings"


class RuntimeSettings:
    """Settings by name, each a JSON value with a version."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> dict[str, SettingRecord]:
        query = Query(f"SELECT {TABLE.selected} FROM settings ORDER BY name")
        found = await self._database.read(query, TABLE.records)
        return {setting.name: setting for setting in found}

    async def find(self, name: str) -> SettingRecord | None:
        query = Query(f"SELECT {TABLE.selected} FROM settings WHERE name = ?", (name,))
        return await self._database.read(query, TABLE.first)

    async def put(
        self, name: str, value: Any, by: str, *, version: int | None = None
    ) -> SettingRecord:
        """Set it; ``version`` is the one it was read with, 0 for none. Raises VersionConflict."""
        return await self._database.write(_put(name, value, by, version))


def _put(name: str, value: Any, by: str, version: int | None) -> Script[SettingRecord]:
    rows = yield Query(
        "INSERT INTO settings (name, value, version, updated_at, updated_by)"
        " VALUES (?, ?, 1, ?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value,"
        " version = settings.version + 1, updated_at = excluded.updated_at,"
        " updated_by = excluded.updated_by"
        f" RETURNING {', '.join(TABLE.columns)}",
        (name, TABLE.value("value", value), time.time(), by),
    )
    setting = TABLE.record(rows[0])
    if version is not None and setting.version != version + 1:
        raise VersionConflict(f"the setting {name!r}", setting.version - 1)
    yield bump(TOPIC)
    return setting


FILE: Final = "junction.db"
_POSTGRES: Final = ("postgresql", "postgres")


class StoreVault(Sealer, Signer, Protocol):
    """What the store needs of a vault: sealing and signing."""


class Store:
    """Everything that is kept. Every method of a shelf may raise StoreUnavailable."""

    def __init__(self, database: Database, vault: StoreVault, kept_events: int = KEPT) -> None:
        self._database = database
        self.servers = Servers(database, vault)
        self.tools = Tools(database)
        self.skills = Skills(database)
        self.classification = Classification(database)
        self.offers = Offers(database)
        self.history = History(database)
        self.keys = KeyTable(database, vault)
        self.settings = RuntimeSettings(database)
        self.events = Events(database, kept_events)
        self.audit = AuditTrail(database)

    @property
    def dialect(self) -> Dialect:
        return self._database.dialect

    async def generations(self) -> dict[str, int]:
        """A number for each topic (servers, tools, offers, keys, settings …) that grows with it.

        Cheap: this is how a process learns that another one has changed something.
        """
        query = Query("SELECT topic, value FROM counters")
        return await self._database.read(query, _generations)

    @property
    def unreadable(self) -> int:
        """How many rows could not be read when they were last asked for."""
        return len(UNREADABLE)

    async def close(self) -> None:
        await self._database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _generations(rows: Rows) -> dict[str, int]:
    """Read the generations; one that cannot be read counts as new each time."""
    found = {}
    for row in rows:
        try:
            found[row[0]] = int(row[1])
        except (TypeError, ValueError) as error:
            UNREADABLE.note("counters", row, error)
            found[row[0]] = -time.monotonic_ns()
    return found


def default_url(data_dir: Path) -> str:
    """The store that needs no setting up."""
    return f"sqlite:///{data_dir.absolute() / FILE}"


async def open_store(
    url: str,
    vault: StoreVault,
    *,
    kept_events: int = KEPT,
    connection_class: type[Any] | None = None,
    patience: float = PATIENCE,
) -> Store:
    """``sqlite:///path`` or ``postgresql://…``. Raises UsageError, StoreUnavailable.

    ``connection_class`` is what connections are made of, where it is not the driver's own.
    """
    how: dict[str, Any] = {"patience": patience}
    if connection_class is not None:
        how["connection_class"] = connection_class
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from mcp_junction.store.sqlite import SqliteDatabase

        path = _path(url)
        file = await SqliteDatabase.open(path, migrate(Dialect.SQLITE), **how)
        return Store(file, vault, kept_events)
    if scheme in _POSTGRES:
        from mcp_junction.store.postgres import PostgresDatabase

        served = await PostgresDatabase.open(url, migrate(Dialect.POSTGRES), **how)
        return Store(served, vault, kept_events)
    raise UsageError("--store takes sqlite:///PATH or postgresql://USER@HOST/DATABASE")


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite store; None for another kind. Raises UsageError."""
    return _path(url) if urlsplit(url).scheme == "sqlite" else None


def _path(url: str) -> Path:
    """``sqlite:///relative`` and ``sqlite:////absolute``; the third slash ends the empty host."""
    rest = unquote(url.removeprefix("sqlite:"))
    if not rest.startswith("///") or len(rest) == 3:
        raise UsageError("a SQLite store is written sqlite:///PATH")
    return Path(rest[3:])
