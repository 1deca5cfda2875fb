"""Upstream: one server and its life, held by one owner task.

``run`` is that task: it opens the link, begins the conversation, lets the catalog discover, waits
for the end, says what it was, and, when supervised, begins again. Nobody else enters or leaves the
link. How a connection is made is in ``attempt``, what is kept open to hear of changes in
``listening``, further links to the same server in ``twins``, where calls wait in ``gate``. What to
do with a server's tools is not decided here: its ServerListeners hear of it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import EraError, Phase, ServerError
from mcp_junction.protocol import encode
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.log_levels import covers_level
from mcp_junction.protocol.versions import LIST_CHANGES, LOG_MESSAGE, METHOD_NOT_FOUND, Era
from mcp_junction.redaction.texts import redact_error
from mcp_junction.resilience import backoff
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import wait_unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.connect_policy import ConnectPolicy
from mcp_junction.upstream.connecting import Connector, Opener, as_server_error
from mcp_junction.upstream.events import ServerChange, ServerChanged, ServerListeners
from mcp_junction.upstream.extra_links import ExtraLinks
from mcp_junction.upstream.gate import Gate
from mcp_junction.upstream.hello import Greeting, Hello, own_meta
from mcp_junction.upstream.link import Link, send_own_request
from mcp_junction.upstream.listening import ServerListen
from mcp_junction.upstream.negotiation import ServerQuirks
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.state import SERVING, Condition, ServerState, can_follow

log = logging.getLogger("mcp_junction.upstream")


class Upstream:
    """A server behind us."""

    def __init__(
        self,
        definition: ServerDefinition,
        *,
        opener: Opener,
        hello: asyncio.Future[Hello],
        listeners: ServerListeners,
        terms: ConnectPolicy,
        clock: Clock,
        session: object = None,
        primary: Upstream | None = None,
        is_pooled: bool = False,
    ) -> None:
        self.definition = definition
        self.session = session
        """The one session it is for, where each needs a link of its own."""
        self.primary = primary
        """The server it is a twin of: that one's life is news, and its lists are read."""
        self.terms = terms
        self.clock = clock
        self.state = ServerState.DISCONNECTED
        self.error: ServerError | None = None
        self.condition = Condition()
        self.greeting: Greeting | None = None
        self.link: Link | None = None
        """The link calls may use; there is none until the server is connected."""
        self.current: Link | None = None
        """The link there is, greeted or not."""
        self.start_seconds: float | None = None
        self.starts = 0
        self.failures = 0  # attempts in a row
        self.level: str | None = None
        """The least level of log messages it was told to send, if it was told."""
        self.refused_eras: set[Era] = set()  # the eras it is not called in, in this life
        self.settled = asyncio.Event()
        self._open = opener
        self._listeners = listeners
        self.is_removed = False
        """Whether it is no longer served: what it still says is dropped."""
        self._stop = asyncio.Event()
        self._hurried = asyncio.Event()
        self._given_up = asyncio.Event()
        self._why_given_up = ""
        self._gate = Gate(clock)
        self.quirks: ServerQuirks = ServerQuirks(
            definition.transport, primary.quirks if primary else None
        )
        self.is_pooled = is_pooled
        """Whether it is for whoever has the same key, and so nobody in particular."""
        self._meta = own_meta(terms.name, terms.version)
        self._listening = ServerListen(
            definition.key, self._meta, clock, self.on_renewed, terms, lists=primary is None
        )
        self._attempts = Connector(
            self, opener, hello, self._stop, listeners.steps, self.quirks, self._listening
        )
        self._extra_links = ExtraLinks(self, self._twin)

    @property
    def key(self) -> str:
        return self.definition.key

    def offers(self, capability: str) -> bool:
        """Whether the server has declared a capability."""
        return self.greeting is not None and capability in self.greeting.capabilities

    @property
    def is_shut(self) -> bool:
        """Whether the operator wants no calls to get there."""
        return self._stop.is_set() or self._gate.is_held

    @property
    def is_stateless(self) -> bool:
        """Whether it is talked to in the stateless era."""
        return self.current is not None and self.current.era is Era.STATELESS

    @property
    def is_busy(self) -> bool:
        """Whether it is being connected to, or an answer is waited for."""
        if self.link is None:
            return not self.settled.is_set() or self._gate.waiting > 0
        return self.link.is_busy

    @property
    def calls(self) -> int:
        """How many calls are under way, on whichever of its links."""
        own = self.current.calls if self.current is not None else 0
        return own + self._gate.waiting + sum(twin.calls for twin in self._extra_links.every)

    def redefine(self, definition: ServerDefinition) -> None:
        """What is said of it is another, maybe its key; how it is reached is the same."""
        self.definition = definition
        if self.current is not None:
            self.current.server = definition.key
        for twin in self._extra_links.every:
            twin.redefine(definition)

    # -- its twins

    def _twin(self, **how: Any) -> Upstream:
        return Upstream(
            self.definition,
            opener=self._open,
            listeners=self._listeners,
            terms=msgspec.structs.replace(self.terms, attempts=None),  # a call waits for it
            clock=self.clock,
            **how,
        )

    @property
    def is_isolated(self) -> bool:
        """Whether each session needs a link of its own; without state there is nothing to share."""
        if self.definition.isolation != "per-session":
            return False
        told = self.link or self.greeting
        return told is None or told.era is Era.HANDSHAKE

    def for_session(self, session: object, hello: Callable[[], Hello]) -> Upstream:
        """This server as one session sees it: itself, or a twin with a link of its own."""
        return self._extra_links.for_session(session, hello) if self.is_isolated else self

    @property
    def extra_links(self) -> list[Upstream]:
        """Its twins for sessions and eras."""
        return list(self._extra_links)

    def end_session(self, session: object) -> None:
        """A session is over: so is what was kept for it alone."""
        self._extra_links.end_session(session)

    def speaks(self, era: Era) -> bool | None:
        """Whether it is known to speak an era; None when nobody has asked it."""
        if self.link is not None and self.link.era is era:
            return True
        return False if era in self.refused_eras else self._extra_links.speaks(era)

    async def for_era(self, era: Era) -> Upstream | None:
        """This server in an era: itself, also while it is down, or a twin; else None."""
        if self.link is None or self.link.era is era:
            return self
        return None if era in self.refused_eras else await self._extra_links.for_era(era)

    def pooled(self, key: Hashable, hello: Hello) -> Upstream | None:
        """A twin in the handshake era for those who share a key; None when all are at work."""
        return self._extra_links.pooled(key, hello)

    def unavailable(self) -> Outcome:
        """The answer to a call while it is down."""
        error = self.error
        why = f"{error.phase}: {error.message}" if error is not None else "it is not connected"
        return outcomes.unavailable(self.key, why)

    # -- life

    async def run(self) -> None:
        """Be the owner until the server is stopped, or has failed and is not supervised."""
        self.failures = 0
        while not self._stop.is_set():
            try:
                await self._live()
            except Exception as error:  # noqa: BLE001 - one bad server must not end another
                if self.state in SERVING:
                    self.failures = 0
                elif self.quirks.try_otherwise():
                    continue
                self._failed(error)
            if not self.terms.restart or isinstance(self.error, EraError):
                break
            wait = backoff.delay(self.failures, self._gate.down_for, random.random)
            self.failures += 1
            await wait_unless(self._stop, wait_unless(self._hurried, self.clock.sleep(wait)))
            self._hurried.clear()
        self._gate.send_away()  # it will not come
        await self._extra_links.close(self.terms.end_grace * 2 + 1)
        if self._stop.is_set():
            self.error = None
            self._to(ServerState.DISCONNECTED)
        self.settled.set()

    def prepare(self) -> None:
        """Before it is run again: what was its end is over, and calls wait for its beginning."""
        self._stop.clear()
        self._gate.begin()
        self.settled.clear()

    def stop(self) -> None:
        """Ask the owner to end; it leaves the link by itself."""
        self._stop.set()
        self._gate.send_away()

    def hold(self) -> None:
        """Take no more calls. Those that are under way go on."""
        self._gate.is_held = True
        self.link = None
        self._gate.send_away()
        for twin in self._extra_links.every:
            twin.hold()

    def retry_now(self) -> None:
        """Try again now, if it is down; calls wait for how that ends."""
        if self.link is None:
            self.settled.clear()
            self._hurried.set()

    def judged(self, *, well: bool) -> None:
        """What its checks and its calls say of it, as long as it is connected."""
        self.condition.is_well = well
        self.apply_condition()

    def apply_condition(self) -> None:
        """Set the state by its condition, as long as it is connected."""
        if self.state in SERVING:
            self._to(self.condition.state)

    def give_up(self, why: str) -> None:
        """It does not work, whatever its link says: leave it, and connect anew."""
        self._why_given_up = why
        self._given_up.set()

    async def _live(self) -> None:
        """One life of the server: from opening the link to its end."""
        self.level = None
        self._to(ServerState.CONNECTING)
        gate = self.terms.attempts
        if gate is not None and not await wait_unless(self._stop, gate.acquire()):
            return
        try:
            try:
                link = await self._attempts.make()
            finally:
                if gate is not None:
                    gate.release()
            if link is not None:
                await self._serve(link)
        finally:
            if self.current is not None:
                await self._leave(self.current)

    async def _serve(self, link: Link) -> None:
        """Be there for calls until the link ends, or is given up."""
        self._given_up.clear()
        self._up(link)
        await wait_unless(self._stop, wait_unless(self._given_up, link.wait_closed()))
        if self._stop.is_set():
            return
        if self._given_up.is_set():
            raise ServerError(self.key, Phase.RUNTIME, self._why_given_up)
        raise await self._attempts.diagnosis(link, Phase.RUNTIME, "while it was running")

    def _up(self, link: Link) -> None:
        self.refused_eras = set(self.quirks.refused)
        if self.definition.runs_once:  # clients of the other era are bridged to it
            self.refused_eras |= {*Era} - {link.era}
        self.error = None
        if not self._gate.is_held:
            self.link = link
            self._gate.open()
        self._to(ServerState.CONNECTED)
        self.judged(well=True)
        self.settled.set()

    async def _leave(self, link: Link) -> None:
        self._gate.shut(lost=self.link is not None)
        self.link = self.current = None
        await self._listening.end()
        if self._stop.is_set():
            await link.end(self.terms.end_grace)
        else:
            is_over = link.closed.done()
            await link.release(str(await link.describe_end()) if is_over else "it was given up")
            await link.end(0.0)

    # -- its link, for calls

    async def wait_for_link(self, limit: float = 0.0) -> Link | None:
        """The link, waiting for it only where that makes sense; None otherwise."""
        if self.link is None and not self.is_shut:
            first = not self.settled.is_set()
            await self._gate.wait(limit, first=first, again=self.terms.restart)
        return self.link

    # -- asking it something of our own

    async def request(self, method: str, params: bytes, timeout: float) -> Outcome:
        """A request of ours, not a client's. Ends by answer, loss of the link, or in time."""
        link = self.current
        if link is None:
            return outcomes.unavailable(self.key, "it is not connected")
        return await send_own_request(link, method, params, self._meta, timeout)

    async def set_log_level(self, level: str, *, exactly: bool = False) -> None:
        """Have it send log messages of this level and above, and no fewer than it does."""
        if self.is_stateless or not self.offers("logging"):
            return  # a stateless one is told with each request
        if not covers_level(self.level, level, exactly=exactly):
            self.level = level
            await self._tell("logging/setLevel", level=level)

    async def subscribe(self, uri: str) -> Outcome:
        """Have it tell us of changes to a resource, in whichever era."""
        if self.is_stateless:
            return await self._listening.add(uri)
        return await self._tell("resources/subscribe", uri=uri)

    async def unsubscribe(self, uri: str) -> Outcome:
        """Hear no more of changes to a resource."""
        if self.is_stateless or self.current is None:
            return await self._listening.remove(uri)
        return await self._tell("resources/unsubscribe", uri=uri)

    def _tell(self, method: str, **params: str) -> Awaitable[Outcome]:
        return self.request(method, encode.dumps(params), self.terms.start_timeout)

    # -- the LinkListener of its link

    def on_notification(self, frame: Frame) -> None:
        if self.is_pooled:  # its callers have no session, and the server's own link hears the rest
            if frame.method == LOG_MESSAGE:
                self.on_unattributed(frame.method)
            return
        heard = self._listening.sort(frame) if self.is_stateless else frame
        if heard is None or self._root.is_removed:
            return
        if heard.method in LIST_CHANGES:
            self.emit(ServerChange.LISTS, method=heard.method)
        else:
            self._listeners.inbox.receive(self, heard)

    async def on_request(self, frame: Frame) -> Outcome:
        if self.is_pooled:
            self.on_unattributed(frame.method)
            return outcomes.failed(METHOD_NOT_FOUND, f"there is no client to ask {frame.method}")
        return await self._listeners.inbox.ask(self, frame)

    def on_unattributed(self, method: str) -> None:
        self._listeners.inbox.count_unattributed(method)

    def on_renewed(self) -> None:
        self.level = None
        if not self.is_pooled:
            self.emit(ServerChange.RENEWED)

    # -- what went wrong

    def _failed(self, error: Exception) -> None:
        told = as_server_error(self.key, error)
        before, self.error = self.error, redact_error(told, self.definition)
        is_old = str(before) == str(self.error) or isinstance(error, EraError)
        log.log(logging.DEBUG if is_old else logging.ERROR, "%s", self.error.account)
        self._to(ServerState.ERROR)
        self.settled.set()

    def _to(self, state: ServerState) -> None:
        if state is self.state:
            return
        assert can_follow(self.state, state), f"{self.state} -> {state}"
        self.state = state
        detail = self.error.message if self.error else self.condition.shortfall
        self.emit(ServerChange.STATE, detail=detail)

    def emit(self, change: ServerChange, **more: Any) -> None:
        """Tell its sink of a change."""
        self._listeners.sink(ServerChanged(self, change, self.state, **more))

    @property
    def _root(self) -> Upstream:
        """The server that this is an extra link of, or itself."""
        return self if self.primary is None else self.primary._root
