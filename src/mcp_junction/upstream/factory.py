"""ServerFactory: makes the Upstream of a server, with all that its connections need.

It opens their links, each over the transport that its definition names, and owns what all servers
share: the warden, and what the first client says of itself, for which handshakes wait.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import Phase, ServerError
from mcp_junction.resilience.clock import Clock
from mcp_junction.resilience.read_budget import ReadBudget
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import Supervision, resolve
from mcp_junction.upstream.child_env import child_env
from mcp_junction.upstream.events import ServerListeners
from mcp_junction.upstream.handshake import ConnectPolicy, Hello
from mcp_junction.upstream.headstart import Headstart
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.stdio import StdioLink
from mcp_junction.upstream.upstream import Upstream
from mcp_junction.upstream.warden import Warden

if TYPE_CHECKING:
    from mcp_junction.upstream.tokens import TokenSource, TokenSources

MAX_CONNECTING: Final = 10
"""Servers that the service connects to at the same time."""
_REMOTE_TIMEOUT: Final = 5.0
"""Seconds that connecting to a remote server may take in the service."""


class ServerFactory:
    """Makes servers."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        clock: Clock,
        stalls: StallSweep,
        supervision: Supervision,
        headstart: Headstart | None = None,
        *,
        supervised: bool = False,
        token_sources: TokenSources | None = None,
    ) -> None:
        """``supervised``: servers that end are started again, a few at a time."""
        self.junction_id = os.urandom(8).hex()
        """The id of this Junction, by which a cycle of them is found."""
        self._token_sources = token_sources
        self._settings = config.settings
        self._clock = clock
        self._supervision = supervision
        self._restarts = supervised or config.settings.restart
        self._slots = asyncio.Semaphore(MAX_CONNECTING) if supervised else None
        self._warden = Warden(headstart)
        self._environ = environ
        self._identity = config.identity
        self._stalls = stalls
        self._read_budget = ReadBudget()
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()

    def make(self, definition: ServerDefinition, listeners: ServerListeners) -> Upstream:
        return Upstream(
            definition,
            opener=self._open_link,
            hello=self._hello,
            listeners=listeners,
            policy=self._policy_for(definition),
            clock=self._clock,
            tokens=self._source_for(definition),
        )

    def _source_for(self, definition: ServerDefinition) -> TokenSource | None:
        if self._token_sources is None or definition.transport == "stdio":
            return None
        return self._token_sources.source(definition)

    def _policy_for(self, definition: ServerDefinition) -> ConnectPolicy:
        settings = self._settings
        timeout = settings.start_timeout_ms / 1000
        is_remote = definition.transport != "stdio"
        if self._slots is not None and is_remote:
            timeout = min(timeout, _REMOTE_TIMEOUT)
        # A remote server is not ours to start: it may come back by itself.
        restarts = self._restarts or is_remote
        return ConnectPolicy(
            start_timeout=timeout,
            restart=restarts if definition.restart is None else definition.restart,
            slots=self._slots,
            supervision=self._supervision,
            name=settings.name,
            version=settings.version,
            junction_id=self.junction_id,
        )

    def greet(self, hello: Hello) -> None:
        """Let the servers' handshakes begin, as the client that ``hello`` describes."""
        resolve(self._hello, hello)

    async def close(self) -> None:
        """End the warden, once all servers are gone."""
        await self._warden.close()
        if not self._hello.done():
            self._hello.cancel()

    # -- the links of all servers

    async def _open_link(self, upstream: Upstream) -> Link:
        definition = upstream.definition
        if definition.fault:
            raise ServerError(definition.key, Phase.STARTUP, definition.fault)
        limit = self._settings.max_line_bytes
        if definition.transport != "stdio":
            return await self._open_remote(upstream, limit)
        if definition.is_registered:
            self._check_program(definition)
        inherit = self._settings.inherit_env and not definition.is_registered
        env = child_env(definition, self._environ, self._identity, inherit=inherit)
        link = StdioLink(
            definition, upstream, limit, self._read_budget, self._stalls, upstream.give_up
        )
        await link.start(env, self._warden)
        return link

    def _check_program(self, definition: ServerDefinition) -> None:
        """Raise ServerError for a program that may not be run for a registered server."""
        # Imported where they are used: servers of the config file need no check.
        import shutil

        from mcp_junction.policy.programs import parse_allow_list, program_refusal

        executable = shutil.which(definition.command) or definition.command
        why = program_refusal(definition, parse_allow_list(self._settings.stdio_allow), executable)
        if why is not None:
            raise ServerError(definition.key, Phase.STARTUP, why)

    async def _open_remote(self, upstream: Upstream, limit: int) -> Link:
        # Imported where they are used: most configs have no remote server.
        from mcp_junction.upstream.http.link import HttpLink
        from mcp_junction.upstream.http.sse_link import SseLink

        definition = upstream.definition
        try:
            if definition.transport == "http" and not upstream.quirks.is_older_transport:
                return HttpLink(
                    definition,
                    upstream,
                    limit,
                    clock=upstream.clock,
                    stalls=self._stalls,
                    tokens=upstream.tokens,
                    read_budget=self._read_budget,
                )
            link = SseLink(
                definition,
                upstream,
                limit,
                stalls=self._stalls,
                tokens=upstream.tokens,
                read_budget=self._read_budget,
            )
        except ValueError as error:
            raise ServerError(definition.key, Phase.STARTUP, str(error)) from None
        await link.start()
        return link
