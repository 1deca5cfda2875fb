"""HttpServer: uvicorn's server with our protocol; and how it stops without losing a connection.

Between the accept of a connection and its ``connection_made`` the loop turns once or twice. asyncio
drops one whose server is closed in between, without closing it; on uvloop it comes to be known
after everybody was told to leave, and stays. ``stop_accepting`` waits for those turns.

ServerCertificate: the certificate that it shows, read again when its files change. Connections that
are open keep the one they were made with; new ones get the new one. A pair of files that does not
fit together is reported, and the certificate before it stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterable
from typing import Any, Final

import uvicorn

from mcp_junction.errors import UsageError
from mcp_junction.listener.http.exchange import Patience
from mcp_junction.listener.http.host import App
from mcp_junction.listener.http.protocol import HttpProtocol
from mcp_junction.policy.quotas import Quotas
from mcp_junction.resilience.read_budget import ReadBudget
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.http.dialer import fingerprint, refuse_password

log = logging.getLogger("mcp_junction.http")

KEEP_ALIVE: Final = 75
GRACE: Final = 5
"""Seconds that responses have to be sent when the server ends."""
_TURNS: Final = 4
"""What the loop needs to make a connection of what it accepted, and to begin what serves it."""
CERTIFICATE_EVERY: Final = 1.0
"""Seconds between looks at the files of a certificate."""


class ServerCertificate:
    """A certificate with its key, and the TLS context that shows it."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises UsageError for files that cannot be used."""
        self._files = certificate, key
        self._rejected: tuple[object, ...] = ()
        self._seen = self._fingerprint()
        try:
            self.context = self._load()
        except OSError as error:  # errors of TLS, too
            raise UsageError(_explain(self._files, error)) from None

    def refresh(self) -> bool:
        """Show the files' certificate from now on, if they have changed; whether it is another."""
        seen = self._fingerprint()
        if seen == self._seen or None in seen:
            return False
        try:
            self._load()  # the context that is in use must not be left with half of a pair
            self.context.load_cert_chain(*self._files)
        except OSError as error:
            if seen != self._rejected:
                log.error("%s; the certificate before it stays", _explain(self._files, error))
            self._rejected = seen
            return False
        self._seen = seen
        log.warning("the certificate of %s is shown from now on", self._files[0])
        return True

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while True:
            await asyncio.sleep(CERTIFICATE_EVERY)
            self.refresh()

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files, password=refuse_password)
        return context

    def _fingerprint(self) -> tuple[object, ...]:
        return tuple(map(fingerprint, self._files))


def make_certificate(certificate: str, key: str) -> ServerCertificate | None:
    """Make the certificate of a service; None where it has none. Raises UsageError."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise UsageError("--tls-cert and --tls-key belong together; give both")
    return ServerCertificate(certificate, key)


def _explain(files: tuple[str, str], error: OSError) -> str:
    why = error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror
    return f"the TLS certificate {files[0]} with the key {files[1]} cannot be used: {why or error}"


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
            timeout_graceful_shutdown=GRACE,
            backlog=4096,
        )
        config.load()
        config.ssl = certificate.context if certificate is not None else None
        super().__init__(config)
        self.servers = []
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Have ``serve`` close what is idle, finish what runs, and return."""
        self.should_exit = True
        self._stopping.set()

    async def wait_until_started(self, serving: asyncio.Task[None]) -> tuple[str, int]:
        """Wait until it listens; its host, as in a URL, and port. Raises UsageError when it cannot.

        ``serving`` is the task that runs ``serve``.
        """
        while not self.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.01)
        host, port = self.config.host, self.config.port
        if serving.done():
            raise UsageError(
                f"cannot listen on {host}:{port}, for the reason above: often something else"
                " listens there, or this machine has no such address; choose with --host and --port"
            )
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

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn looks ten times a second, for a header that we do not send."""
        await self._stopping.wait()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """End all connections, as soon as each has sent its response: uvicorn waits 0.1 s more."""
        await stop_accepting(self.servers)  # only those are told to leave that are known
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await _turns()
        try:
            async with asyncio.timeout(GRACE):
                while self._is_serving():  # noqa: ASYNC110 - uvicorn has no event
                    await asyncio.sleep(0.01)
        except TimeoutError:
            log.error("requests still ran %d s after the end was asked for", GRACE)
            for task in self.server_state.tasks:
                task.cancel()

    def _is_serving(self) -> bool:
        return bool(self.server_state.connections or self.server_state.tasks)

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


def protocol_for(
    tasks: TaskScope,
    max_body: int,
    patience: Patience | None = None,
    stalls: StallSweep | None = None,
    quotas: Quotas | None = None,
) -> type[HttpProtocol]:
    """Make the protocol class for uvicorn, with its limits and the owner of its tasks.

    ``stalls`` cuts clients that read nothing; ``quotas`` counts unsent bytes per principal.
    """
    patience = patience or Patience()
    own = {"tasks": tasks, "max_body": max_body, "patience": patience, "read_budget": ReadBudget()}
    return type("Protocol", (HttpProtocol,), {**own, "stalls": stalls, "quotas": quotas})
