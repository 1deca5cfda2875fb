"""Store: all tables of one database, and how it is opened by URL.

The serving lock lets at most one process serve from a SQLite file; commands do not take it. It is a
file beside the database, locked with flock: the operating system releases it when the process ends,
however it ends. Its content only names the holder. PostgreSQL needs no lock: its replicas learn of
each other's changes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from mcp_junction.errors import UsageError, VersionConflict
from mcp_junction.store.audit import AuditTrail
from mcp_junction.store.call_metrics import CallMetricTable
from mcp_junction.store.classification import Classification, ToolVectors
from mcp_junction.store.credentials import CredentialTables
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
from mcp_junction.store.events import KEPT, DeliveryTable, Events
from mcp_junction.store.grants import ApprovalTable
from mcp_junction.store.keys import KeyTable, RevokedSubjects
from mcp_junction.store.policy import PolicyTables
from mcp_junction.store.protected import ProtectedStore, StoreVault, VaultUsers
from mcp_junction.store.records import SettingRecord
from mcp_junction.store.resilience import CircuitTable, ClaimTable, EscalationTable, LimitTable
from mcp_junction.store.servers import History, Servers
from mcp_junction.store.skills import Skills, Suggestions
from mcp_junction.store.table import UNREADABLE, StoreTable, Table, transaction
from mcp_junction.store.tool_settings import DeclaredTools, ToolSettingTable
from mcp_junction.store.tools import Offers, Tools

if TYPE_CHECKING:
    from mcp_junction.store.pgvector import PgVectors

TABLE = Table("settings", SettingRecord, json={"value"})
TOPIC = "settings"


class RuntimeSettings(StoreTable):
    """Settings by name, each a JSON value with a version."""

    async def all(self) -> dict[str, SettingRecord]:
        """Read all settings, by name."""
        return {setting.name: setting for setting in await self._read(TABLE, "ORDER BY name")}

    async def find(self, name: str) -> SettingRecord | None:
        """Read one setting, if it is set."""
        return await self._read_first(TABLE, "WHERE name = ?", name)

    @transaction()
    def put(
        self, name: str, value: Any, by: str, *, version: int | None = None
    ) -> Script[SettingRecord]:
        """Set it; ``version`` is the one it was read with, 0 for none. Raises VersionConflict."""
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
_HAS_PGVECTOR: Final = Query("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")


class Store(AbstractAsyncContextManager["Store"]):
    """All tables of one database. Every method of a table may raise StoreUnavailable."""

    def __init__(self, database: Database, vault: StoreVault, kept_events: int = KEPT) -> None:
        self._database = database
        self.protected = ProtectedStore(database)
        self.vault_users = VaultUsers(database)
        self.tools = Tools(database)
        self.tool_settings = ToolSettingTable(database, vault)
        self.declared_tools = DeclaredTools(database)
        self.skills = Skills(database)
        self.classification = Classification(database)
        self.vectors = ToolVectors(database)
        self.suggestions = Suggestions(database)
        self.pgvectors: PgVectors | None = None
        """A vector store in the same database, where that has the extension."""
        self.offers = Offers(database)
        self.history = History(database)
        self.keys = KeyTable(database, vault)
        self.policy = PolicyTables(database, vault, self.keys)
        self.credentials = CredentialTables(database, vault)
        self.servers = Servers(database, vault, self._drop_server)
        self.settings = RuntimeSettings(database)
        self.events = Events(database, kept_events)
        self.audit = AuditTrail(database)
        self.limits = LimitTable(database, vault)
        self.circuits = CircuitTable(database, vault)
        self.call_metrics = CallMetricTable(database, vault)
        self.claims = ClaimTable(database, vault)
        self.escalations = EscalationTable(database, vault)
        self.approvals = ApprovalTable(database, vault)
        self.webhook_deliveries = DeliveryTable(database, vault)
        self.revoked_subjects = RevokedSubjects(database, vault)

    def _drop_server(self, server_id: str, at: float) -> Script[None]:
        yield from self.policy.drop_server(server_id, at)
        yield from self.credentials.drop_server(server_id)

    @property
    def dialect(self) -> Dialect:
        return self._database.dialect

    async def generations(self) -> dict[str, int]:
        """Read the counter of each topic (servers, tools, offers, keys …); each change adds to it.

        Cheap: this is how a process learns that another one has changed something.
        """
        query = Query("SELECT topic, value FROM counters")
        return await self._database.read(query, _generations)

    @property
    def unreadable(self) -> int:
        """How many damaged rows were met so far."""
        return len(UNREADABLE)

    async def close(self) -> None:
        await self._database.close()

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
    """Make the URL of the default store: a SQLite file in the data directory."""
    return f"sqlite:///{data_dir.absolute() / FILE}"


async def open_store(
    url: str,
    vault: StoreVault,
    *,
    kept_events: int = KEPT,
    connection_class: type[Any] | None = None,
    patience: float = PATIENCE,
) -> Store:
    """Open the store ``sqlite:///path`` or ``postgresql://…``. Raises UsageError, StoreUnavailable.

    ``connection_class`` replaces the driver's own class of connections.
    """
    options: dict[str, Any] = {"patience": patience}
    if connection_class is not None:
        options["connection_class"] = connection_class
    scheme = urlsplit(url).scheme
    database: Database
    if scheme == "sqlite":
        from mcp_junction.store.sqlite import SqliteDatabase

        database = await SqliteDatabase.open(_path(url), migrate(Dialect.SQLITE), **options)
    elif scheme in _POSTGRES:
        from mcp_junction.store.postgres import PostgresDatabase

        database = await PostgresDatabase.open(url, migrate(Dialect.POSTGRES), **options)
    else:
        raise UsageError("--store takes sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    store = Store(database, vault, kept_events)
    try:
        has_vectors = store.dialect is Dialect.POSTGRES and await database.read(_HAS_PGVECTOR, bool)
    except BaseException:  # also when cancelled: nobody else would close it
        await store.close()
        raise
    if has_vectors:
        from mcp_junction.store.pgvector import PgVectors

        store.pgvectors = PgVectors(database)
    return store


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite store; None for another kind. Raises UsageError."""
    return _path(url) if urlsplit(url).scheme == "sqlite" else None


