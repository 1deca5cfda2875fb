"""Upstream: one server and its life, held by one owner task.

``run`` is that task: it opens the link, begins the conversation, lets the catalog discover, waits
for the end, says what it was, and, when supervised, begins again. Nobody else enters or leaves the
link. How the conversation begins is in ``manners``, what is kept open to hear of changes in
``listening``, further links to the same server in ``twins``. What to do with a server's tools is
not decided here: an Observer is told.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import EraError, Phase, ServerError
from mcp_junction.protocol import encode
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.levels import is_enough
from mcp_junction.protocol.versions import METHOD_NOT_FOUND, Era
from mcp_junction.resilience import backoff
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.hello import Greeting, Hello, our_meta
from mcp_junction.upstream.inquiry import inquire
from mcp_junction.upstream.link import OwnedLink
from mcp_junction.upstream.listening import Listening
from mcp_junction.upstream.manners import Manners
from mcp_junction.upstream.observer import Observer
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.state import ServerState, may_follow
from mcp_junction.upstream.terms import Terms
from mcp_junction.upstream.twins import Twins

log = logging.getLogger("mcp_junction.upstream")

RECONNECT_WINDOW = 10.0
MAX_WAITING = 100

Opener = Callable[["Upstream"], Awaitable[OwnedLink]]


class Upstream:
    """A server behind us."""

    def __init__(
        self,
        definition: ServerDefinition,
        *,
        opener: Opener,
        hello: asyncio.Future[Hello],
        observer: Observer,
        terms: Terms,
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
        self.greeting: Greeting | None = None
        self.link: OwnedLink | None = None
        """The link calls may use; there is none until the server is connected."""
        self.start_seconds: float | None = None
        self.starts = 0
        self.level: str | None = None
        """The least level of log messages it was told to send, if it was told."""
        self.settled = asyncio.Event()
        self._open = opener
        self._hello = hello
        self._observer = observer
        self._current: OwnedLink | None = None
        self._stop = asyncio.Event()
        self._connected = asyncio.Event()
        self._down_since = clock.now()
        self._waiting = 0
        like = primary._manners if primary is not None else None
        self._manners: Manners = Manners(definition.transport, like)
        self.is_pooled = is_pooled
        """Whether it is for whoever has the same key, and so nobody in particular."""
        self._meta = our_meta(terms.name, terms.version)
        self._listening = Listening(
            definition.key, self._meta, clock, self.renewed, lists=primary is None
        )
        same = partial(
            Upstream, definition, opener=opener, observer=observer, terms=terms, clock=clock
        )
        self._twins = Twins(self, same)

    @property
    def key(self) -> str:
        return self.definition.key

    def offers(self, capability: str) -> bool:
        """Whether the server has declared a capability."""
        return self.greeting is not None and capability in self.greeting.capabilities

    @property
    def is_open(self) -> bool:
        """Whether there is a link at all, greeted or not."""
        return self._current is not None

    @property
    def is_stateless(self) -> bool:
        """Whether it is talked to in the stateless era."""
        return self._current is not None and self._current.era is Era.STATELESS

    @property
    def speaks_older(self) -> bool:
        """Whether it speaks the older HTTP transport, and not the newer one."""
        return self._manners.speaks_older

    @property
    def is_busy(self) -> bool:
        """Whether it is being connected to, or an answer is waited for."""
        if self.link is None:
            return not self.settled.is_set() or self._waiting > 0
        return self.link.is_busy

    # -- its twins

    @property
    def is_isolated(self) -> bool:
        """Whether each session needs a link of its own; without state there is nothing to share."""
        if self.definition.isolation != "per-session":
            return False
        told = self.link or self.greeting
        return told is None or told.era is Era.HANDSHAKE

    def for_session(self, session: object, hello: Callable[[], Hello]) -> Upstream:
        """This server as one session sees it: itself, or a twin with a link of its own."""
        return self._twins.for_session(session, hello) if self.is_isolated else self

    def twin_of(self, session: object) -> Upstream | None:
        return self._twins.of_session(session)

    @property
    def twins(self) -> list[Upstream]:
        """Its twins for sessions and eras."""
        return list(self._twins)

    def end_session(self, session: object) -> None:
        """A session is over: so is what was kept for it alone."""
        self._twins.end_session(session)

    def speaks(self, era: Era) -> bool | None:
        """Whether it is known to speak an era; None when nobody has asked it."""
        if self.link is not None and self.link.era is era:
            return True
        return False if era in self._manners.refused else self._twins.speaks(era)

    async def in_era(self, era: Era) -> Upstream | None:
        """This server in an era: itself, or a twin. None when it does not speak that era; while
        it is down that is not known, and it stands for itself."""
        if self.link is None or self.link.era is era:
            return self
        return None if era in self._manners.refused else await self._twins.in_era(era)

    def pooled(self, key: Hashable, hello: Hello) -> Upstream | None:
        """A twin in the handshake era for those who share a key; None when all there may be work.
        Questions of such a twin that name no call are refused."""
        return self._twins.pooled(key, hello)

    def unavailable(self) -> Outcome:
        """The answer to a call while it is down."""
        error = self.error
        why = f"{error.phase}: {error.message}" if error is not None else "it is not connected"
        return outcomes.unavailable(self.key, why)

    # -- life

    async def run(self) -> None:
        """Be the owner until the server is stopped, or has failed and is not supervised."""
        attempt = 0
        while not self._stop.is_set():
            try:
                await self._live()
            except Exception as error:  # noqa: BLE001 - one bad server must not end another
                if self.state is ServerState.CONNECTED:
                    attempt, self._down_since = 0, self.clock.now()
                elif self._manners.try_otherwise():
                    continue
                self._failed(error)
            if not self.terms.restart or isinstance(self.error, EraError):
                break
            wait = backoff.delay(attempt, self.clock.now() - self._down_since, random.random)
            attempt += 1
            await unless(self._stop, self.clock.sleep(wait))
        await self._twins.close(self.terms.end_grace * 2 + 1)
        if self._stop.is_set():
            self._to(ServerState.DISCONNECTED)
        self.settled.set()

    def stop(self) -> None:
        """Ask the owner to end; it leaves the link by itself."""
        self._stop.set()

    async def _live(self) -> None:
        """One life of the server: from opening the link to its end."""
        began = self.clock.now()
        self.starts += 1
        self.level = None
        self._to(ServerState.CONNECTING)
        link = self._current = await self._open_in_time()
        try:
            hello = await self._told_who_calls(link)
            if hello is None:
                return
            if not await unless(self._stop, self._begin(link, hello)):
                return
            self.start_seconds = self.clock.now() - began
            self._up(link)
            await unless(self._stop, link.gone())
            if not self._stop.is_set():
                raise await self._diagnosis(link, Phase.RUNTIME, "while it was running")
        finally:
            await self._leave(link)

    async def _open_in_time(self) -> OwnedLink:
        """A link of its own, in time: whoever must start the program may be stuck."""
        limit = self.terms.start_timeout
        try:
            return await asyncio.wait_for(self._open(self), limit)
        except TimeoutError:
            message = f"was not started within {limit:g} s"
            raise ServerError(self.key, Phase.STARTUP, message) from None

    def _up(self, link: OwnedLink) -> None:
        self._twins.forget_verdicts()
        self.error = None
        self.link = link
        self._to(ServerState.CONNECTED)
        self.settled.set()
        self._connected.set()

    async def _leave(self, link: OwnedLink) -> None:
        if self.link is not None:
            self._down_since = self.clock.now()
        self.link = self._current = None
        self._connected.clear()
        await self._listening.end()
        if self._stop.is_set():
            await link.end(self.terms.end_grace)
        else:
            await link.release(await self._why(link))
            await link.end(0.0)

    async def _told_who_calls(self, link: OwnedLink) -> Hello | None:
        """Wait for the first client, so that the server is told the client's own capabilities."""
        if not self._hello.done():
            either: set[asyncio.Future[Any]] = {self._hello, link.closed}
            await unless(self._stop, asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
        if link.closed.done() and not self._stop.is_set():
            raise await self._diagnosis(link, Phase.STARTUP, "at once")
        return None if self._stop.is_set() else self._hello.result()

    async def _begin(self, link: OwnedLink, hello: Hello) -> None:
        """Greet it and find out what it offers. Raises ServerError that says what it died of."""
        self.greeting = await self._greet(link, hello)
        try:
            if link.era is Era.STATELESS:
                await self._listening.begin(link, self.greeting)
            await self._observer.connected(self)
        except ServerError as error:
            if link.closed.done():
                when = "before it had told what it offers"
                raise await self._diagnosis(link, Phase.INITIALIZATION, when) from None
            raise self._at_fault(link, error.message) from None

    async def _greet(self, link: OwnedLink, hello: Hello) -> Greeting:
        greeting = await self._manners.greet(link, hello, self.terms)
        if isinstance(greeting, Greeting):
            return greeting
        if hello.only and greeting.of_era:
            raise EraError(self.key, Phase.INITIALIZATION, greeting.words)
        if link.closed.done():
            raise await self._diagnosis(link, Phase.INITIALIZATION, "before it answered initialize")
        raise self._at_fault(link, greeting.words)

    # -- its link, for calls

    async def link_in_time(self, limit: float = 0.0) -> OwnedLink | None:
        """The link, waiting for it only where that makes sense: a first connection is being made,
        or a healthy one was lost moments ago. None at once otherwise."""
        if self.link is not None:
            return self.link
        left = self._down_since + RECONNECT_WINDOW - self.clock.now()
        first = not self.settled.is_set()
        if self._stop.is_set() or not (first or (self.terms.restart and left > 0)):
            return None
        if self._waiting >= MAX_WAITING:
            return None
        self._waiting += 1
        try:
            wait = RECONNECT_WINDOW if first else left
            await asyncio.wait_for(self._connected.wait(), min(wait, limit or wait))
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1
        return self.link

    # -- asking it something of our own

    async def request(self, method: str, params: bytes, timeout: float) -> Outcome:
        """A request of ours, not a client's. Ends by answer, loss of the link, or in time."""
        link = self._current
        if link is None:
            return outcomes.unavailable(self.key, "it is not connected")
        return await inquire(link, self.key, method, params, self._meta, timeout)

    async def at_level(self, level: str, *, exactly: bool = False) -> None:
        """Have it send log messages of this level and above, and no fewer than it does."""
        if self.is_stateless or not self.offers("logging"):
            return  # a stateless one is told with each request
        if not is_enough(self.level, level, exactly=exactly):
            self.level = level
            await self._tell("logging/setLevel", level=level)

    async def subscribe(self, uri: str) -> Outcome:
        """Have it tell us of changes to a resource, in whichever era."""
        if self.is_stateless:
            return await self._listening.add(uri)
        return await self._tell("resources/subscribe", uri=uri)

    async def unsubscribe(self, uri: str) -> Outcome:
        """Hear no more of changes to a resource."""
        if self.is_stateless or self._current is None:
            return await self._listening.remove(uri)
        return await self._tell("resources/unsubscribe", uri=uri)

    def _tell(self, method: str, **params: str) -> Awaitable[Outcome]:
        return self.request(method, encode.dumps(params), self.terms.start_timeout)

    # -- the Ear of its link

    def heard(self, frame: Frame) -> None:
        if self.is_pooled:
            return  # nobody in particular is behind it, and the server's own link hears it too
        heard = self._listening.sort(frame) if self.is_stateless else frame
        if heard is not None:
            self._observer.heard(self, heard)

    async def asked(self, frame: Frame) -> Outcome:
        if self.is_pooled:
            return outcomes.failed(METHOD_NOT_FOUND, f"there is no client to ask {frame.method}")
        return await self._observer.asked(self, frame)

    def renewed(self) -> None:
        self.level = None
        if not self.is_pooled:
            self._observer.renewed(self)

    # -- what went wrong

    async def _diagnosis(self, link: OwnedLink, phase: Phase, when: str) -> ServerError:
        words = await link.last_words()
        return ServerError(
            self.key,
            phase,
            f"{words.what} {when}",
            exit_code=words.exit_code,
            stderr_tail=link.stderr_tail,
        )

    def _at_fault(self, link: OwnedLink, message: str) -> ServerError:
        return ServerError(self.key, Phase.INITIALIZATION, message, stderr_tail=link.stderr_tail)

    async def _why(self, link: OwnedLink) -> str:
        return (await link.last_words()).what if link.closed.done() else "it was given up"

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, ServerError):
            log.exception("server %r: a fault of Junction's own", self.key, exc_info=error)
            error = ServerError(self.key, Phase.RUNTIME, "an internal error of Junction")
        repeated = self.error is not None and str(self.error) == str(error)
        self.error = error
        level = logging.DEBUG if repeated or isinstance(error, EraError) else logging.ERROR
        log.log(level, "%s", error.account)
        self._to(ServerState.ERROR)
        self.settled.set()

    def _to(self, state: ServerState) -> None:
        if state is self.state:
            return
        assert may_follow(self.state, state), f"{self.state} -> {state}"
        self.state = state
        self._observer.changed(self)
