"""RuntimeSettings: a table of versioned JSON values, for tests of what all tables have."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from mcp_junction.errors import VersionConflict
from mcp_junction.store.database import Query, Script, bump
from mcp_junction.store.table import StoreTable, Table, transaction


class SettingRecord(msgspec.Struct, frozen=True):
    """A setting that can change while the program runs."""

    name: str
    value: Any
    version: int
    updated_at: float
    updated_by: str


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
