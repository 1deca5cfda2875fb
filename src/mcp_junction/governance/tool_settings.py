"""ToolSettings: the operator's settings of all tools, in memory, and the risk that follows.

It also knows which tools ever called themselves destructive. It reads and writes no store.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw

from mcp_junction.policy.risk import Risk, assess, says_destructive
from mcp_junction.policy.tool_settings import ALL_TOOLS, ToolSetting

_OfServer = dict[str, ToolSetting]


class ToolSettings:
    """The settings of tools by server id and the server's own name for the tool."""

    __slots__ = ("_by_server", "_destructive", "generation")

    def __init__(self, settings: Iterable[ToolSetting] = ()) -> None:
        self._by_server: dict[str, _OfServer] = {}
        self._destructive: set[tuple[str, str]] = set()
        """The (server's id, tool's name) of what ever had ``destructiveHint: true``."""
        self.generation = 0
        """Another number after each change: what was made of the settings is out of date."""
        self.replace_all(settings)

    def of(self, server_id: str, tool_name: str) -> ToolSetting | None:
        """Return the setting of a tool, if there is one."""
        found = self._by_server.get(server_id)
        return None if found is None else found.get(tool_name)

    def risk_of(self, server_id: str, tool_name: str, annotations: Raw | None) -> Risk:
        """Assess a tool by its name, its annotations now and before, and the operator's word."""
        setting = self.of(server_id, tool_name)
        return assess(
            tool_name,
            is_destructive=says_destructive(annotations),
            was_destructive=(server_id, tool_name) in self._destructive,
            operator=setting.risk if setting is not None else None,
        )

    def note_destructive(self, server_id: str, tool_names: Iterable[str]) -> None:
        """Remember that these tools said they destroy, whatever they say from now on."""
        new = {(server_id, name) for name in tool_names} - self._destructive
        if new:
            self._destructive |= new
            self.generation += 1

    def forget_destructive(self, server_id: str, tool_name: str) -> None:
        """Believe the annotations of a tool again: an operator approved its definition."""
        self._destructive.discard((server_id, tool_name))
        self.generation += 1

    @property
    def unverified(self) -> int:
        """How many settings are not known because their signature is wrong."""
        return sum(one.is_unverified for some in self._by_server.values() for one in some.values())

    def is_unverified(self, server_id: str, tool_name: str) -> bool:
        """Whether a setting of a tool, or of all tools of its server, is not known."""
        found = (self.of(server_id, name) for name in (tool_name, ALL_TOOLS))
        return any(one.is_unverified for one in found if one is not None)

    def of_server(self, server_id: str) -> list[ToolSetting]:
        """Return all settings of a server's tools, seen or not."""
        return list(self._by_server.get(server_id, {}).values())

    def versions_of(self, server_id: str, tool_name: str) -> str | None:
        """Return the compatible versions of a tool: its own, or those for all of its server."""
        for name in (tool_name, ALL_TOOLS):
            setting = self.of(server_id, name)
            if setting is not None and setting.versions is not None:
                return setting.versions
        return None

    def put(self, setting: ToolSetting) -> None:
        """Use this setting from now on."""
        self._by_server.setdefault(setting.server_id, {})[setting.tool_name] = setting
        self.generation += 1

    def replace_all(self, settings: Iterable[ToolSetting]) -> set[str]:
        """Use these settings, and no others, from now on; return the servers that have others."""
        before, after = self._by_server, dict[str, _OfServer]()
        for one in settings:
            after.setdefault(one.server_id, {})[one.tool_name] = one
        self._by_server = after
        self.generation += 1
        servers = before.keys() | after.keys()
        return {server for server in servers if before.get(server) != after.get(server)}

    def forget_server(self, server_id: str) -> None:
        """Drop all that is known of the tools of a server that was removed for good.

        One that is only absent from the config file keeps it: it may come back.
        """
        self._by_server.pop(server_id, None)
        self._destructive = {tool for tool in self._destructive if tool[0] != server_id}
        self.generation += 1
