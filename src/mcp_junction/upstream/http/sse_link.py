"""SseLink: a server over the older HTTP+SSE transport: one stream for everything it says.

The stream's first event names the address to post to; that address must be of the same origin. As
on stdio, which call a question belongs to is not said.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import urljoin

from msgspec import Raw

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import lowered
from mcp_junction.errors import FrameError, Phase, ServerError
from mcp_junction.protocol import encode
from mcp_junction.protocol.sse import Event, EventReader
from mcp_junction.protocol.versions import INTERNAL_ERROR, Era
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight, FlightState
from mcp_junction.upstream.http.dialer import Dialer, dialer_for
from mcp_junction.upstream.http.pool import Pool, parse_target
from mcp_junction.upstream.http.refusals import UNAUTHENTICATED
from mcp_junction.upstream.link import LinkEnd, LinkListener
from mcp_junction.upstream.multiplexer import Multiplexer
from mcp_junction.upstream.outcome import Delivery, Outcome

log = logging.getLogger("mcp_junction.upstream")

_OPEN_TIMEOUT = 10.0
_INITIALIZED_WAIT = 5.0


class SseLink:
    """One stream from one server, and the address to post to."""

    def __init__(
        self,
        definition: ServerDefinition,
        ear: LinkListener,
        limit: int,
        dialer: Dialer | None = None,
        stalls: StallSweep | None = None,
    ) -> None:
        self.server = definition.key
        self.era = Era.HANDSHAKE
        self.exchange = Multiplexer(definition.key, self._write, ear)
        self.users = self.exchange.users
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = TaskScope(f"link to {definition.key}")
        self._url = definition.url
        self._headers = lowered(definition.headers)
        dialer = dialer or dialer_for(definition)
        self._pool = Pool(parse_target(definition.url), self._tasks, dialer)
        self._limits = definition.limits
        self._posts = Pool(parse_target(definition.url), self._tasks, dialer, self._limits, stalls)
        self._limit = limit
        self._endpoint: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.why = ""
        self.refuses_credentials = False

    # -- life

    async def start(self) -> None:
        """Open the stream and learn where to post. Raises ServerError."""
        head = parse_target(self._url).head("GET", {"accept": "text/event-stream", **self._headers})
        self._pool.send(_SseStream(self, head + b"\r\n", self._limit))
        either: set[asyncio.Future[Any]] = {self._endpoint, self.closed}
        try:
            await asyncio.wait(either, timeout=_OPEN_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.release("nobody waits for it any more")
            raise
        if not self._endpoint.done():
            why = self.why or "its stream names no address to post to"
            await self.release(why)
            refused = self.refuses_credentials
            raise ServerError(self.server, Phase.STARTUP, why, refuses_credentials=refused)

    async def opened(self, protocol_version: str) -> None:
        """Each POST may take a way of its own: what follows must not overtake this one."""
        said = self._post(encode.notification("notifications/initialized"), None)
        either: set[asyncio.Future[Any]] = {said.taken, self.closed}
        await asyncio.wait(either, timeout=_INITIALIZED_WAIT, return_when=asyncio.FIRST_COMPLETED)

    async def gone(self) -> None:
        await asyncio.wait({self.closed})

    async def end(self, grace: float) -> None:
        await self.release("it was stopped")

    async def release(self, why: str) -> None:
        self.lost(why)
        self._pool.close()
        self._posts.close()
        await self.exchange.close(why)
        await self._tasks.close()

    async def describe_end(self) -> LinkEnd:
        return LinkEnd(self.why or "its stream ended")

    @property
    def stderr_tail(self) -> str:
        return ""

    @property
    def stray(self) -> str:
        return ""

    @property
    def speaks_older(self) -> bool:
        return False

    @property
    def is_busy(self) -> bool:
        return len(self.exchange) > 0

    @property
    def calls(self) -> int:
        return self.exchange.calls

    # -- the Link protocol

    def send(self, flight: Flight) -> None:
        if self.closed.done() or not self._endpoint.done() or self._posts.is_full:
            why = "too many requests wait" if self._posts.is_full else "its stream is closed"
            flight.end(outcomes.unavailable(self.server, why))
            return
        if len(self.exchange) >= self._limits.calls and flight.passenger is not None:
            flight.end(outcomes.overloaded(self.server, len(self.exchange)))
            return
        flight.link = self
        self.exchange.register(flight)
        frame = encode.request(flight.wire_id, flight.method, flight.params)
        flight.carrier = self._post(frame, flight)

    def cancel(self, flight: Flight, reason: str) -> None:
        if flight.state is FlightState.QUEUED:  # the server has not heard of it
            self.exchange.forget(flight)
            if isinstance(flight.carrier, _Post):
                self._posts.drop(flight.carrier)
        else:
            self.exchange.cancel(flight, reason)

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        self.exchange.notify(method, params)

    # -- the wire

    def _write(self, frame: bytes) -> None:
        if self._endpoint.done() and not self.closed.done():
            self._post(frame, None)

    def _post(self, frame: bytes, flight: Flight | None) -> _Post:
        head = self._endpoint.result()
        payload = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(frame), frame)
        post = _Post(self, payload, flight)
        self._posts.send(post)
        return post

    def lost(self, why: str) -> None:
        if not self.closed.done():
            self.why = why
            self.closed.set_result(None)

    def unreachable(self, why: str) -> None:
        self.lost(why)

    def event(self, event: Event) -> None:
        if event.name == b"endpoint":
            self._named(event.data.decode("utf-8", "replace"))
        elif event.data and event.name in (b"", b"message"):
            self.exchange.receive(event.data)

    def _named(self, address: str) -> None:
        try:
            ours, theirs = parse_target(self._url), parse_target(urljoin(self._url, address))
        except ValueError as error:
            self.lost(f"its stream names an address to post to that makes no sense: {error}")
            return
        if ours.origin != theirs.origin:
            self.lost("its stream names an address of another origin to post to")
        elif not self._endpoint.done():
            headers = {"content-type": "application/json", **self._headers}
            self._endpoint.set_result(theirs.head("POST", headers))


class _SseStream:
    """The exchange that is the stream."""

    is_over = False

    def __init__(self, link: SseLink, payload: bytes, limit: int) -> None:
        self.payload = payload
        self._link = link
        self._events = EventReader(limit)

    def written(self) -> None:
        pass

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._link.refuses_credentials = status in UNAUTHENTICATED
        kind = headers.get(b"content-type", b"")
        if status != 200 or not kind.startswith(b"text/event-stream"):
            page = " with a web page" if kind.startswith(b"text/html") else ""
            self._link.lost(f"it answered HTTP {status}{page} where a stream of events should be")

    def data(self, chunk: bytes) -> None:
        try:
            for event in self._events.feed(chunk):
                self._link.event(event)
        except FrameError as error:
            self._link.lost(str(error))

    def done(self) -> None:
        self._link.lost("it ended its stream")

    def lost(self, why: str) -> None:
        self._link.lost(why)


class _Post:
    """One frame on its way; the answer comes on the stream."""

    def __init__(self, link: SseLink, payload: bytes, flight: Flight | None) -> None:
        self.payload = payload
        self.is_over = False
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link = link
        self._flight = flight

    def written(self) -> None:
        if self._flight is not None and self._flight.state is FlightState.QUEUED:
            self._flight.state = FlightState.WRITTEN

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._is_taken()
        if self._flight is not None and self._flight.passenger is None:
            self._link.refuses_credentials = status in UNAUTHENTICATED
        if status == 404:
            self._link.lost("it no longer knows us: it refused a message with HTTP 404")
        elif status >= 400:
            why = f"it refused the message with HTTP {status}"
            delivery = Delivery.UNKNOWN if status >= 500 else Delivery.EXECUTED
            self._fail(outcomes.failed(INTERNAL_ERROR, why, delivery, server=self._link.server))

    def data(self, chunk: bytes) -> None:
        pass

    def done(self) -> None:
        pass

    def lost(self, why: str) -> None:
        self._is_taken()
        server, flight = self._link.server, self._flight
        if flight is None or flight.state is FlightState.QUEUED:
            self._fail(outcomes.unavailable(server, why))
        else:
            self._fail(outcomes.link_lost(server, flight.delivery, why))

    def _is_taken(self) -> None:
        if not self.taken.done():
            self.taken.set_result(None)

    def _fail(self, outcome: Outcome) -> None:
        if self._flight is not None:
            self._link.exchange.drop(self._flight, outcome)
