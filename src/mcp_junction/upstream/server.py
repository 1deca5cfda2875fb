"""Upstream: one server and its life, held by one owner task.

``run`` is that task: it starts the link, opens the conversation, lets the catalog discover, waits
for the end, says what it was, and, when supervised, begins again. Nobody else enters or leaves the
link. What to do with a server's tools is not decided here: an Observer is told.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import JunctionError, Phase, ServerError
from mcp_junction.protocol.frames import Frame
from mcp_junction.resilience import backoff
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.hello import Greeting, Hello, read_greeting
from mcp_junction.upstream.link import Connection
from mcp_junction.upstream.outcome import Kind, Outcome
from mcp_junction.upstream.state import ServerState, may_follow

log = logging.getLogger("mcp_junction.upstream")


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


@dataclass(frozen=True, slots=True)
class Terms:
    """How patient we are with a server."""

    start_timeout: float
    end_grace: float = 1.0
    restart: bool = False


Opener = Callable[["Upstream"], Awaitable[Connection]]


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
    ) -> None:
        self.definition = definition
        self.state = ServerState.DISCONNECTED
        self.error: ServerError | None = None
        self.greeting: Greeting | None = None
        self.link: Connection | None = None
        self.start_seconds: float | None = None
        self.starts = 0
        self.settled = asyncio.Event()
        self._open = opener
        self._hello = hello
        self._observer = observer
        self._terms = terms
        self._clock = clock
        self._stop = asyncio.Event()

    @property
    def key(self) -> str:
        return self.definition.key

    def offers(self, capability: str) -> bool:
        """Whether the server has declared a capability."""
        return self.greeting is not None and capability in self.greeting.capabilities

    def unavailable(self) -> Outcome:
        """The answer to a call while it is down."""
        error = self.error
        why = f"{error.phase}: {error.message}" if error is not None else "it is not connected"
        return outcomes.unavailable(self.key, why)

    # -- life

    async def run(self) -> None:
        """Be the owner until the server is stopped, or has failed and is not supervised."""
        attempt = 0
        down_since = self._clock.now()
        while not self._stop.is_set():
            try:
                await self._live()
            except Exception as error:  # noqa: BLE001 - one bad server must not end another
                if self.state is ServerState.CONNECTED:
                    attempt, down_since = 0, self._clock.now()
                self._failed(error)
            if not self._terms.restart:
                break
            wait = backoff.delay(attempt, self._clock.now() - down_since, random.random)
            attempt += 1
            await self._stopped_within(wait)
        if self._stop.is_set():
            self._to(ServerState.DISCONNECTED)
        self.settled.set()

    async def stop(self) -> None:
        """Ask the owner to end; it leaves the link by itself."""
        self._stop.set()

    async def _live(self) -> None:
        """One life of the server: from starting it to its end."""
        began = self._clock.now()
        self.starts += 1
        self._to(ServerState.CONNECTING)
        link = await self._open(self)
        try:
            hello = await self._told_who_calls(link)
            if hello is None:
                return
            self.link = link
            if not await self._either(self._begin(link, hello)):
                return
            self.start_seconds = self._clock.now() - began
            self.error = None
            self._to(ServerState.CONNECTED)
            self.settled.set()
            await self._either(link.gone())
            if not self._stop.is_set():
                raise await self._diagnosis(link, Phase.RUNTIME, "while it was running")
        finally:
            await self._leave(link)

    async def _leave(self, link: Connection) -> None:
        self.link = None
        if self._stop.is_set():
            await link.end(self._terms.end_grace)
        else:
            await link.release(await self._last_words(link))
            await link.end(0.0)

    async def _told_who_calls(self, link: Connection) -> Hello | None:
        """Wait for the first client, so that the server is told the client's own capabilities."""
        if not self._hello.done():
            either: set[asyncio.Future[Any]] = {self._hello, link.closed}
            await self._either(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
        if link.closed.done() and not self._stop.is_set():
            raise await self._diagnosis(link, Phase.STARTUP, "at once")
        return None if self._stop.is_set() else self._hello.result()

    async def _begin(self, link: Connection, hello: Hello) -> None:
        """Greet it and find out what it offers. Raises ServerError that says what it died of."""
        self.greeting = await self._greet(link, hello)
        try:
            await self._observer.connected(self)
        except ServerError as error:
            if link.closed.done():
                when = "before it had told what it offers"
                raise await self._diagnosis(link, Phase.INITIALIZATION, when) from None
            raise self._at_fault(link, error.message) from None

    async def _greet(self, link: Connection, hello: Hello) -> Greeting:
        outcome = await self.request("initialize", hello.params(), self._terms.start_timeout)
        if link.closed.done():
            raise await self._diagnosis(link, Phase.INITIALIZATION, "before it answered initialize")
        if outcome.kind is not Kind.RESULT:
            raise self._at_fault(link, f"initialize: {outcome.message}")
        try:
            greeting = read_greeting(outcome.payload)
        except (ValueError, JunctionError, msgspec.MsgspecError) as error:
            raise self._at_fault(link, str(error)) from None
        link.notify("notifications/initialized")
        return greeting

    # -- asking it something of our own

    async def request(self, method: str, params: bytes, timeout: float) -> Outcome:
        """A request of ours, not a client's. Ends by answer, loss of the link, or in time."""
        link = self.link
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
            return outcomes.link_lost(self.key, flight.delivery, "it closed its output")
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

    # -- what went wrong

    async def _diagnosis(self, link: Connection, phase: Phase, when: str) -> ServerError:
        code = await link.exit_code()
        if code is None:
            what = f"closed its output {when}"
        elif code < 0:
            what = f"was ended by signal {-code} {when}"
        else:
            what = f"exited with code {code} {when}"
        return ServerError(self.key, phase, what, exit_code=code, stderr_tail=link.stderr_tail)

    def _at_fault(self, link: Connection, message: str) -> ServerError:
        return ServerError(self.key, Phase.INITIALIZATION, message, stderr_tail=link.stderr_tail)

    async def _last_words(self, link: Connection) -> str:
        if not link.closed.done():
            return "it was given up"
        return (await self._diagnosis(link, Phase.RUNTIME, "")).message.strip()

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, ServerError):
            log.exception("server %r: a fault of Junction's own", self.key, exc_info=error)
            error = ServerError(self.key, Phase.RUNTIME, "an internal error of Junction")
        self.error = error
        tail = error.stderr_tail.strip()
        log.error("%s%s", error, f"\n  its stderr ends with:\n{_indented(tail)}" if tail else "")
        self._to(ServerState.ERROR)
        self.settled.set()

    def _to(self, state: ServerState) -> None:
        if state is self.state:
            return
        assert may_follow(self.state, state), f"{self.state} -> {state}"
        self.state = state
        self._observer.changed(self)

    # -- waiting

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

    async def _stopped_within(self, seconds: float) -> None:
        await self._either(self._clock.sleep(seconds))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()[-20:])
