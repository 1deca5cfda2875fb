"""ToolSettings: the operator's settings of all tools, in memory. It reads and writes no store."""

from __future__ import annotations

from collections.abc import Iterable

from mcp_junction.policy.tool_settings import ToolSetting


class ToolSettings:
    """The settings of tools by server id and the server's own name for the tool."""

    __slots__ = ("_settings", "generation")

    def __init__(self, settings: Iterable[ToolSetting] = ()) -> None:
        self._settings: dict[tuple[str, str], ToolSetting] = {}
        self.generation = 0
        """Another number after each change: what was made of the settings is out of date."""
        self.replace_all(settings)

    def of(self, server_id: str, tool_name: str) -> ToolSetting | None:
        """Return the setting of a tool, if there is one."""
        return self._settings.get((server_id, tool_name))

    def of_server(self, server_id: str) -> list[ToolSetting]:
        """Return all settings of a server's tools, seen or not."""
        return [one for (server, _), one in self._settings.items() if server == server_id]

    def put(self, setting: ToolSetting) -> None:
        """Use this setting from now on."""
        self._settings[setting.server_id, setting.tool_name] = setting
        self.generation += 1

    def replace_all(self, settings: Iterable[ToolSetting]) -> None:
        """Use these settings, and no others, from now on."""
        self._settings = {(one.server_id, one.tool_name): one for one in settings}
        self.generation += 1

    def forget_server(self, server_id: str) -> None:
        """Drop the settings of a server that was removed."""
        self._settings = {key: one for key, one in self._settings.items() if key[0] != server_id}
        self.generation += 1
