"""SseLink: a server over the older HTTP+SSE transport, with one stream for everything it sends.

The stream's first event names the address to post to, which must be of the same origin. As on
stdio, a request of the server does not say which call it belongs to.
"""

from __future__ import annotations

import asyncio
import math
from urllib.parse import urljoin

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import FrameError, Phase, ServerError
from mcp_junction.oauth.discovery import BearerChallenge, read_challenge
from mcp_junction.protocol import encode
from mcp_junction.protocol.sse import Event, EventReader
from mcp_junction.protocol.versions import INTERNAL_ERROR
from mcp_junction.resilience.read_budget import ReadBudget
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import resolve, wait_for_any
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import QUEUED, WRITTEN, Flight
from mcp_junction.upstream.http.connection import HttpExchange, is_overdue, parse_target
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.link import RemoteLink
from mcp_junction.upstream.http.pool import Pool
from mcp_junction.upstream.http.refusals import UNAUTHENTICATED, read_failure
from mcp_junction.upstream.link import LinkListener
from mcp_junction.upstream.outcome import Delivery
from mcp_junction.upstream.tokens import NO_TOKEN, AccessToken, TokenSource

_OPEN_TIMEOUT = 10.0
_INITIALIZED_WAIT = 5.0


class SseLink(RemoteLink):
    """One stream from one server, and the address to post to."""

    _closed_words = "its stream is closed"
    _end_words = "its stream ended"

    def __init__(
        self,
        definition: ServerDefinition,
        listener: LinkListener,
        limit: int,
        dialer: Dialer | None = None,
        stalls: StallSweep | None = None,
        tokens: TokenSource | None = None,
        read_budget: ReadBudget | None = None,
    ) -> None:
        super().__init__(definition, listener, limit, dialer, stalls, tokens, read_budget)
        self._stream_pool = Pool(
            self._where, self.tasks, self._dialer, read_budget=self._read_budget
        )
        self._post_head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """How a POST begins, once the stream has named the address."""

    # -- life

    async def start(self) -> None:
        """Open the stream and learn where to post. Raises ServerError."""
        if self.tokens is not None and self.tokens.must_wait:
            await self.tokens.prepare()
        head = self._where.head("GET", {"accept": "text/event-stream", **self._headers})
        token = self._token
        stream = _SseStream(self, head + token.line + b"\r\n")
        self._stream_pool.send(stream)
        try:
            await wait_for_any(self._post_head, self.closed, timeout=_OPEN_TIMEOUT)
        except asyncio.CancelledError:
            await self.release("nobody waits for it any more")
            raise
        if not self._post_head.done():
            why = self._why or "its stream names no address to post to"
            await self.release(why)
            if self.tokens is not None and stream.is_unauthorized:
                await self.tokens.renew(token, stream.challenge, is_again=False)
            refused = self.refuses_credentials
            raise ServerError(self.server, Phase.STARTUP, why, refuses_credentials=refused)

    async def begin_session(self, protocol_version: str) -> None:
        """Wait for the response: each POST may use another connection and overtake this one."""
        post = self._post(encode.notification("notifications/initialized"), None)
        await wait_for_any(post.answered, self.closed, timeout=_INITIALIZED_WAIT)

    async def release(self, why: str) -> None:
        self.mark_lost(why)
        self._stream_pool.close()
        await super().release(why)

    # -- the Link protocol

    @property
    def _is_ready(self) -> bool:
        return self._post_head.done() and not self.closed.done()

    def send(self, flight: Flight) -> None:
        if self._refuse(flight, not self._is_ready):
            return
        flight.link = self
        if self.tokens is None or not self._must_wait(flight, self.tokens):
            flight.carrier = self._post(self.multiplexer.encode_request(flight), flight)

    def cancel(self, flight: Flight, reason: str) -> None:
        if flight.state is QUEUED and isinstance(flight.carrier, _Post):
            self.pool.drop(flight.carrier)
        self.multiplexer.cancel(flight, reason)

    # -- the wire

    def _write(self, frame: bytes) -> None:
        if self._is_ready and not self.pool.is_full:  # dropped at the limit, as by HttpLink
            self._post(frame, None)

    def _post(self, frame: bytes, flight: Flight | None, *, is_again: bool = False) -> _Post:
        source = self.tokens if flight is None else flight.tokens
        token = NO_TOKEN if source is None else source.current
        head = self._post_head.result() + token.line
        payload = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(frame), frame)
        post = _Post(self, payload, flight, None if is_again else (frame, token))
        self.pool.send(post)
        return post

    async def post_again(
        self, flight: Flight, frame: bytes, token: AccessToken, challenge: BearerChallenge | None
    ) -> None:
        """Post a call once more whose token was refused, with another one."""
        outcome = await flight.tokens.renew(token, challenge, is_again=False)
        if flight.future.done():
            return
        if outcome is not None or not self._is_ready:
            self.sign_out(flight, outcome or outcomes.unavailable(self.server, self._closed_words))
        else:
            flight.carrier = self._post(frame, flight, is_again=True)

    def receive(self, event: Event) -> None:
        """Handle one event of the stream."""
        if event.name == b"endpoint":
            self._set_endpoint(event.data.decode("utf-8", "replace"))
        elif event.data and event.name in (b"", b"message"):
            self.multiplexer.receive(event.data)

    def _set_endpoint(self, address: str) -> None:
        try:
            theirs = parse_target(urljoin(self._definition.url, address))
        except ValueError as error:
            self.mark_lost(f"its stream names an address to post to that makes no sense: {error}")
            return
        if self._where.origin != theirs.origin:
            self.mark_lost("its stream names an address of another origin to post to")
        elif not self._post_head.done():
            headers = {"content-type": "application/json", **self._headers}
            self._post_head.set_result(theirs.head("POST", headers))