def _path(url: str) -> Path:
    """Read the path of ``sqlite:///relative`` or ``sqlite:////absolute``."""
    rest = unquote(url.removeprefix("sqlite:"))
    if not rest.startswith("///") or len(rest) == 3:
        raise UsageError("a SQLite store is written sqlite:///PATH")
    return Path(rest[3:])


# -- the right to serve from a file

SUFFIX: Final = ".serving"


class ServingProcess(msgspec.Struct, frozen=True):
    """The process that has the lock."""

    pid: int
    since: str
    """When it took the lock, for a message."""


@contextmanager
def hold_serving_lock(database: Path) -> Iterator[None]:
    """Hold the right to serve from a file. Raises UsageError when another process has it."""
    real = database.resolve()  # links to one file share its lock
    path = real.with_name(real.name + SUFFIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        words = f"{path} cannot be opened: {error.strerror}; it must be writable"
        raise UsageError(words) from None
    try:
        _lock(descriptor, database)
        me = ServingProcess(os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S %z"))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(me) + b"\n", 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)  # the file stays: removing it could remove another process's lock


def _lock(descriptor: int, database: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UsageError(
            f"{database} is being served already, by {_name_holder(descriptor)};"
            " stop that one, or give this one another --data-dir or --store"
        ) from None


def _name_holder(descriptor: int) -> str:
    try:
        holder = msgspec.json.decode(os.pread(descriptor, 1_000, 0), type=ServingProcess)
    except msgspec.MsgspecError:  # the holder has not written its name yet
        return "another process"
    return f"the process {holder.pid}, since {holder.since}"
