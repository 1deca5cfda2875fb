"""HttpServer: uvicorn's server with our protocol; and how it stops without losing a connection.

Between the accept of a connection and its ``connection_made`` the loop turns once or twice. asyncio
drops one whose server is closed in between, without closing it; on uvloop it comes to be known
after everybody was told to leave, and stays. ``stop_accepting`` waits for those turns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, Final

import uvicorn

from mcp_junction.errors import UsageError
from mcp_junction.listener.http.forwarded import App
from mcp_junction.listener.http.protocol import HttpProtocol
from mcp_junction.listener.http.tls import ServerCertificate

KEEP_ALIVE: Final = 75
_TURNS: Final = 4
"""What the loop needs to make a connection of what it accepted, and to begin what serves it."""


class HttpServer(uvicorn.Server):
    """uvicorn, without its own ideas about signals and about ending the program."""

    servers: list[asyncio.Server]

    def __init__(
        self,
        app: App,
        host: str,
        port: int,
        protocol: type[HttpProtocol],
        certificate: ServerCertificate | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            interface="asgi3",
            loop="none",
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=5,
            backlog=4096,
        )
        config.load()
        config.ssl = certificate.context if certificate is not None else None
        super().__init__(config)
        self.servers = []

    async def wait_until_started(self, serving: asyncio.Task[None]) -> tuple[str, int]:
        """Wait until it listens; its host, as in a URL, and port. Raises UsageError when it cannot.

        ``serving`` is the task that runs ``serve``.
        """
        while not self.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.01)
        host, port = self.config.host, self.config.port
        if serving.done():
            raise UsageError(f"cannot listen on {host}:{port}; is something else there already?")
        bound: int = self.servers[0].sockets[0].getsockname()[1]
        return f"[{host}]" if ":" in host else host, bound

    async def serve(self, sockets: list[Any] | None = None) -> None:
        try:
            await super().serve(sockets)
        except SystemExit:
            pass  # it cannot listen, and has said why
        finally:
            for server in self.servers:  # whoever is cancelled listens no longer, either
                server.close()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        await stop_accepting(self.servers)  # it tells only those to leave that it knows
        await super().shutdown(sockets)

    def install_signal_handlers(self) -> None:
        pass

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()


async def stop_accepting(servers: Iterable[asyncio.Server]) -> None:
    """Close servers; then every connection they accepted is known to its protocol."""
    servers = list(servers)
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            with contextlib.suppress(NotImplementedError):  # Windows accepts in another way
                loop.remove_reader(listening.fileno())
    await _turns()
    for server in servers:
        server.close()
    await _turns()


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
