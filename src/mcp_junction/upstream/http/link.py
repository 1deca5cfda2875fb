"""HttpLink: a server over streamable HTTP, in either era. One POST an exchange, as it comes.

What arrives on the stream of a call belongs to that call. In the handshake era a session that the
server has forgotten is opened again once, and the call that found out is sent again: it was
refused, so it has not run. In the stateless era there is no session and no stream but those of
requests; each request says its version and method in headers, and closing its stream cancels it.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec import Raw

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import lowered
from mcp_junction.protocol import encode
from mcp_junction.protocol.param_headers import encode_value
from mcp_junction.protocol.sse import reconnect_delay
from mcp_junction.protocol.versions import HANDSHAKE, STATELESS, Era, era_of
from mcp_junction.redaction.texts import redact_line
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.failure_causes import describe_body
from mcp_junction.upstream.flight import QUEUED, Flight, new_flight
from mcp_junction.upstream.http.dialer import Dialer, dialer_for
from mcp_junction.upstream.http.exchanges import OwnRequest, PostedCall, StandingStream
from mcp_junction.upstream.http.pool import Pool, parse_target
from mcp_junction.upstream.link import LinkEnd, LinkListener
from mcp_junction.upstream.multiplexer import Multiplexer
from mcp_junction.upstream.outcome import Outcome, OutcomeKind

log = logging.getLogger("mcp_junction.upstream")

_ACCEPT = "application/json, text/event-stream"
_INITIALIZED_WAIT = 5.0
_KEPT_METHODS = 64
_DESCRIBED = 4096
"""Bytes of a body that is no answer that are looked at."""


class HttpLink:
    """One session with one remote server."""

    def __init__(
        self,
        definition: ServerDefinition,
        ear: LinkListener,
        limit: int,
        dialer: Dialer | None = None,
        clock: Clock | None = None,
        stalls: StallSweep | None = None,
    ) -> None:
        self.server = definition.key
        self._definition = definition
        self.era: Era = HANDSHAKE
        self.limit = limit
        self.clock = clock or SystemClock()
        self.exchange = Multiplexer(definition.key, self._say, ear)
        self.users = self.exchange.users
        self._ear = ear
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tasks = TaskScope(f"link to {definition.key}")
        where = parse_target(definition.url)
        self._limits = definition.limits
        dialer = dialer or dialer_for(definition)
        self.pool = Pool(where, self.tasks, dialer, self._limits, stalls)
        headers = {"accept": _ACCEPT, **lowered(definition.headers)}
        self._post = where.head("POST", {"content-type": "application/json", **headers})
        self._get = where.head("GET", headers)
        self._delete = where.head("DELETE", headers)
        self._session = b""
        self._version = b""
        self._methods: dict[str, bytes] = {}
        self._opening: bytes = b""
        self._reopening: asyncio.Task[Outcome] | None = None
        self._standing: StandingStream | None = None
        self.streamed = b""
        """The session that had a standing stream: it is a sign if it can no longer be had."""
        self.why = ""
        self.refused_with = 0
        self.refuses_credentials = False

    # -- life

    async def opened(self, protocol_version: str) -> None:
        """Say the version from now on; in the handshake era, listen."""
        self._version = b"mcp-protocol-version: %b\r\n" % protocol_version.encode()
        self.era = self.exchange.era = era_of(protocol_version)
        if self.era is HANDSHAKE:
            await self._say_initialized()

    async def _say_initialized(self) -> None:
        """Each POST may take a way of its own: what follows must not overtake this one."""
        said = OwnRequest(self, self.post(encode.notification("notifications/initialized")))
        self.pool.send(said)
        await asyncio.wait({said.ended}, timeout=_INITIALIZED_WAIT)
        self._listen()

    def _listen(self, last_id: bytes | None = None) -> None:
        self._standing = StandingStream(self, last_id)
        self.pool.send(self._standing)

    def standing_ended(self, standing: StandingStream) -> None:
        """The stream for what belongs to no call has ended; open it again in a while."""
        if standing is self._standing and not self.closed.done() and standing.was_open:
            wait = reconnect_delay(standing.retry)
            self.tasks.spawn(self._listen_later(wait, standing.last_id))

    async def _listen_later(self, seconds: float, last_id: bytes | None) -> None:
        await self.clock.sleep(seconds)
        self._listen(last_id)

    async def gone(self) -> None:
        await asyncio.wait({self.closed})

    async def end(self, grace: float) -> None:
        """Say good-bye, if there is a session, and let go."""
        if self._session and not self.closed.done():
            farewell = OwnRequest(self, self._delete + self.session_headers() + _EMPTY)
            self.pool.send(farewell)
            await asyncio.wait({farewell.ended}, timeout=max(grace, 0.5))
        await self.release("it was stopped")

    async def release(self, why: str) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self.pool.close()
        await self.exchange.close(why)
        await self.tasks.close()
        self._standing = None  # it holds us: a cycle for the collector

    async def describe_end(self) -> LinkEnd:
        return LinkEnd(self.why or "the connection was closed")

    @property
    def stderr_tail(self) -> str:
        return ""

    @property
    def stray(self) -> str:
        return ""

    @property
    def speaks_older(self) -> bool:
        """Whether it refused our handshake as a server of the older HTTP+SSE transport does."""
        return self.refused_with in (400, 404, 405)

    @property
    def is_busy(self) -> bool:
        return len(self.exchange) > 0

    @property
    def calls(self) -> int:
        return self.exchange.calls

    # -- the Link protocol

    def send(self, flight: Flight) -> None:
        if self.closed.done() or self.pool.is_full:
            why = "too many requests wait" if self.pool.is_full else "the link is closed"
            flight.end(outcomes.unavailable(self.server, why))
            return
        if len(self.exchange) >= self._limits.calls and flight.passenger is not None:
            flight.end(outcomes.overloaded(self.server, len(self.exchange)))
            return
        flight.link = self
        self.exchange.register(flight)
        frame = encode.request(flight.wire_id, flight.method, flight.params)
        flight.params = b""  # a large call is not to be held twice while it runs
        if flight.method == "initialize":
            self._opening = frame
        if self._reopening is not None and not self._reopening.done():
            self.tasks.spawn(self._post_when_open(flight, frame, again=False))
        else:
            self._carry(flight, frame, again=False)

    def _carry(self, flight: Flight, frame: bytes, *, again: bool) -> None:
        flight.carrier = posted = PostedCall(self, flight, frame, again=again)
        self.pool.send(posted)

    def cancel(self, flight: Flight, reason: str) -> None:
        if flight.state is QUEUED or self.era is STATELESS:
            self.exchange.forget(flight)  # it has not heard of it, or hears by the stream's end
        else:
            self.exchange.cancel(flight, reason)
        if isinstance(flight.carrier, PostedCall):
            self.pool.drop(flight.carrier)

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        self.exchange.notify(method, params)

    def _say(self, frame: bytes) -> None:
        """Post something that has no answer; a stateless server takes nothing of the kind."""
        if not self.closed.done() and self.era is HANDSHAKE:
            self.pool.send(OwnRequest(self, self.post(frame)))

    # -- requests

    def post(self, frame: bytes, headers: bytes = b"") -> bytes:
        return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
            self._post,
            self.session_headers(),
            headers,
            len(frame),
            frame,
        )

    def headers_of(self, flight: Flight) -> bytes:
        """What a request says in headers beside its version."""
        if self.era is HANDSHAKE:
            return flight.headers
        return self._method_line(flight.method) + flight.headers

    def _method_line(self, method: str) -> bytes:
        line = self._methods.get(method)
        if line is None:
            line = b"mcp-method: %b\r\n" % encode_value(method)
            if len(self._methods) < _KEPT_METHODS:
                self._methods[method] = line
        return line

    def get(self, last_id: bytes | None) -> bytes:
        resume = b"last-event-id: %b\r\n" % last_id if last_id is not None else b""
        return self._get + self.session_headers() + resume + b"\r\n"

    def session_headers(self) -> bytes:
        return self._session + self._version

    # -- what exchanges report

    def session_given(self, session_id: bytes) -> None:
        if all(32 < byte < 127 for byte in session_id):
            self._session = b"mcp-session-id: %b\r\n" % session_id

    @property
    def session(self) -> bytes:
        """The header that names our session; empty when there is none."""
        return self._session

    def receive(self, data: bytes, flight: Flight | None) -> None:
        self.exchange.receive(data, on=flight)

    def session_lost(self, session: bytes) -> None:
        """The server no longer knows this session: open another, once."""
        if session == self._session:  # else that was done while this was under way
            self._session = b""
            self._reopening = self.tasks.spawn(self._reopen())

    async def _reopen(self) -> Outcome:
        version, self._version = self._version, b""
        flight = new_flight("initialize")
        self.exchange.register(flight)
        self._carry(flight, _with_id(self._opening, flight.wire_id), again=False)
        outcome = await flight.future
        self._version = version
        if outcome.kind is OutcomeKind.RESULT:
            await self._say_initialized()
            self._ear.renewed()
        else:
            words = f"its session was lost and could not be opened again: {outcome.message}"
            self.unreachable(words)  # its owner begins anew
        return outcome

    def post_again(self, posted: PostedCall) -> None:
        """Send a refused call once more: it was refused, so it has not run."""
        posted.flight.state = QUEUED
        self.tasks.spawn(self._post_when_open(posted.flight, posted.frame, again=True))

    async def _post_when_open(self, flight: Flight, frame: bytes, *, again: bool) -> None:
        if self._reopening is not None:
            outcome = await asyncio.shield(self._reopening)
            if outcome.kind is not OutcomeKind.RESULT and not flight.future.done():
                why = f"its session was lost and could not be opened again: {outcome.message}"
                self.exchange.drop(flight, outcomes.unavailable(self.server, why))
        if not flight.future.done():
            self._carry(flight, frame, again=again)

    def describe(self, body: bytes) -> str:
        """What a body is that is no answer, without secrets: the server may repeat them in it."""
        text = body[:_DESCRIBED].decode("utf-8", "replace")
        return describe_body(redact_line(text, self._definition))

    def unreachable(self, why: str) -> None:
        """No connection can be made: the link is lost, and its owner takes over."""
        if not self.closed.done():
            self.why = why
            self.closed.set_result(None)


_EMPTY = b"content-length: 0\r\n\r\n"


def _with_id(frame: bytes, wire_id: bytes) -> bytes:
    """A request we made, under another id."""
    head, _, rest = frame.partition(b',"method":')
    return head.partition(b'"id":')[0] + b'"id":' + wire_id + b',"method":' + rest
