"""Upstream: one server and its life, held by one owner task.

``run`` is that task: it opens the link, begins the conversation, lets the catalog discover, waits
for the end, says what it was, and, when supervised, begins again. Nobody else enters or leaves the
link. What to do with a server's tools is not decided here: an Observer is told.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import JunctionError, Phase, ServerError
from mcp_junction.protocol.frames import Frame
from mcp_junction.resilience import backoff
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.hello import Greeting, Hello, read_greeting
from mcp_junction.upstream.link import OwnedLink
from mcp_junction.upstream.outcome import Kind, Outcome
from mcp_junction.upstream.state import ServerState, may_follow

log = logging.getLogger("mcp_junction.upstream")

RECONNECT_WINDOW = 10.0
MAX_WAITING = 100


class Observer(Protocol):
    """Who is told about a server's life."""

    def changed(self, upstream: Upstream) -> None:
        """Its state is another one."""
        ...

    async def connected(self, upstream: Upstream) -> None:
        """It has greeted us: find out what it offers. May raise ServerError."""
        ...

    def heard(self, upstream: Upstream, frame: Frame) -> None:
        """A notification that belongs to no call."""
        ...

    async def asked(self, upstream: Upstream, frame: Frame) -> Outcome:
        """A request of the server's that belongs to no one call."""
        ...

    def renewed(self, upstream: Upstream) -> None:
        """It had forgotten us, and knows us again: nothing it was told before holds."""
        ...


