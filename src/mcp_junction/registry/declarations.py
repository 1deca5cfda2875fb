"""Declarations: the tools that servers were registered with, in memory, whether listed or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from mcp_junction.catalog.items import ListItem
from mcp_junction.registry.tool_storage import to_item
from mcp_junction.store.tool_settings import DeclaredTool


class Declared(msgspec.Struct, frozen=True):
    """A declared tool: its definition as a list would have it, and its version."""

    item: ListItem
    version: str | None


_NONE: Final[Mapping[str, Declared]] = {}


class Declarations:
    """The declared tools of all servers, by server id and tool name."""

    def __init__(self) -> None:
        self._by_server: dict[str, dict[str, Declared]] = {}

    def of(self, server_id: str) -> Mapping[str, Declared]:
        """Return what a server has declared."""
        return self._by_server.get(server_id, _NONE)

    def put(self, server_id: str, tools: Iterable[DeclaredTool]) -> None:
        """Take what a server declares now in place of what it declared before."""
        self._by_server[server_id] = {
            one.tool_name: Declared(to_item(one.tool_name, one.definition), one.version)
            for one in tools
        }

    def replace_all(self, tools: Iterable[DeclaredTool]) -> set[str]:
        """Take these for all servers; return the servers that have declared something else."""
        before, grouped = self._by_server, dict[str, list[DeclaredTool]]()
        for one in tools:
            grouped.setdefault(one.server_id, []).append(one)
        self._by_server = {}
        for server_id, some in grouped.items():
            self.put(server_id, some)
        after = self._by_server
        servers = before.keys() | after.keys()
        return {server for server in servers if before.get(server) != after.get(server)}
