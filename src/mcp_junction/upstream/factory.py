"""ServerFactory: makes the Upstream of a server, with all that its connections need.

It owns what all servers share: the warden, the opener of links, and what the first client says of
itself, for which handshakes wait.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.resilience.clock import Clock
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import Supervision
from mcp_junction.upstream.connect_policy import MAX_CONNECTING, policy_for
from mcp_junction.upstream.events import ServerListeners
from mcp_junction.upstream.headstart import Headstart
from mcp_junction.upstream.hello import Hello
from mcp_junction.upstream.opening import LinkOpener
from mcp_junction.upstream.upstream import Upstream
from mcp_junction.upstream.warden import Warden


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
    ) -> None:
        """``supervised``: servers that end are started again, a few at a time."""
        self.junction_id = os.urandom(8).hex()
        """The id of this Junction, by which a cycle of them is found."""
        self._settings = config.settings
        self._clock = clock
        self._supervision = supervision
        self._restarts = supervised or config.settings.restart
        self._slots = asyncio.Semaphore(MAX_CONNECTING) if supervised else None
        self._warden = Warden(headstart)
        self._opener = LinkOpener(self._settings, environ, config.identity, self._warden, stalls)
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()

    def make(self, definition: ServerDefinition, listeners: ServerListeners) -> Upstream:
        terms = self._restarts, self._slots, self._supervision, self.junction_id
        return Upstream(
            definition,
            opener=self._opener,
            hello=self._hello,
            listeners=listeners,
            policy=policy_for(definition, self._settings, *terms),
            clock=self._clock,
        )

    def greet(self, hello: Hello) -> None:
        """Let the servers' handshakes begin, as the client that ``hello`` describes."""
        if not self._hello.done():
            self._hello.set_result(hello)

    async def close(self) -> None:
        """End the warden, once all servers are gone."""
        await self._warden.close()
        if not self._hello.done():
            self._hello.cancel()
