"""Upstream: one server and its lifecycle, run by one owner task.

``run`` is that task: it connects, runs the connect steps (discovery), waits for the end of the link
and, when supervised, connects again. Nobody else opens or closes the link.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import EraError, Phase, ServerError
from mcp_junction.protocol import encode, versions
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import LIST_CHANGES, LOG_MESSAGE, METHOD_NOT_FOUND, Era
from mcp_junction.resilience import backoff
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import wait_unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.connecting import Connector, Gate, explain_end, report_failure
from mcp_junction.upstream.events import ServerChange, ServerChanged, ServerListeners
from mcp_junction.upstream.extra_links import ExtraLinks
from mcp_junction.upstream.handshake import ConnectPolicy, Greeting, Hello, own_meta
from mcp_junction.upstream.link import Link, send_own_request
from mcp_junction.upstream.listening import ServerListen
from mcp_junction.upstream.negotiation import ServerQuirks
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.state import SERVING, Condition, ServerState, can_follow

if TYPE_CHECKING:
    from mcp_junction.upstream.tokens import TokenSource

log = logging.getLogger("mcp_junction.upstream")

Opener = Callable[["Upstream"], Awaitable[Link]]


class Upstream:
    """A server behind us: its definition, its state and its link."""

    def __init__(
        self,
        definition: ServerDefinition,
        *,
        opener: Opener,
        hello: asyncio.Future[Hello],
        listeners: ServerListeners,
        policy: ConnectPolicy,
        clock: Clock,
        session: object = None,
        primary: Upstream | None = None,
        is_pooled: bool = False,
        tokens: TokenSource | None = None,
    ) -> None:
        self.definition = definition
        self.session = session  # the only one that may use it
        self.primary = primary  # its state and lists are public, those of extra links are not
        self.is_pooled = is_pooled  # whether callers without a session share it
        self.tokens = tokens  # of the subject that its links are for
        self.separates = definition.isolation == "per-session" or definition.is_per_agent
        self.policy = policy
        self.clock = clock
        self.state = ServerState.DISCONNECTED
        self.error: ServerError | None = None
        self._wanted_credential = False  # by its last error
        self.condition = Condition()
        self.greeting: Greeting | None = None
        self.link: Link | None = None
        """The link for calls; None until the server is connected."""
        self.current: Link | None = None  # also while the server has not greeted us yet
        self.start_seconds: float | None = None
        self.starts = 0
        self.failures = 0  # attempts to connect, in a row
        self.log_level: str | None = None  # what we asked the server for
        self.refused_eras: set[Era] = set()  # those it is not called in
        self.settled = asyncio.Event()
        """Set once an attempt to connect has succeeded or failed."""
        self.is_removed = False  # what it still sends is dropped then
        like = primary.quirks if primary is not None else None
        self.quirks: ServerQuirks = ServerQuirks(definition.transport, like)
        self._open, self._listeners = opener, listeners
        self._stop, self._retry_now, self._given_up = (asyncio.Event() for _ in range(3))
        self._why_given_up = ""
        self._gate = Gate(clock)
        self._meta = own_meta(policy.name, policy.version)
        self._listening = ServerListen(
            definition.key, self._meta, clock, self.on_renewed, policy, lists=primary is None
        )
        self._connector = Connector(policy, hello, self._stop, self.quirks)
        self.extra_links = ExtraLinks(self, self._make_extra)

    @property
    def key(self) -> str:
        return self.definition.key

    def offers(self, capability: str) -> bool:
        """Whether the server has declared a capability."""
        return self.greeting is not None and capability in self.greeting.capabilities

    @property
    def is_shut(self) -> bool:
        """Whether it takes no calls, because it is stopped or held."""
        return self._stop.is_set() or self._gate.is_held

    @property
    def is_stateless(self) -> bool:
        """Whether it is talked to in the stateless era."""
        return self.current is not None and self.current.era is Era.STATELESS

    @property
    def is_busy(self) -> bool:
        """Whether it is being connected to, or an answer is awaited."""
        if self.link is None:
            return not self.settled.is_set() or self._gate.waiting > 0
        return self.link.is_busy

    @property
    def calls(self) -> int:
        """How many calls are under way or wait, on all of its links."""
        own = self.current.calls if self.current is not None else 0
        return own + self._gate.waiting + sum(extra.calls for extra in self.extra_links.every)

    def redefine(self, definition: ServerDefinition) -> None:
        """Take over a definition that needs no new connection; its key may differ."""
        self.definition = definition
        if self.current is not None:
            self.current.rename(definition.key)
        self._listening.server = definition.key
        for extra in self.extra_links.every:
            extra.redefine(definition)

    def _make_extra(self, **more: Any) -> Upstream:
        return Upstream(
            self.definition,
            opener=self._open,
            listeners=self._listeners,
            policy=msgspec.structs.replace(self.policy, slots=None),  # a call waits for it
            clock=self.clock,
            **more,
        )

    @property
    def is_isolated(self) -> bool:
        """Whether each session needs a link of its own; a stateless server has nothing to share."""
        if not self.separates:
            return False
        return (known := self.link or self.greeting) is None or known.era is not Era.STATELESS

    def for_session(self, session: object, hello: Callable[[], Hello]) -> Upstream:
        """The server as one session sees it: itself, or an extra link of the session's own."""
        return self.extra_links.for_session(session, hello) if self.is_isolated else self

    async def for_era(self, era: Era) -> Upstream | None:
        """The server in an era: itself, also while it is down, or an extra link; else None."""
        if self.link is None or self.link.era is era:
            return self
        return await self.extra_links.for_era(era)

    async def wait_for_link(self, limit: float = 0.0) -> Link | None:
        """The link for calls; waits for it where it may come soon, None otherwise."""
        if self.link is None and not self.is_shut and self.missing_credential is None:
            is_first = self._wanted_credential or not self.settled.is_set()
            await self._gate.wait(limit, is_first=is_first, is_restarted=self.policy.restart)
        return self.link

    def unavailable(self) -> Outcome:
        """The outcome of a call while it is down."""
        missing, error = self.missing_credential, self.error
        why = f"{error.phase}: {error.message}" if error else "it is not connected"
        return outcomes.unavailable(self.key, why) if missing is None else missing.refusal()

    # -- lifecycle

    async def run(self) -> None:
        """Own the server until it is stopped, or has failed and is not to be restarted."""
        self.failures = 0
        while not self._stop.is_set():
            try:
                await self._run_once()
            except Exception as error:  # noqa: BLE001 - one bad server must not end another
                if self.state in SERVING:
                    self.failures = 0
                elif self.quirks.wants_retry():
                    continue
                self._record_failure(error)
            if not self.policy.restart or isinstance(self.error, EraError):
                break
            await wait_unless(self._stop, wait_unless(self._retry_now, self._pause()))
            self._retry_now.clear()
        self._gate.turn_away()
        await self.extra_links.close(self.policy.end_grace * 2 + 1)
        if self._stop.is_set():
            self.error = None
            self._set_state(ServerState.DISCONNECTED)
        self.settled.set()

    def _pause(self) -> Awaitable[object]:
        if (missing := self.missing_credential) is not None:
            return missing.wait_for_change()
        wait = backoff.delay(self.failures, self._gate.down_for, random.random)
        self.failures += 1
        return self.clock.sleep(wait)

    @property
    def missing_credential(self) -> TokenSource | None:
        """The source of the credential for want of which it is down; None if that is not why."""
        is_out = self._wanted_credential and self.tokens is not None and self.tokens.is_signed_out
        return self.tokens if is_out else None

    def reset_for_run(self) -> None:
        """Make it ready to be run again; calls wait for it from now on."""
        self._stop.clear()
        self._gate.begin()
        self.settled.clear()

    def stop(self) -> None:
        """Ask the owner task to end; it closes the link itself."""
        self._stop.set()
        self._gate.turn_away()

    def hold(self) -> None:
        """Take no more calls; those under way go on."""
        self._gate.is_held = True
        self.link = None
        self._gate.turn_away()
        for extra in self.extra_links.every:
            extra.hold()

    def retry_now(self) -> None:
        """Connect again at once, if it is down; calls wait for the result."""
        if self.link is None:
            self.settled.clear()
            self._retry_now.set()

    def set_health(self, *, is_well: bool) -> None:
        """Set whether it is healthy, by its checks and its calls."""
        self.condition.is_well = is_well
        self.apply_condition()

    def apply_condition(self) -> None:
        """Set the state that follows from its condition, if it is connected."""
        if self.state in SERVING:
            self._set_state(self.condition.state)

    def give_up(self, why: str) -> None:
        """Drop the link, because the server does not work, and connect again."""
        self._why_given_up = why
        self._given_up.set()

    async def _run_once(self) -> None:
        """Connect once and serve calls until the link ends."""
        self.log_level = None
        self._set_state(ServerState.CONNECTING)
        try:
            if await self._connect() and self.current is not None:
                await self._serve(self.current)
        finally:
            if self.current is not None:
                await self._disconnect(self.current)

    async def _connect(self) -> bool:
        """Connect when there is a slot; False when it was stopped meanwhile. Raises ServerError."""
        async with self._connector.slot() as has_slot:
            if not has_slot:
                return False
            began = self.clock.now()
            self.starts += 1
            self.current = await self._connector.open(self.key, self._open(self))
            self.current.rename(self.key)  # it may have been renamed while it was opened
            if not await self._connector.begin(self.current, self._on_greeted):
                return False
            self.start_seconds = self.clock.now() - began
            return True

    async def _on_greeted(self, greeting: Greeting) -> None:
        self.greeting = greeting
        self._gate.expect_link()
        if self.current is not None and self.is_stateless:
            await self._listening.begin(self.current, greeting)
        for step in self._listeners.steps:
            await step(self)

    async def _serve(self, link: Link) -> None:
        """Serve calls until the link ends, or is given up."""
        self._given_up.clear()
        self.refused_eras = set(self.quirks.refused)
        if self.definition.runs_once:  # clients of the other era are bridged to it
            self.refused_eras |= {*Era} - {link.era}
        self.error = None
        if not self._gate.is_held:
            self.link = link
            self._gate.open()
        self._set_state(ServerState.CONNECTED)
        self.set_health(is_well=True)
        self.settled.set()
        await wait_unless(self._stop, wait_unless(self._given_up, link.wait_closed()))
        if self._stop.is_set():
            return
        if self._given_up.is_set():
            raise ServerError(self.key, Phase.RUNTIME, self._why_given_up)
        raise await explain_end(link, Phase.RUNTIME, "while it was running")

    async def _disconnect(self, link: Link) -> None:
        self._gate.shut(was_open=self.link is not None)
        self.link = self.current = None
        await self._listening.end()
        if not self._stop.is_set():
            is_over = link.closed.done()
            await link.release(str(await link.describe_end()) if is_over else "it was given up")
        await link.end(self.policy.end_grace if self._stop.is_set() else 0.0)

    async def request(self, method: str, params: bytes, timeout: float) -> Outcome:
        """Send a request of our own; ends by the answer, loss of the link, or the timeout."""
        if self.current is None:
            return outcomes.unavailable(self.key, "it is not connected")
        return await send_own_request(self.current, method, params, self._meta, timeout)

    async def set_log_level(self, level: str, *, exactly: bool = False) -> None:
        """Have it send log messages of at least this level; of fewer levels only if ``exactly``."""
        if self.is_stateless or not self.offers("logging"):
            return  # a stateless server gets the level with each request
        is_covered = not exactly and versions.covers_level(self.log_level, level)
        if self.log_level != level and not is_covered:
            self.log_level = level
            await self._request("logging/setLevel", level=level)

    async def subscribe(self, uri: str) -> Outcome:
        """Have it announce changes to a resource, in either era."""
        if self.is_stateless:
            return await self._listening.add(uri)
        return await self._request("resources/subscribe", uri=uri)

    async def unsubscribe(self, uri: str) -> Outcome:
        """Have it announce changes to a resource no longer."""
        if self.is_stateless or self.current is None:
            return await self._listening.remove(uri)
        return await self._request("resources/unsubscribe", uri=uri)

    def _request(self, method: str, **params: str) -> Awaitable[Outcome]:
        return self.request(method, encode.dumps(params), self.policy.start_timeout)

    # -- the LinkListener of its link

    def on_notification(self, frame: Frame) -> None:
        if self.is_pooled:  # its callers have no session; the primary link gets the rest
            if frame.method == LOG_MESSAGE:
                self.on_unattributed(frame.method)
            return
        rest = self._listening.receive(frame) if self.is_stateless else frame
        if rest is None or self._root.is_removed:
            return
        if rest.method in LIST_CHANGES:
            self.emit(ServerChange.LISTS, method=rest.method)
        else:
            self._listeners.inbox.receive(self, rest)

    async def on_request(self, frame: Frame) -> Outcome:
        if self.is_pooled:
            self.on_unattributed(frame.method)
            return outcomes.failed(METHOD_NOT_FOUND, f"there is no client to ask {frame.method}")
        return await self._listeners.inbox.ask(self, frame)

    def on_unattributed(self, method: str) -> None:
        self._listeners.inbox.count_unattributed(method)

    def on_renewed(self) -> None:
        self.log_level = None
        if not self.is_pooled:
            self.emit(ServerChange.RENEWED)

    def _record_failure(self, error: Exception) -> None:
        self.error = report_failure(self.definition, error, self.error)
        self._wanted_credential = self.tokens is not None and self.error.refuses_credentials
        if self.missing_credential is not None:
            self._gate.turn_away()
        self._set_state(ServerState.ERROR)
        self.settled.set()

    def _set_state(self, state: ServerState) -> None:
        if state is self.state:
            return
        assert can_follow(self.state, state), f"{self.state} -> {state}"
        self.state = state
        detail = self.error.message if self.error else self.condition.lacking
        self.emit(ServerChange.STATE, detail=detail)

    def emit(self, change: ServerChange, **more: Any) -> None:
        """Tell its sink of a change."""
        self._listeners.sink(ServerChanged(self, change, self.state, **more))

    @property
    def _root(self) -> Upstream:
        """The server that this is an extra link of, or itself."""
        return self if self.primary is None else self.primary._root
