"""Settings: the shelf of what can be set while the program runs. What a start needs is config/."""

from __future__ import annotations

import time
from typing import Any

from mcp_junction.errors import VersionConflict
from mcp_junction.store.database import Database, Query, Script, bump
from mcp_junction.store.records import SettingRecord
from mcp_junction.store.table import Table

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
