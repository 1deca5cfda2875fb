"""ToolSettingTable: what operators set for tools, signed; DeclaredTools: what servers declared.

Settings that an older version kept unsigned, among the columns of ``tools``, are signed once in the
life of a store (``carry_over``). A row whose signature is wrong is not left out, as other signed
rows are: that would lift a restriction. It counts as a setting that disables its tool.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mcp_junction.errors import UnreadableRow
from mcp_junction.policy.tool_settings import ALL_TOOLS, SETTABLE, ToolSetting
from mcp_junction.store.database import (
    Batch,
    Database,
    Load,
    ProtectedRows,
    Query,
    Row,
    Rows,
    Script,
    bump,
)
from mcp_junction.store.protected import SignedRecord, SignedTable, StoreVault
from mcp_junction.store.table import StoreTable, Table, transaction
from mcp_junction.store.tools import lock_known_server

TOOL_SETTINGS_TOPIC: Final = "tool_settings"
_KEY: Final = ("server_id", "tool_name")
_ONE: Final = "WHERE server_id = ? AND tool_name = ?"
_STATE: Final = Query("SELECT mac FROM tool_setting_state WHERE id = 1")
_STATE_FORM: Final = b"state/carried over"


class ToolSettingRecord(SignedRecord, frozen=True):
    """The setting of one tool, as it is stored."""

    server_id: str
    tool_name: str
    enabled: bool | None = None
    risk: str | None = None
    read_only: bool | None = None
    idempotent: bool | None = None
    timeout_ms: int | None = None
    fallbacks: list[Any] = msgspec.field(default_factory=list)
    versions: str | None = None
    updated_at: float = 0.0
    updated_by: str = ""

    @property
    def setting(self) -> ToolSetting:
        """The setting itself. Raises ValidationError when it makes no sense."""
        fields = {name: getattr(self, name) for name in (*_KEY, *SETTABLE)}
        return msgspec.convert(fields, ToolSetting)


def _salvage(row: Row) -> ToolSettingRecord:
    """Make a record, without a signature, of a damaged row: left out, it would restrict nothing."""
    server_id, tool_name, *_ = row
    if not isinstance(server_id, str) or not isinstance(tool_name, str):
        raise UnreadableRow("a tool setting is so damaged that it is not known whose it is")
    return ToolSettingRecord(server_id, tool_name)


TABLE = Table(
    "tool_settings",
    ToolSettingRecord,
    json={"fallbacks"},
    flags={"enabled", "read_only", "idempotent"},
    salvage=_salvage,
    key=_KEY,
)
_UNSIGNED: Final = "SELECT {} FROM unsigned_tool_settings ORDER BY server_id, tool_name".format(
    ", ".join((*_KEY, *SETTABLE, "0", "''", "NULL"))
)


class ToolSettingTable(SignedTable[ToolSettingRecord]):
    """The settings of all tools."""

    _table = TABLE
    consequence = "disable tools of these servers until an operator sets them again"

    def __init__(self, database: Database, vault: StoreVault) -> None:
        super().__init__(database, vault)
        state = "tool_setting_state", ("id",), ("mac",), ("mac",)
        database.protected.append(ProtectedRows(*state, self._is_stale, self._renew_state))

    async def all(self) -> list[ToolSetting]:
        """Read all settings; one that is not validly signed is marked, and disables its tool."""
        query = TABLE.select("ORDER BY server_id, tool_name")
        return await self._database.read(query, self._settings)

    def _settings(self, rows: Rows) -> list[ToolSetting]:
        records = TABLE.records(rows)
        genuine = {id(record) for record in self._drop_unsigned(records)}
        return [
            record.setting
            if id(record) in genuine and _makes_sense(record)
            else ToolSetting(record.server_id, record.tool_name, False, is_unverified=True)
            for record in records
        ]

    @transaction()
    def change(
        self, server_id: str, tool_name: str, changes: Mapping[str, Any], by: str
    ) -> Script[ToolSettingRecord]:
        """Set these fields, and unset those that are None. Raises NotFound without such a server.

        A row on which nothing is set is removed. One that is not validly signed is replaced, and
        its tool stays disabled unless ``enabled`` is among the changes.
        """
        yield from lock_known_server(server_id)
        rows = yield TABLE.select(_ONE, (server_id, tool_name))
        found = self.genuine(rows)
        if found and _makes_sense(found[0]):
            record = found[0]
        else:
            is_disabled = bool(rows) and tool_name != ALL_TOOLS
            record = ToolSettingRecord(server_id, tool_name, False if is_disabled else None)
        record = msgspec.structs.replace(record, **changes, updated_at=time.time(), updated_by=by)
        if record.setting == ToolSetting(server_id, tool_name):
            yield Query(f"DELETE FROM tool_settings {_ONE}", (server_id, tool_name))
        else:
            yield self.put(record)
        yield bump(TOOL_SETTINGS_TOPIC)
        return record

    # -- signing

    async def unsigned(self) -> list[str] | None:
        """Name the tools with settings of an older version; None once these are carried over."""
        if self._says_done(await self._database.read(_STATE, list)):
            return None
        rows = await self._database.read(Query(_UNSIGNED), TABLE.records)
        return [f"{row.server_id}/{row.tool_name}" for row in rows]

    @transaction()
    def carry_over(self, by: str) -> Script[int]:
        """Sign the settings of an older version, once in the life of a store; return how many.

        Returns 0 as well when another process was first, or when there is a signed row already:
        then somebody must have removed the record of it.
        """
        yield bump(TOOL_SETTINGS_TOPIC)  # and lock it: no other process does this at the same time
        if self._says_done((yield _STATE)):
            return 0
        was_done = bool(self.genuine((yield TABLE.select())))
        rows = [] if was_done else TABLE.records((yield Query(_UNSIGNED)))
        now, count = time.time(), 0
        for row in rows:
            record = msgspec.structs.replace(row, updated_at=now, updated_by=by)
            known = yield Query("SELECT id FROM servers WHERE id = ?", (row.server_id,))
            if known and _makes_sense(record):
                yield self.put(record)
                count += 1
        yield Query(
            "INSERT INTO tool_setting_state (id, mac) VALUES (1, ?) ON CONFLICT (id)"
            " DO UPDATE SET mac = excluded.mac",
            (self._make_mac(_STATE_FORM),),
        )
        yield Query("DELETE FROM unsigned_tool_settings")
        return count

    def _says_done(self, state: Rows) -> bool:
        return bool(state) and self._verifies(_STATE_FORM, state[0][0])

    def _renew_state(self, row: Row) -> Mapping[str, Any] | None:
        return {"mac": self._make_mac(_STATE_FORM)} if self._says_done([row]) else None


def _makes_sense(record: ToolSettingRecord) -> bool:
    try:
        return bool(record.setting.tool_name)
    except msgspec.ValidationError:
        return False


class DeclaredTool(msgspec.Struct, frozen=True):
    """A tool that a server was registered with, whether the server lists it or not."""

    server_id: str
    tool_name: str
    definition: bytes
    """As a server would list it."""
    version: str | None = None


DECLARED_TABLE = Table("declared_tools", DeclaredTool)


class DeclaredTools(StoreTable):
    """The declared tools of all servers."""

    async def all(self, server_id: str | None = None) -> list[DeclaredTool]:
        """Read the declared tools of one server, or of all."""
        where, args = ("WHERE server_id = ?", [server_id]) if server_id else ("", [])
        return await self._read(DECLARED_TABLE, f"{where} ORDER BY server_id, tool_name", *args)

    @transaction()
    def replace(self, server_id: str, tools: Sequence[DeclaredTool]) -> Script[None]:
        """Store what a server declares, in place of what it declared before. Raises NotFound."""
        yield from lock_known_server(server_id)
        yield Batch("DELETE FROM declared_tools WHERE server_id = ?", [(server_id,)])
        if tools:
            yield Load(
                "declared_tools", DECLARED_TABLE.columns, [*map(DECLARED_TABLE.values, tools)]
            )
        yield bump(TOOL_SETTINGS_TOPIC)
