"""Junction: the composition root, the only module that knows every room.

It builds servers, catalog, pipeline and sessions from a Config, is the ListenerHost, and hands out
the Snapshot that is current. It decides nothing about a single call.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mcp_junction.calls.call import Call, Handler, Snapshot
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.events import CallSink
from mcp_junction.calls.pipeline import (
    UNGOVERNED,
    ExtraStage,
    GovernedStages,
    PipelineParts,
    build_handlers,
)
from mcp_junction.calls.stages.own import OwnTools
from mcp_junction.calls.startup import ServerStartup
from mcp_junction.calls.tool_search import ToolSearch
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, shown_to, spelling_at
from mcp_junction.catalog.live_catalog import ListChange, LiveCatalog, Review
from mcp_junction.catalog.scope import Scope, Scopes
from mcp_junction.config.load import Config
from mcp_junction.config.settings import UNLIMITED, quota_of
from mcp_junction.eras.links import EraLinks
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.eras.resume import Resume, ResumedClaims
from mcp_junction.eras.tickets import ResolveTask, Seal
from mcp_junction.eras.url_questions import UrlQuestions
from mcp_junction.listener.answers import ServerSummary
from mcp_junction.policy.principal import LOCAL_OWNER, AccessPolicy, Principal
from mcp_junction.policy.quotas import Quotas
from mcp_junction.protocol import names
from mcp_junction.protocol.names import Spelling
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.sessions.clients import ClientRelay, ConnectedClients
from mcp_junction.sessions.server_messages import ServerMessages
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.tasks import Supervision, TaskScope
from mcp_junction.upstream.events import ServerChange, ServerChanged, ServerSink, log_change
from mcp_junction.upstream.events import log as telemetry
from mcp_junction.upstream.factory import ServerFactory
from mcp_junction.upstream.handshake import EVERYTHING_RELAYED, Hello
from mcp_junction.upstream.headstart import Headstart
from mcp_junction.upstream.servers import ServerSet

if TYPE_CHECKING:
    from mcp_junction.calls.stages.audit import CallAudit
    from mcp_junction.calls.tracing import Tracing
    from mcp_junction.governance.governance import Governance
    from mcp_junction.upstream.tokens import TokenSources


class Junction:
    """The gateway, composed of its parts. Use as ``async with Junction(config) as junction``."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str] | None = None,
        call_sinks: Sequence[CallSink] = (),
        server_sinks: Sequence[ServerSink] = (),
        review: Review | None = None,
        policy: AccessPolicy | None = None,
        governance: Governance | None = None,
        clock: Clock | None = None,
        canonical: Spelling = names.STDIO,
        supervised: bool = False,
        supervision: Supervision | None = None,
        headstart: Headstart | None = None,
        state_keys: Callable[[], Sequence[bytes]] | None = None,
        starts: bool = True,
        audit: CallAudit | None = None,
        extra_stages: Sequence[ExtraStage] = (),
        token_sources: TokenSources | None = None,
    ) -> None:
        self.config = config
        self.governance = governance
        self.settings = settings = config.settings
        self.clock = clock or SystemClock()
        self.environ = os.environ if environ is None else environ
        self.tasks = TaskScope("junction", supervision)
        self.scopes = self._make_scopes(policy)
        self.quotas = Quotas(quota_of(settings) if supervised else UNLIMITED)
        self.stalls = StallSweep(self.clock)
        self.clients = ConnectedClients()
        self.messages = ServerMessages(self.clients, self.tasks)
        self._starts = starts
        self._separator = settings.separator or canonical.separator
        self._factory = self._make_factory(headstart, supervised, token_sources)
        self._deadlines = Deadlines(self.clock, settings.idle_timeout_ms / 1000)
        self.parked_calls = self._make_parked_calls(state_keys, audit)
        self.live_catalog = self._make_catalog(review)
        self.servers = self._make_servers(server_sinks)
        self.relay = ClientRelay(self.servers, self.clients, self.tasks)
        wait = settings.list_wait_ms / 1000
        self.startup = ServerStartup(self.live_catalog, self.servers, self.tasks, wait)
        self.junction_id = self._factory.junction_id
        everything = self.servers, self.live_catalog, self.startup
        self.summary = ServerSummary(*everything, settings, self.junction_id)
        self.tool_search = ToolSearch(self.tasks, self.live_catalog.catalog)
        if governance is not None:
            governance.server_ids.servers = self.servers
        self._handlers = self._make_handlers(call_sinks, audit, extra_stages)
        self.snapshot = self._take_snapshot()  # what clients are served by now

    # -- parts

    def _make_scopes(self, policy: AccessPolicy | None) -> Scopes:
        if policy is None and self.governance is not None:
            policy = self.governance.policy
        return Scopes(policy, lists_differ=bool(self.config.agents or self.config.clients))

    def _make_factory(
        self, headstart: Headstart | None, supervised: bool, token_sources: TokenSources | None
    ) -> ServerFactory:
        common = self.environ, self.clock, self.stalls, self.tasks.supervision, headstart
        return ServerFactory(
            self.config, *common, supervised=supervised, token_sources=token_sources
        )

    def _make_parked_calls(
        self, keys: Callable[[], Sequence[bytes]] | None, audit: CallAudit | None
    ) -> ParkedCalls:
        return ParkedCalls(
            self.clock,
            Seal(keys),
            self.settings.parked_ms / 1000,
            self.quotas.quota.parked,
            audit.record if audit is not None else None,
            self.governance.claims.give_up if self.governance is not None else None,
        )

    def _make_catalog(self, review: Review | None) -> LiveCatalog:
        first = Catalog(
            canonical=Spelling(self._separator),
            timeout=self.settings.timeout / 1000,
            page_size=self.settings.page_size,
            exposure=self.settings.exposure,
            exposure_tokens=self.settings.exposure_tokens,
            favourites=tuple(self.settings.favourites.replace(",", " ").split()),
        )
        timeout = self.settings.start_timeout_ms / 1000
        return LiveCatalog(first, [], self.tasks, timeout, self._on_catalog_changed, review)

    def _make_servers(self, others: Sequence[ServerSink]) -> ServerSet:
        """Make the set of servers, with the sinks of their events in order."""
        sinks = [self.live_catalog.follow, self._on_servers_changed, self.messages.follow, *others]
        if telemetry.isEnabledFor(logging.DEBUG):
            sinks.append(log_change)
        steps = self.live_catalog.discover, self.messages.restore_server_state
        return ServerSet(self._factory.make, sinks, steps, self.messages, self.tasks.supervision)

    def _make_handlers(
        self,
        sinks: Sequence[CallSink],
        audit: CallAudit | None,
        extra_stages: Sequence[ExtraStage],
    ) -> Mapping[str, Handler]:
        is_strict = self.settings.audit == "strict"
        self.tracing = self._make_tracing()
        if self.tracing is not None:
            has_retries = self.governance is not None
            extra_stages = (*extra_stages, *self.tracing.stages(has_retries))
            sinks = (*sinks, self.tracing.observe)
        approvals = claims = wait_for_approval = None
        if self.governance is not None:
            from mcp_junction.calls.failures import EscalateFailures
            from mcp_junction.calls.stages.idempotency import settle_resumed

            sinks = (*sinks, EscalateFailures(self.governance.escalations))
            held = self.governance.claims
            claims = ResumedClaims(held, partial(settle_resumed, held))
            approvals = self.governance.approvals
            wait_for_approval = approvals.wait_until_decided
        limits = [one.result_tokens for one in self.config.endpoints.values()]
        if self.settings.result_tokens or any(limits):
            from mcp_junction.calls.stages.large_results import LargeResults

            shorten = LargeResults(self.clock, self.settings.result_tokens)
            extra_stages = (ExtraStage("record", shorten), *extra_stages)
        resume = Resume(self.parked_calls, self._deadlines, claims, wait_for_approval)
        return build_handlers(
            PipelineParts(
                self.clock,
                self._deadlines,
                EraLinks(resume, self._deadlines, self.tasks),
                resume,
                ResolveTask(self.parked_calls.seal),
                OwnTools(self.tool_search),
                self.clients.subscriptions,
                sinks if audit is None else (audit.record, *sinks),
                audit.intend if audit is not None and is_strict else None,
                extra_stages,
                self._make_governed_stages(audit),
                UrlQuestions(self.parked_calls, self.tasks, approvals).ask,
            )
        )

    def _make_tracing(self) -> Tracing | None:
        """Make what traces calls, where they are to be traced."""
        settings = self.settings
        if not settings.otlp_endpoint:
            return None
        from mcp_junction.calls.otlp_sender import OtlpSender
        from mcp_junction.calls.tracing import Tracing

        endpoint, name, version = settings.otlp_endpoint, settings.name, settings.version
        sender = OtlpSender(endpoint, name, version, self.clock)
        return Tracing(sender, settings.otlp_sample, self.clock)

    def _make_governed_stages(self, audit: CallAudit | None) -> GovernedStages:
        if self.governance is None:
            return UNGOVERNED
        from mcp_junction.calls.governed import make_governed_stages

        note_first = self.tracing.count_first if self.tracing is not None else None
        return make_governed_stages(self.governance, self.clock, self.settings, audit, note_first)

    # -- life

    async def __aenter__(self) -> Junction:
        self.tasks.supervise("deadlines", self._deadlines.run)
        self.tasks.supervise("parked calls", self.parked_calls.run)
        self.tasks.supervise("stalled connections", self.stalls.run)
        if self.tracing is not None:
            self.tasks.supervise("tracing", self.tracing.sender.run, is_vital=False)
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
        await self._factory.close()

    # -- sessions (the ListenerHost)

    def spelling(
        self, endpoint: Endpoint = EVERYTHING, principal: Principal = LOCAL_OWNER
    ) -> Spelling:
        """Return how names are spelt at an endpoint for a client that is not known yet."""
        scope, servers = self.scopes.of(principal, endpoint), len(self.servers)
        if scope.grants is not None:  # servers that are hidden from the client do not count
            shows = self.snapshot.catalog.shows_server
            servers = sum(shows(scope, key) for key in self.servers)
        return spelling_at(endpoint, self.settings, self._separator, servers)

    def open_session(
        self,
        send: Callable[[bytes], None],
        offer: Callable[[bytes], None] | None = None,
        principal: Principal = LOCAL_OWNER,
        endpoint: Endpoint = EVERYTHING,
    ) -> Session:
        """Open a client's session; by default for the owner of this process."""
        usage = self.quotas.of(principal)
        spelling = self.spelling(endpoint, principal)
        session = Session(principal, spelling, send, offer, endpoint, usage, self.scopes)
        self.clients.sessions.add(session)
        return session

    def note_client(self, client: Session | StatelessClient) -> None:
        shown = shown_to(client.endpoint, self.config, client.client, client.principal.id)
        client.shown_at = shown
        self.greet(client.hello())

    def greet(self, hello: Hello = EVERYTHING_RELAYED) -> None:
        """Let the servers' handshakes begin."""
        self._factory.greet(hello)

    @property
    def is_settled(self) -> bool:
        return self.startup.is_over or self.startup.check()

    async def wait_until_settled(self, scope: Scope | None = None) -> None:
        await self.startup.wait(scope)

    async def wait_for_offer(self, call: Call) -> None:
        await self.startup.wait_for(call)

    # -- changes

    def _take_snapshot(self) -> Snapshot:
        return Snapshot(self.live_catalog.catalog, self._handlers, dict(self.servers))

    def _on_servers_changed(self, event: ServerChanged) -> None:
        if event.change in (ServerChange.ADDED, ServerChange.REPLACED):  # without lists as yet
            self.snapshot = self._take_snapshot()

    def _on_catalog_changed(self, changes: Sequence[ListChange]) -> None:
        self.tool_search.follow(self.live_catalog.catalog)
        self.snapshot = self._take_snapshot()
        self.clients.announce(changes, self.snapshot.generation)