class Terms(msgspec.Struct, frozen=True):
    """How we deal with a server: under which name, and how patiently."""

    start_timeout: float
    end_grace: float = 1.0
    restart: bool = False
    name: str = "mcp-junction"
    version: str = "0"


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
    ) -> None:
        self.definition = definition
        self.session = session
        """The one session it is for, where each needs a link of its own."""
        self.terms = terms
        self.state = ServerState.DISCONNECTED
        self.error: ServerError | None = None
        self.greeting: Greeting | None = None
        self.link: OwnedLink | None = None
        """The link calls may use; there is none until the server is connected."""
        self.start_seconds: float | None = None
        self.starts = 0
        self.speaks_older = False
        self.settled = asyncio.Event()
        self._open = opener
        self._hello = hello
        self._observer = observer
        self._clock = clock
        self._current: OwnedLink | None = None
        self._stop = asyncio.Event()
        self._connected = asyncio.Event()
        self._down_since = clock.now()
        self._waiting = 0
        self._asked_older = False
        self._twins: dict[object, Upstream] = {}
        self._twin_tasks = TaskScope(f"twins of {definition.key}")

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
    def is_isolated(self) -> bool:
        """Whether each session needs a link of its own."""
        return self.definition.isolation == "per-session"

    def for_session(self, session: object, hello: Callable[[], Hello]) -> Upstream:
        """This server as one session sees it: itself, or a twin with a link of its own."""
        if not self.is_isolated:
            return self
        twin = self._twins.get(session)
        if twin is None:
            twin = self._twins[session] = self._twin(session, hello())
        return twin

    def _twin(self, session: object, hello: Hello) -> Upstream:
        told: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        told.set_result(hello)
        twin = Upstream(
            self.definition,
            opener=self._open,
            hello=told,
            observer=self._observer,
            terms=self.terms,
            clock=self._clock,
            session=session,
        )
        self._twin_tasks.spawn(twin.run())
        return twin

    def twin_of(self, session: object) -> Upstream | None:
        return self._twins.get(session)

    @property
    def twins(self) -> list[Upstream]:
        return list(self._twins.values())

    def end_session(self, session: object) -> None:
        """A session is over: so is what was kept for it alone."""
        twin = self._twins.pop(session, None)
        if twin is not None:
            twin.stop()

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
                    attempt, self._down_since = 0, self._clock.now()
                elif self._try_older():
                    continue
                self._failed(error)
            if not self.terms.restart:
                break
            wait = backoff.delay(attempt, self._clock.now() - self._down_since, random.random)
            attempt += 1
            await self._either(self._clock.sleep(wait))
        await self._end_twins()
        if self._stop.is_set():
            self._to(ServerState.DISCONNECTED)
        self.settled.set()

    async def _end_twins(self) -> None:
        for twin in self._twins.values():
            twin.stop()
        await self._twin_tasks.settle(self.terms.end_grace * 2 + 1)
        await self._twin_tasks.close()

    def stop(self) -> None:
        """Ask the owner to end; it leaves the link by itself."""
        self._stop.set()

    async def _live(self) -> None:
        """One life of the server: from opening the link to its end."""
        began = self._clock.now()
        self.starts += 1
        self._to(ServerState.CONNECTING)
        link = self._current = await self._open_in_time()
        try:
            hello = await self._told_who_calls(link)
            if hello is None:
                return
            if not await self._either(self._begin(link, hello)):
                return
            self.start_seconds = self._clock.now() - began
            self._up(link)
            await self._either(link.gone())
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
        self.error = None
        self.link = link
        self._to(ServerState.CONNECTED)
        self.settled.set()
        self._connected.set()

    async def _leave(self, link: OwnedLink) -> None:
        if self.link is not None:
            self._down_since = self._clock.now()
        self.link = self._current = None
        self._connected.clear()
        if self._stop.is_set():
            await link.end(self.terms.end_grace)
        else:
            await link.release(await self._why(link))
            await link.end(0.0)

    def _try_older(self) -> bool:
        """A server that refused the newer HTTP transport may speak the older one: ask it, once."""
        if self._asked_older or self.definition.transport != "http":
            return False
        self._asked_older = self.speaks_older
        return self._asked_older

    async def _told_who_calls(self, link: OwnedLink) -> Hello | None:
        """Wait for the first client, so that the server is told the client's own capabilities."""
        if not self._hello.done():
            either: set[asyncio.Future[Any]] = {self._hello, link.closed}
            await self._either(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
        if link.closed.done() and not self._stop.is_set():
            raise await self._diagnosis(link, Phase.STARTUP, "at once")
        return None if self._stop.is_set() else self._hello.result()

    async def _begin(self, link: OwnedLink, hello: Hello) -> None:
        """Greet it and find out what it offers. Raises ServerError that says what it died of."""
        self.greeting = await self._greet(link, hello)
        try:
            await self._observer.connected(self)
        except ServerError as error:
            if link.closed.done():
                when = "before it had told what it offers"
                raise await self._diagnosis(link, Phase.INITIALIZATION, when) from None
            raise self._at_fault(link, error.message) from None

    async def _greet(self, link: OwnedLink, hello: Hello) -> Greeting:
        terms = self.terms
        params = hello.params(terms.name, terms.version)
        outcome = await self.request("initialize", params, terms.start_timeout)
        self.speaks_older = link.speaks_older
        if link.closed.done():
            raise await self._diagnosis(link, Phase.INITIALIZATION, "before it answered initialize")
        if outcome.kind is not Kind.RESULT:
            raise self._at_fault(link, f"initialize: {outcome.message}")
        try:
            greeting = read_greeting(outcome.payload)
        except (ValueError, JunctionError, msgspec.MsgspecError) as error:
            raise self._at_fault(link, str(error)) from None
        await link.opened(greeting.protocol_version)
        return greeting

    # -- its link, for calls

    async def link_in_time(self, limit: float = 0.0) -> OwnedLink | None:
        """The link, waiting for it only where that makes sense: a first connection is being made,
        or a healthy one was lost moments ago. None at once otherwise."""
        if self.link is not None:
            return self.link
        left = self._down_since + RECONNECT_WINDOW - self._clock.now()
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
        flight = Flight(method)
        flight.params = params
        link.send(flight)
        either: set[asyncio.Future[Any]] = {flight.future, link.closed}
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if flight.future.done():
            return flight.future.result()
        if link.closed.done():
            return outcomes.link_lost(self.key, flight.delivery, "the link ended")
        late = outcomes.timed_out(self.key, flight.delivery, timeout)
        if method == "initialize":  # the one request that must not be cancelled
            flight.end(late)
        else:
            flight.abandon(late, "timed out")
        return late

    # -- the Ear of its link

    def heard(self, frame: Frame) -> None:
        self._observer.heard(self, frame)

    def asked(self, frame: Frame) -> Awaitable[Outcome]:
        return self._observer.asked(self, frame)

    def renewed(self) -> None:
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
        tail = error.stderr_tail.strip()
        level = logging.DEBUG if repeated else logging.ERROR
        stderr = f"\n  its stderr ends with:\n{_indented(tail)}" if tail else ""
        log.log(level, "%s%s", error, stderr)
        self._to(ServerState.ERROR)
        self.settled.set()

    def _to(self, state: ServerState) -> None:
        if state is self.state:
            return
        assert may_follow(self.state, state), f"{self.state} -> {state}"
        self.state = state
        self._observer.changed(self)

    async def _either(self, what: Awaitable[object]) -> bool:
        """Wait for ``what`` or for being stopped; whether it was the former."""
        stopped = asyncio.ensure_future(self._stop.wait())  # noqa: TID251 - awaited right here
        waited = asyncio.ensure_future(what)  # noqa: TID251 - awaited right here
        try:
            await asyncio.wait({stopped, waited}, return_when=asyncio.FIRST_COMPLETED)
            if waited.done():
                waited.result()
            return waited.done()
        finally:
            stopped.cancel()
            waited.cancel()


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()[-20:])
