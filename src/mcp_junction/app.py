"""Junction: the composition root, the only module that knows every room.

It builds servers, catalog, pipeline and sessions from a Config, is the Observer of the servers and
the Backend of the listeners, and hands out the Snapshot that is current. It decides nothing about a
single call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.crossing import Crossing
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.events import CallSink
from mcp_junction.calls.own import OwnTools
from mcp_junction.calls.pipeline import Stage, pipeline
from mcp_junction.calls.snapshot import Snapshot
from mcp_junction.calls.startup import ServerStartup
from mcp_junction.calls.tool_search import ToolSearch
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, spelling_at
from mcp_junction.catalog.fleet import Fleet
from mcp_junction.catalog.kinds import ALL
from mcp_junction.catalog.live_catalog import LiveCatalog
from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import UNLIMITED, Settings, quota_of
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.eras.tickets import Seal
from mcp_junction.listener.capabilities import join_instructions, stateless_capabilities
from mcp_junction.policy.principal import LOCAL_OWNER, Principal
from mcp_junction.policy.quotas import Quotas
from mcp_junction.protocol import names
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import LOG_LEVELS, LOG_MESSAGE
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.sessions.server_messages import ServerMessages
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import Listen, StatelessClient, is_told_by, subscribed
from mcp_junction.sessions.subscriptions import Coalescer, Subscriptions
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.events import ServerChanged, Sink, fan_out
from mcp_junction.upstream.connect_policy import ATTEMPTS, policy_for
from mcp_junction.upstream.headstart import Headstart
from mcp_junction.upstream.hello import EVERYTHING_RELAYED, Hello
from mcp_junction.upstream.opening import LinkOpener
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.server import Upstream
from mcp_junction.upstream.state import SERVING, ServerState
from mcp_junction.upstream.warden import Warden

_CHANGES = frozenset(kind.changed for kind in ALL)


class Junction:
    """Everything, put together. Use as ``async with Junction(config) as junction``."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str] | None = None,
        sinks: Sequence[Sink] = (),
        call_sinks: Sequence[CallSink] = (),
        clock: Clock | None = None,
        canonical: Spelling = names.STDIO,
        supervised: bool = False,
        headstart: Headstart | None = None,
        state_key: bytes | None = None,
        starts: bool = True,
        stages: Sequence[Stage] = (),
    ) -> None:
        self.config = config
        self.settings: Settings = config.settings
        self.sessions: set[Session] = set()
        self.listens: set[Listen] = set()
        self.tasks = TaskScope("junction")
        self.clock = clock or SystemClock()
        self._starts = starts
        self.environ = os.environ if environ is None else environ
        self._sink = fan_out(sinks)
        self._separator = self.settings.separator or canonical.separator
        self._warden = Warden(headstart)
        self.stalls = StallSweep(self.clock)
        self._opening = LinkOpener(
            self.settings, self.environ, config.identity, self._warden, self.stalls
        )
        attempts = asyncio.Semaphore(ATTEMPTS) if supervised else None
        self.junction_id = os.urandom(8).hex()
        restart = supervised or self.settings.restart
        self._terms = restart, attempts, self.tasks.supervision, self.junction_id
        self._deadlines = Deadlines(self.clock)
        self._subscriptions = Subscriptions()
        self.messages = ServerMessages(self.sessions, self._subscriptions)
        self.quotas = Quotas(quota_of(self.settings) if supervised else UNLIMITED)
        parked = self.settings.parked_ms / 1000
        self.parked_calls = ParkedCalls(
            self.clock, Seal(state_key), parked, self.quotas.quota.parked
        )
        crossing = Crossing(self.parked_calls, self.settings.name, self.settings.version)
        self.on_changed: Callable[[Upstream], None] | None = None
        self._paths = pipeline(
            self.clock, self._deadlines, self._subscriptions, crossing, call_sinks, stages
        )
        self.live_catalog = LiveCatalog(
            self._first_catalog(),
            [],
            self.tasks,
            self.settings.start_timeout_ms / 1000,
            self._catalog_changed,
        )
        self.fleet = Fleet(
            self.live_catalog, self._upstream, self._subscriptions, self.tasks.supervision
        )
        self.servers: Mapping[str, Upstream] = self.fleet.servers
        self.finding = ToolSearch(self.tasks, self.live_catalog.catalog)
        self._own = OwnTools(self.finding, self.settings.name, self.settings.version)
        self._snapshot = Snapshot(self.live_catalog.catalog, *self._paths, self._own, self.servers)
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        wait = self.settings.list_wait_ms / 1000
        self._startup = ServerStartup(self.live_catalog, self.servers, self.tasks, wait)
        self._changes = {method: self._coalescer(method) for method in _CHANGES}
        self._changed_at: dict[str, int] = {}

    # -- life

    async def __aenter__(self) -> Junction:
        self.tasks.supervise("deadlines", self._deadlines.run)
        self.tasks.supervise("parked calls", self.parked_calls.run)
        self.tasks.supervise("stalled connections", self.stalls.run)
        for definition in self.config.servers if self._starts else ():
            self.fleet.add(definition)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every server and every task; returns when they are gone."""
        for coalescer in self._changes.values():
            coalescer.close()
        for session in self.sessions:
            session.close("Junction is ending")
        self.parked_calls.end(lambda _: True, "Junction is ending")
        await self.fleet.close(self.settings.drain_ms / 1000)
        await self.tasks.close()
        await self._warden.close()
        if not self._hello.done():
            self._hello.cancel()

    def _upstream(self, definition: ServerDefinition) -> Upstream:
        terms = policy_for(definition, self.settings, *self._terms)
        return Upstream(
            definition,
            opener=self._opening,
            hello=self._hello,
            observer=self,
            terms=terms,
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
        session = Session(principal, self.spelling(endpoint), send, offer, endpoint, usage)
        self.sessions.add(session)
        return session

    def end_session(self, session: Session) -> None:
        """A conversation is over."""
        self.sessions.discard(session)
        for upstream in self.servers.values():
            upstream.end_session(session)
        self._unsubscribe(session)

    def _unsubscribe(self, subscriber: object) -> None:
        """Someone is gone: servers need not tell any more what nobody else wants to hear."""
        for server, uri in self._subscriptions.drop(subscriber):
            upstream = self.servers.get(server)
            if upstream is not None and is_told_by(upstream, subscriber):
                self.tasks.spawn(self._stop_telling(upstream, uri))

    async def _stop_telling(self, upstream: Upstream, uri: str) -> None:
        if not self._subscriptions.names(upstream.key, uri):  # else someone has come meanwhile
            await upstream.unsubscribe(uri)

    def reachable_junctions(self, endpoint: Endpoint) -> set[str]:
        shown = (u for key, u in self.servers.items() if endpoint.admits_server(key))
        return {self.junction_id}.union(
            *(u.condition.reachable_junctions for u in shown if u.state in SERVING)
        )

    # -- stateless clients

    def capabilities(self, endpoint: Endpoint) -> dict[str, Any]:
        shown = (u for key, u in self.servers.items() if endpoint.admits_server(key))
        return stateless_capabilities(u.greeting for u in shown if u.greeting is not None)

    def instructions(self, endpoint: Endpoint) -> str:
        shown = [(key, u) for key, u in self.servers.items() if endpoint.admits_server(key)]
        return join_instructions(shown, self.settings.instructions_tokens)

    @property
    def has_all_instructions(self) -> bool:
        return self.is_settled

    async def wait_for_instructions(self) -> None:
        try:
            await asyncio.wait_for(self.settled(), self.settings.instructions_wait_ms / 1000)
        except TimeoutError:
            pass

    async def listening(self, listen: Listen, uris: Sequence[str]) -> list[str]:
        return await subscribed(listen, self.snapshot, uris)

    def acknowledged(self, listen: Listen) -> None:
        self.listens.add(listen)

    def listened(self, listen: Listen) -> None:
        self.listens.discard(listen)
        self._unsubscribe(listen)

    def introduced(self, client: Session | StatelessClient) -> None:
        self.greet(client.hello())

    def greet(self, hello: Hello = EVERYTHING_RELAYED) -> None:
        """Let the servers' handshakes begin."""
        if not self._hello.done():
            self._hello.set_result(hello)

    @property
    def is_settled(self) -> bool:
        return self._startup.is_over or self._startup.check()

    async def settled(self) -> None:
        await self._startup.wait()

    async def offered(self, call: Call) -> None:
        await self._startup.wait_for(call)

    def to_servers(self, session: Session, method: str, params: Raw | bytes) -> None:
        for shared in self.servers.values():
            for upstream in (shared, *shared.extra_links):
                whose = session if upstream.is_isolated else None
                if upstream.link is not None and upstream.session is whose:
                    upstream.link.notify(method, params)

    async def log_level_set(self) -> None:
        everyone = [u for shared in self.servers.values() for u in (shared, *shared.extra_links)]
        await asyncio.gather(*map(self._tell_log_level, everyone))

    async def _tell_log_level(self, upstream: Upstream) -> None:
        """A shared server is told the most curious client's level; each client gets its own."""
        sessions = self.sessions if upstream.session is None else {_session(upstream)}
        wanted = [one.log_level or 0 for one in sessions if one.is_open and one.may_call]
        if wanted:
            await upstream.set_log_level(LOG_LEVELS[min(wanted)], exactly=True)

    # -- the Observer of servers

    def changed(self, upstream: Upstream) -> None:
        if upstream.primary is not None or self.servers.get(upstream.key) is not upstream:
            return  # the life of a twin is nobody's news, nor the end of one that was replaced
        if upstream.state not in SERVING and not self._is_expected(upstream):
            self.live_catalog.remove(upstream)
        if self._sink is not None:
            wrong = upstream.error.message if upstream.error else upstream.condition.shortfall
            self._sink(ServerChanged(upstream.key, upstream.state.value, wrong or None))
        if self.on_changed is not None:
            self.on_changed(upstream)

    @staticmethod
    def _is_expected(upstream: Upstream) -> bool:
        """Whether it is connected to for the first time: what it offered before may be listed."""
        return upstream.state is ServerState.CONNECTING and not upstream.settled.is_set()

    async def connected(self, upstream: Upstream) -> None:
        if upstream.primary is None:
            await self.live_catalog.discover(upstream)
        await self._remind(upstream)

    def renewed(self, upstream: Upstream) -> None:
        if upstream.key in self.servers:
            self.live_catalog.announce(self.servers[upstream.key])
        self.tasks.spawn(self._remind(upstream))

    async def _remind(self, upstream: Upstream) -> None:
        """Tell a server again what it cannot remember across conversations."""
        if upstream.is_pooled:
            return  # what its callers want, each of their calls says
        if any(session.log_level for session in self.sessions):
            await self._tell_log_level(upstream)
        if upstream.session is None and upstream.primary is not None:
            return  # nobody subscribes there
        asked = self._subscriptions.of(upstream.key, upstream.session)
        every = {uri: self._subscriptions.names(upstream.key, uri) for uri in asked}
        wanted: list[str] = []
        for uri, subscribers in every.items():
            told = [one for one in subscribers if is_told_by(upstream, one)]
            wanted += [uri] if told else []
            for one in told:
                assert isinstance(one, Session | Listen)
                if upstream.current is not None:
                    upstream.current.users.note(one.principal)
        if upstream.is_stateless:  # all together are one request
            await asyncio.gather(*map(upstream.subscribe, wanted))
            return
        for uri in wanted:
            await upstream.subscribe(uri)

    def heard(self, upstream: Upstream, frame: Frame) -> None:
        if upstream.key not in self.servers:
            return  # it is being removed
        if frame.method in _CHANGES:
            self.live_catalog.announce(self.servers[upstream.key], frame.method)
        elif frame.method == LOG_MESSAGE:
            self.messages.log(upstream, frame)
        elif frame.method == "notifications/resources/updated":
            self.messages.tell_updated(upstream, frame)

    async def asked(self, upstream: Upstream, frame: Frame) -> Outcome:
        return await self.messages.ask(upstream, frame)

    def unattributed(self, upstream: Upstream, method: str) -> None:
        self.messages.count_unattributed(method)

    # -- changes

    def _catalog_changed(self, methods: set[str]) -> None:
        self.finding.follow(self.live_catalog.catalog)
        self._snapshot = Snapshot(self.live_catalog.catalog, *self._paths, self._own, self.servers)
        for method in methods:
            self._changed_at[method] = self._snapshot.generation
            self._changes[method].changed()

    def _coalescer(self, method: str) -> Coalescer:
        def tell() -> None:
            for session in self.sessions:
                seen = session.listed.get(method) if session.listed else None
                if seen is not None and seen < self._changed_at[method]:
                    session.notify(method)
            for listen in self.listens:
                if method in listen.announcements:
                    listen.notify(method)

        return Coalescer(tell)


def _session(upstream: Upstream) -> Session:
    assert isinstance(upstream.session, Session)
    return upstream.session
