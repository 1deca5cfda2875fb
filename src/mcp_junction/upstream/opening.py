"""LinkOpener: opens a link to a server over the transport that its definition names."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.errors import Phase, ServerError
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.upstream.child_env import child_env
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.stdio import ReadBudget, StdioLink
from mcp_junction.upstream.upstream import Upstream
from mcp_junction.upstream.warden import Warden


class LinkOpener:
    """Opens the links of all servers."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        identity: str,
        warden: Warden,
        stalls: StallSweep | None = None,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._identity = identity
        self._warden = warden
        self._stalls = stalls
        self._read_budget = ReadBudget()

    async def __call__(self, upstream: Upstream) -> Link:
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
                    definition, upstream, limit, clock=upstream.clock, stalls=self._stalls
                )
            link = SseLink(definition, upstream, limit, stalls=self._stalls)
        except ValueError as error:
            raise ServerError(definition.key, Phase.STARTUP, str(error)) from None
        await link.start()
        return link
