"""Junction: the composition root, the only module that knows every room.

It builds servers, catalog, pipeline and listener from a Config, is the Observer of the servers and
the Backend of the listeners, and swaps the Snapshot when something changes. It decides nothing
about a single call.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Raw

from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.pipeline import owner_pipeline
from mcp_junction.calls.snapshot import Snapshot
from mcp_junction.catalog.discovery import discover_tools
from mcp_junction.catalog.view import Catalog, Offering
from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.errors import Phase, ServerError
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import frames, names
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import LATEST_HANDSHAKE, METHOD_NOT_FOUND
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.sessions.session import Session
from mcp_junction.subscriptions.coalescer import Coalescer
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.events import ServerChanged, Sink, fan_out
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.child_env import child_env
from mcp_junction.upstream.hello import Hello
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.server import Terms, Upstream
from mcp_junction.upstream.state import ServerState
from mcp_junction.upstream.stdio import StdioLink
from mcp_junction.upstream.warden import Warden

log = logging.getLogger("mcp_junction.app")

_SERVING = (ServerState.CONNECTED, ServerState.DEGRADED)


class Junction:
    """Everything, put together. Use as ``async with Junction(config) as junction``."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str] | None = None,
        sinks: Sequence[Sink] = (),
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.settings: Settings = config.settings
        self.servers: dict[str, Upstream] = {}
        self.sessions: set[Session] = set()
        self.tasks = TaskScope("junction")
        self._owners = TaskScope("servers")
        self._environ = os.environ if environ is None else environ
        self._sink = fan_out(sinks)
        self._clock = clock or SystemClock()
        self._warden = Warden()
        self._deadlines = Deadlines(self._clock)
        self._handle = owner_pipeline(self._clock, self._deadlines, self._sink)
        self._snapshot = Snapshot(self._first_catalog(), self._handle)
        self._swapped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._log_level: bytes | None = None
        self._changes = Coalescer(self._tell_list_changed)
        self._rediscovering: dict[str, bool] = {}

    # -- life

    async def __aenter__(self) -> Junction:
        self.tasks.spawn(self._deadlines.run())
        for definition in self.config.servers:
            upstream = self.servers[definition.key] = self._upstream(definition)
            self._owners.spawn(upstream.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every server and every task; returns when they are gone."""
        self._changes.close()
        for session in self.sessions:
            session.close("Junction is ending")
        for upstream in self.servers.values():
            await upstream.stop()
        await self._owners.settle(self.settings.drain_ms / 1000)
        await self._owners.close()
        await self.tasks.close()
        await self._warden.close()
        if not self._hello.done():
            self._hello.cancel()

    def _upstream(self, definition: ServerDefinition) -> Upstream:
        restart = definition.restart
        return Upstream(
            definition,
            opener=self._open,
            hello=self._hello,
            observer=self,
            terms=Terms(
                start_timeout=self.settings.start_timeout_ms / 1000,
                restart=self.settings.restart if restart is None else restart,
            ),
            clock=self._clock,
        )

    async def _open(self, upstream: Upstream) -> StdioLink:
        definition = upstream.definition
        if definition.transport != "stdio":
            message = "this version reaches stdio servers only; a url cannot be served yet"
            raise ServerError(definition.key, Phase.STARTUP, message)
        env = child_env(
            definition, self._environ, self.config.identity, inherit=self.settings.inherit_env
        )
        link = StdioLink(definition.key, upstream, self.settings.max_line_bytes)
        await link.start(definition, env, self._warden)
        return link

    def _first_catalog(self) -> Catalog:
        return Catalog(
            canonical=Spelling(self.settings.separator or names.STDIO.separator),
            timeout=self.settings.timeout / 1000,
            page_size=self.settings.page_size,
        )

    # -- sessions (the Backend of listeners)

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def spelling(self) -> Spelling:
        """How names are written for a client nothing is known about."""
        alone = self.settings.prefix == "auto" and len(self.servers) == 1
        separator = self.settings.separator or names.STDIO.separator
        return Spelling(separator, prefixed=self.settings.prefix != "never" and not alone)

    def open_session(
        self, send: Callable[[bytes], None], offer: Callable[[bytes], None] | None = None
    ) -> Session:
        """A conversation with the person who started this process."""
        session = Session(LOCAL_OWNER, self.spelling, send, offer)
        self.sessions.add(session)
        return session

    def introduced(self, session: Session) -> None:
        if self._hello.done():
            return
        relayed = {
            key: raw
            for key, raw in session.capabilities.items()
            if key in ("roots", "sampling", "elicitation")
        }
        self.greet(
            Hello(
                name=self.settings.name,
                version=self.settings.version,
                protocol_version=session.protocol_version or LATEST_HANDSHAKE,
                capabilities=msgspec.json.encode(relayed),
            )
        )

    def greet(self, hello: Hello | None = None) -> None:
        """Let the servers' handshakes begin."""
        if not self._hello.done():
            self._hello.set_result(hello or Hello(self.settings.name, self.settings.version))

    @property
    def is_settled(self) -> bool:
        return all(upstream.settled.is_set() for upstream in self.servers.values())

    async def settled(self) -> None:
        waits = [self.tasks.spawn(server.settled.wait()) for server in self.servers.values()]
        try:
            if waits:
                await asyncio.wait(waits, timeout=self.settings.list_wait_ms / 1000)
        finally:
            for wait in waits:
                wait.cancel()

    async def offered(self, name: str, spelling: Spelling) -> None:
        settled = self.tasks.spawn(self.settled())
        try:
            while not settled.done() and self._snapshot.catalog.view(spelling).find(name) is None:
                either: set[asyncio.Future[None]] = {settled, self._swapped}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            settled.cancel()

    def to_servers(self, capability: str | None, method: str, params: Raw | bytes) -> None:
        for upstream in self.servers.values():
            if upstream.link is not None and (capability is None or upstream.offers(capability)):
                upstream.link.notify(method, params)

    async def set_log_level(self, params: bytes) -> None:
        self._log_level = params
        await asyncio.gather(*map(self._tell_log_level, self.servers.values()))

    async def _tell_log_level(self, upstream: Upstream) -> None:
        if self._log_level is not None and upstream.offers("logging"):
            timeout = self.settings.start_timeout_ms / 1000
            await upstream.request("logging/setLevel", self._log_level, timeout)

    # -- the Observer of servers

    def changed(self, upstream: Upstream) -> None:
        if upstream.state not in _SERVING and upstream.key in self._snapshot.catalog.offerings:
            self._swap(self._snapshot.catalog.without(upstream.key))
        if self._sink is not None:
            detail = upstream.error.message if upstream.error is not None else None
            self._sink(ServerChanged(upstream.key, upstream.state.value, detail))

    async def connected(self, upstream: Upstream) -> None:
        await self._discover(upstream)
        await self._tell_log_level(upstream)

    async def _discover(self, upstream: Upstream) -> None:
        timeout = self.settings.start_timeout_ms / 1000
        offering = Offering(upstream, await discover_tools(upstream, timeout))
        if upstream.link is None:
            return  # it went away while it was being read
        self._swap(self._snapshot.catalog.with_offering(offering, list(self.servers)))

    def heard(self, upstream: Upstream, frame: Frame) -> None:
        if frame.method == "notifications/tools/list_changed":
            self._rediscover(upstream)
        elif frame.method == "notifications/message":
            level = frames.text(frames.members(frame.params).get("level")) or ""
            for session in self.sessions:
                session.log(level, frame.params)

    async def asked(self, upstream: Upstream, frame: Frame) -> Outcome:
        """In stdio mode there is one client, so a server's question can only be for it."""
        sessions = [session for session in self.sessions if session.is_open]
        if len(sessions) != 1:
            return outcomes.failed(METHOD_NOT_FOUND, f"there is no client to ask {frame.method}")
        return await sessions[0].ask(frame.method, frame.params)

    # -- changes

    def _rediscover(self, upstream: Upstream) -> None:
        """Read its list anew; a change during that is read after it, not beside it."""
        running = upstream.key in self._rediscovering
        self._rediscovering[upstream.key] = running
        if not running and upstream.link is not None:
            self.tasks.spawn(self._rediscovered(upstream))

    async def _rediscovered(self, upstream: Upstream) -> None:
        try:
            while True:
                self._rediscovering[upstream.key] = False
                await self._discover(upstream)
                if not self._rediscovering[upstream.key]:
                    return
        except ServerError as error:
            log.warning("%s; its list stays as it was", error)
        finally:
            del self._rediscovering[upstream.key]

    def _swap(self, catalog: Catalog) -> None:
        self._snapshot = Snapshot(catalog, self._handle)
        self._swapped.set_result(None)
        self._swapped = asyncio.get_running_loop().create_future()
        self._changes.changed()

    def _tell_list_changed(self) -> None:
        for session in self.sessions:
            if session.listed not in (None, self._snapshot.generation):
                session.notify("notifications/tools/list_changed")
