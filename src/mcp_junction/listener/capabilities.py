"""ServerSummary: joins the capabilities and instructions of all servers for clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from mcp_junction.calls.startup import ServerStartup
from mcp_junction.catalog.live_catalog import LiveCatalog
from mcp_junction.catalog.scope import Scope
from mcp_junction.config.settings import Settings
from mcp_junction.upstream.state import SERVING
from mcp_junction.upstream.upstream import Upstream

CAPABILITIES: Final[dict[str, Any]] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
    "logging": {},
}


class ServerSummary:
    """Capabilities and instructions of the servers in a client's Scope."""

    def __init__(
        self,
        servers: Mapping[str, Upstream],
        live_catalog: LiveCatalog,
        startup: ServerStartup,
        settings: Settings,
        junction_id: str,
    ) -> None:
        self._servers = servers
        self._live_catalog = live_catalog
        self._startup = startup
        self._tokens = settings.instructions_tokens
        self._wait = settings.instructions_wait_ms / 1000
        self.junction_id = junction_id
        """The id of this Junction, by which a cycle of them is found."""

    def capabilities(self, scope: Scope) -> dict[str, Any]:
        """What a stateless client can have: also the extensions of stateless servers."""
        extensions: dict[str, Any] = {}
        for _, server in self._servers_in(scope):
            if server.greeting is not None:
                extensions |= server.greeting.extensions
        return {**CAPABILITIES, "extensions": extensions} if extensions else CAPABILITIES

    def instructions(self, scope: Scope) -> str:
        """The instructions of the servers in a Scope, as far as they are known by now."""
        return join_instructions(self._servers_in(scope), self._tokens)

    @property
    def has_all_instructions(self) -> bool:
        """Whether every server has sent its instructions, or is not waited for."""
        return self._startup.check()

    async def wait_for_instructions(self) -> None:
        """Wait for the instructions of starting servers, at most ``instructions_wait_ms``."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._startup.wait(), self._wait)

    def reachable_junctions(self, scope: Scope) -> set[str]:
        """The ids of this Junction and of all Junctions behind the servers in a Scope."""
        up = [server for _, server in self._servers_in(scope) if server.state in SERVING]
        return {self.junction_id}.union(*(one.condition.reachable_junctions for one in up))

    def _servers_in(self, scope: Scope) -> list[tuple[str, Upstream]]:
        """The servers of which something is visible in a Scope."""
        shows = self._live_catalog.catalog.shows_server
        return [(key, server) for key, server in self._servers.items() if shows(scope, key)]


def join_instructions(servers: Sequence[tuple[str, Upstream]], tokens: int) -> str:
    """Join the instructions of servers: those of one as they are, of several under their names."""
    texts = [(key, server_instructions(server)) for key, server in servers]
    if len(texts) == 1:
        return texts[0][1]
    found = tuple((key, text) for key, text in texts if text)
    if not found:
        return ""
    from mcp_junction.catalog.instructions import join

    return join(found, tokens)


def server_instructions(server: Upstream) -> str:
    """Return one server's instructions, cleaned; empty while it is down."""
    greeting = server.greeting
    if server.link is None or greeting is None or not greeting.instructions:
        return ""
    # Imported where it is used: most servers say nothing, and its patterns take milliseconds.
    from mcp_junction.catalog.instructions import clean

    return clean(greeting.instructions)
