"""Junction: the composition root, the only module that knows every room.

It builds servers, catalog, pipeline and sessions from a Config, is the Backend of the listeners,
and hands out the Snapshot that is current. It decides nothing about a single call.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.events import CallSink
from mcp_junction.calls.pipeline import ExtraStage, PipelineParts, build_handlers
from mcp_junction.calls.snapshot import Snapshot
from mcp_junction.calls.stages.own import OwnTools
from mcp_junction.calls.startup import ServerStartup
from mcp_junction.calls.tool_search import ToolSearch
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, spelling_at
from mcp_junction.catalog.live_catalog import ListChange, LiveCatalog, Review
from mcp_junction.catalog.scope import Scope, Scopes
from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import UNLIMITED, Settings, quota_of
from mcp_junction.eras.links import EraLinks
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.eras.resume import Resume
from mcp_junction.eras.tasks import ResolveTask
from mcp_junction.eras.tickets import Seal
from mcp_junction.listener.capabilities import join_instructions, stateless_capabilities
from mcp_junction.policy.access import AccessPolicy
from mcp_junction.policy.principal import LOCAL_OWNER, Principal
from mcp_junction.policy.quotas import Quotas
from mcp_junction.protocol import names
from mcp_junction.protocol.names import Spelling
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.sessions.clients import ClientRelay, ConnectedClients
from mcp_junction.sessions.server_messages import ServerMessages
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen, StatelessClient, subscribed
from mcp_junction.tasks import Supervision, TaskScope
from mcp_junction.upstream.connect_policy import MAX_CONNECTING, policy_for
from mcp_junction.upstream.events import ServerListeners, ServerSink, log_change
from mcp_junction.upstream.events import log as telemetry
from mcp_junction.upstream.headstart import Headstart
from mcp_junction.upstream.hello import EVERYTHING_RELAYED, Hello
from mcp_junction.upstream.opening import LinkOpener
from mcp_junction.upstream.server import Upstream
from mcp_junction.upstream.servers import ServerSet
from mcp_junction.upstream.state import SERVING
from mcp_junction.upstream.warden import Warden

if TYPE_CHECKING:
    from mcp_junction.calls.stages.audit import CallAudit


class Junction:
    """Everything, put together. Use as ``async with Junction(config) as junction``."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str] | None = None,
        call_sinks: Sequence[CallSink] = (),
        server_sinks: Sequence[ServerSink] = (),
        review: Review | None = None,
        policy: AccessPolicy | None = None,
        clock: Clock | None = None,
        canonical: Spelling = names.STDIO,
        supervised: bool = False,
        supervision: Supervision | None = None,
        headstart: Headstart | None = None,
        state_key: bytes | None = None,
        starts: bool = True,
        audit: CallAudit | None = None,
        extra_stages: Sequence[ExtraStage] = (),
    ) -> None:
        self.config = config
        self.settings: Settings = config.settings
        self.tasks = TaskScope("junction", supervision)
        self.clock = clock or SystemClock()
        self._starts = starts
        self.environ = os.environ if environ is None else environ
        self.scopes = Scopes(policy)
        self._separator = self.settings.separator or canonical.separator
        self._warden = Warden(headstart)
        self.stalls = StallSweep(self.clock)
        self._opening = LinkOpener(
            self.settings, self.environ, config.identity, self._warden, self.stalls
        )
        slots = asyncio.Semaphore(MAX_CONNECTING) if supervised else None
        self.junction_id = os.urandom(8).hex()
        restart = supervised or self.settings.restart
        self._connect_terms = restart, slots, self.tasks.supervision, self.junction_id
        self._deadlines = Deadlines(self.clock)
        self.clients = ConnectedClients()
        self.messages = ServerMessages(self.clients, self.tasks)
        self.quotas = Quotas(quota_of(self.settings) if supervised else UNLIMITED)
        parked = self.settings.parked_ms / 1000
        self.parked_calls = ParkedCalls(
            self.clock,
            Seal(state_key),
            parked,
            self.quotas.quota.parked,
            audit.record if audit is not None else None,
        )
        self.live_catalog = LiveCatalog(
            self._first_catalog(),
            [],
            self.tasks,
            self.settings.start_timeout_ms / 1000,
            self._catalog_changed,
            review,
        )
        sinks = [self.live_catalog.follow, self.messages.follow, *server_sinks]
        if telemetry.isEnabledFor(logging.DEBUG):
            sinks.append(log_change)
        self.servers = ServerSet(self._make_server, sinks, self.tasks.supervision)
        self.relay = ClientRelay(self.servers, self.clients, self.tasks)
        self.finding = ToolSearch(self.tasks, self.live_catalog.catalog)
        resume = Resume(self.parked_calls, self._deadlines)
        self._handlers = build_handlers(
            PipelineParts(
                self.clock,
                self._deadlines,
                EraLinks(resume, self._deadlines),
                resume,
                ResolveTask(self.parked_calls.seal),
                OwnTools(self.finding),
                self.clients.subscriptions,
                call_sinks if audit is None else (audit.record, *call_sinks),
                audit.intend if audit is not None and self.settings.audit == "strict" else None,
                extra_stages,
            )
        )
        self._snapshot = Snapshot(self.live_catalog.catalog, self._handlers, self.servers)
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        wait = self.settings.list_wait_ms / 1000
        self._startup = ServerStartup(self.live_catalog, self.servers, self.tasks, wait)

    # -- life

    async def __aenter__(self) -> Junction:
        self.tasks.supervise("deadlines", self._deadlines.run)
        self.tasks.supervise("parked calls", self.parked_calls.run)
        self.tasks.supervise("stalled connections", self.stalls.run)
        for definition in self.config.servers if self._starts else ():
            self.servers.add(definition)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every server and every task; returns when they are gone."""
        self.clients.close("Junction is ending")
        self.parked_calls.end(lambda _: True, "Junction is ending")
        await self.servers.close(self.settings.drain_ms / 1000)
        await self.tasks.close()
        await self._warden.close()
        if not self._hello.done():
            self._hello.cancel()

    def _make_server(self, definition: ServerDefinition, sink: ServerSink) -> Upstream:
        return Upstream(
            definition,
            opener=self._opening,
            hello=self._hello,
            listeners=ServerListeners(
                sink, (self.live_catalog.discover, self.messages.remind), self.messages
            ),
            policy=policy_for(definition, self.settings, *self._connect_terms),
            clock=self.clock,
        )

    def _first_catalog(self) -> Catalog:
        return Catalog(
            canonical=Spelling(self._separator),
            timeout=self.settings.timeout / 1000,
            page_size=self.settings.page_size,
            exposure=self.settings.exposure,
        )

    # -- sessions (the Backend of listeners)

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def spelling(self, endpoint: Endpoint = EVERYTHING) -> Spelling:
        """How names are written at an endpoint for a client nothing is known about."""
        return spelling_at(endpoint, self.settings, self._separator, len(self.servers))

    def open_session(
        self,
        send: Callable[[bytes], None],
        offer: Callable[[bytes], None] | None = None,
        principal: Principal = LOCAL_OWNER,
        endpoint: Endpoint = EVERYTHING,
    ) -> Session:
        """A conversation; by default with the person who started this process."""
        usage = self.quotas.of(principal)
        spelling = self.spelling(endpoint)
        session = Session(principal, spelling, send, offer, endpoint, usage, self.scopes)
        self.clients.sessions.add(session)
        return session

    def end_session(self, session: Session) -> None:
        self.relay.end_session(session)

    def reachable_junctions(self, scope: Scope) -> set[str]:
        shown = (u.condition for _, u in self._servers_in(scope) if u.state in SERVING)
        return {self.junction_id}.union(*(one.reachable_junctions for one in shown))

    def _servers_in(self, scope: Scope) -> list[tuple[str, Upstream]]:
        """The servers of which something is visible in a Scope."""
        shows = self.snapshot.catalog.shows_server
        return [(key, server) for key, server in self.servers.items() if shows(scope, key)]

    # -- stateless clients

    def capabilities(self, scope: Scope) -> dict[str, Any]:
        greetings = [u.greeting for _, u in self._servers_in(scope) if u.greeting is not None]
        return stateless_capabilities(greetings)

    def instructions(self, scope: Scope) -> str:
        return join_instructions(self._servers_in(scope), self.settings.instructions_tokens)

    @property
    def has_all_instructions(self) -> bool:
        return self.is_settled

    async def wait_for_instructions(self) -> None:
        try:
            await asyncio.wait_for(
                self.wait_until_settled(), self.settings.instructions_wait_ms / 1000
            )
        except TimeoutError:
            pass

    async def subscribe(self, listen: Listen, uris: Sequence[str]) -> list[str]:
        return await subscribed(listen, self.snapshot, uris)

    def add_listen(self, listen: Listen) -> None:
        self.clients.listens.add(listen)

    def remove_listen(self, listen: Listen) -> None:
        self.relay.end_listen(listen)

    def note_client(self, client: Session | StatelessClient) -> None:
        self.greet(client.hello())

    def greet(self, hello: Hello = EVERYTHING_RELAYED) -> None:
        """Let the servers' handshakes begin."""
        if not self._hello.done():
            self._hello.set_result(hello)

    @property
    def is_settled(self) -> bool:
        return self._startup.is_over or self._startup.check()

    async def wait_until_settled(self) -> None:
        await self._startup.wait()

    async def wait_for_offer(self, call: Call) -> None:
        await self._startup.wait_for(call)

    def notify_servers(self, session: Session, method: str, params: Raw | bytes) -> None:
        self.relay.notify_servers(session, method, params)

    async def update_log_levels(self) -> None:
        await self.relay.update_log_levels()

    # -- changes

    def _catalog_changed(self, changes: Sequence[ListChange]) -> None:
        self.finding.follow(self.live_catalog.catalog)
        self._snapshot = Snapshot(self.live_catalog.catalog, self._handlers, self.servers)
        self.clients.announce(changes, self._snapshot.generation)