class _SseStream(HttpExchange):
    """The exchange whose response is the stream."""

    def __init__(self, link: SseLink, payload: bytes) -> None:
        super().__init__(payload)
        self._link = link
        self._events = EventReader(link.limit)
        self.is_unauthorized = False
        self.challenge: BearerChallenge | None = None

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._link.refuses_credentials = status in UNAUTHENTICATED
        self.is_unauthorized = status == 401
        self.challenge = read_challenge(headers.get(b"www-authenticate"))
        kind = headers.get(b"content-type", b"")
        if status != 200 or not kind.startswith(b"text/event-stream"):
            page = " with a web page" if kind.startswith(b"text/html") else ""
            why = f"it answered HTTP {status}{page} where a stream of events should be"
            self._link.mark_lost(why)

    def on_data(self, chunk: bytes) -> None:
        try:
            for event in self._events.feed(chunk):
                self._link.receive(event)
        except FrameError as error:
            self._link.mark_lost(str(error))

    def on_complete(self) -> None:
        self._link.mark_lost("it ended its stream")

    def on_lost(self, why: str) -> None:
        self._link.mark_lost(why)


class _Post(HttpExchange):
    """A POST of one frame; the answer to it arrives on the stream."""

    def __init__(
        self,
        link: SseLink,
        payload: bytes,
        flight: Flight | None,
        again: tuple[bytes, AccessToken] | None = None,
    ) -> None:
        """``again`` is the frame and its token, if it may be posted again with another."""
        super().__init__(payload)
        self._again = again
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the POST has its response, or cannot get one."""
        self._link = link
        self._flight = flight
        self._written_at = math.inf

    @property
    def is_over(self) -> bool:
        if self._flight is not None:
            return self._flight.future.done()
        return self.answered.done() or is_overdue(self._written_at)

    def on_written(self) -> None:
        if self._flight is None:
            self._written_at = asyncio.get_running_loop().time()
        elif self._flight.state is QUEUED:
            self._flight.state = WRITTEN

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        resolve(self.answered, None)
        if self._flight is not None and self._flight.caller is None:
            self._link.refuses_credentials = status in UNAUTHENTICATED
        if status == 401 and self._again and self._flight is not None and self._flight.tokens:
            challenge = read_challenge(headers.get(b"www-authenticate"))
            self._flight.state = QUEUED  # refused, so it has not run
            self._link.tasks.spawn(self._link.post_again(self._flight, *self._again, challenge))
        elif status < 300 and self._again is not None:
            self._again[1].is_used = True
        elif status == 404:
            self._link.mark_lost("it no longer knows us: it refused a message with HTTP 404")
        elif status >= 400 and self._flight is not None:
            why = f"it refused the message with HTTP {status}"
            delivery = Delivery.UNKNOWN if status >= 500 else Delivery.EXECUTED
            if status == 429:
                delivery = Delivery.NOT_SENT  # refused before it ran
            failure = read_failure(status, headers, is_session_lost=False)
            outcome = outcomes.failed(
                INTERNAL_ERROR, why, delivery, failure=failure, server=self._link.server
            )
            self._link.multiplexer.fail(self._flight, outcome)

    def on_lost(self, why: str) -> None:
        resolve(self.answered, None)
        if self._flight is not None:
            self._link.lose_flight(self._flight, why)
