"""HttpLink: a server over streamable HTTP, in either era, with one POST per request.

What arrives on the stream of a call belongs to that call. In the handshake era a session that the
server no longer knows is opened again once, and the call that found out is sent again: it was
refused, so it has not run. The stateless era has no session, and no stream but those of requests;
each request says its version and method in headers, and closing its stream cancels it.
RemoteLink is what it shares with the older transport (``sse_link.py``).
"""

from __future__ import annotations

import asyncio
from functools import lru_cache

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import check_headers
from mcp_junction.oauth.discovery import BearerChallenge
from mcp_junction.protocol import encode
from mcp_junction.protocol.param_headers import encode_value
from mcp_junction.protocol.sse import reconnect_delay
from mcp_junction.protocol.versions import HANDSHAKE, STATELESS, era_of
from mcp_junction.redaction.texts import KNOWN, redact_line
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.resilience.read_budget import ReadBudget
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import QUEUED, Flight, new_flight
from mcp_junction.upstream.http.connection import HttpExchange, parse_target
from mcp_junction.upstream.http.dialer import Dialer, dialer_for
from mcp_junction.upstream.http.exchanges import OwnRequest, PostedCall, StandingStream
from mcp_junction.upstream.http.pool import Pool
from mcp_junction.upstream.http.refusals import describe_body
from mcp_junction.upstream.link import LinkEnd, LinkListener
from mcp_junction.upstream.multiplexer import MultiplexedLink
from mcp_junction.upstream.outcome import LINK_FAILED, Outcome, OutcomeKind
from mcp_junction.upstream.tokens import NO_TOKEN, AccessToken, TokenSource

_ACCEPT = "application/json, text/event-stream"
_KEPT_METHODS = 64
_DESCRIBED_BYTES = 4096
_INITIALIZED_WAIT = 5.0


class RemoteLink(MultiplexedLink):
    """A link to a remote server: the pool for its requests, and why it ended."""

    _closed_words = "the link is closed"
    _end_words = "the connection was closed"

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
        super().__init__(definition.key, listener, definition.limits)
        self.tokens = tokens
        """The source of its tokens; calls may have another one of their own."""
        self._is_per_agent = definition.is_per_agent
        self._definition = definition
        self.limit = limit
        """The most bytes of one message."""
        self.tasks = TaskScope(f"link to {definition.key}")
        self._dialer = dialer or dialer_for(definition)
        self._where = parse_target(definition.url)
        self._headers = check_headers(definition.headers)
        self._read_budget = read_budget or ReadBudget()
        self.pool = Pool(
            self._where, self.tasks, self._dialer, self._limits, stalls, self._read_budget
        )
        self._why = ""

    def _refuse(self, flight: Flight, is_closed: bool) -> bool:
        """End a flight that cannot be sent now; whether that was so."""
        if self.pool.is_full:
            flight.end(outcomes.unavailable(self.server, "too many requests wait"))
        elif is_closed:
            flight.end(outcomes.unavailable(self.server, self._closed_words, LINK_FAILED))
        elif len(self.multiplexer.flights) >= self._limits.calls and flight.caller is not None:
            flight.end(outcomes.overloaded(self.server, len(self.multiplexer)))
        else:
            return False
        return True

    def _must_wait(self, flight: Flight, tokens: TokenSource) -> bool:
        """Give a flight the source of its token; whether it is sent later, when there is one."""
        caller = flight.caller
        if self._is_per_agent and caller is not None:
            tokens = tokens.for_principal(caller.principal)
        flight.tokens = tokens
        if not tokens.must_wait:
            return False
        self.multiplexer.flights[flight.wire_id] = flight
        self.tasks.spawn(self._send_when_ready(flight))
        return True

    @property
    def _token(self) -> AccessToken:
        return NO_TOKEN if self.tokens is None else self.tokens.current

    def sign_out(self, flight: Flight, outcome: Outcome) -> None:
        """End a flight that got no token. The link stays: what runs on it goes on."""
        if flight.caller is None:
            self.refuses_credentials = True
        self.multiplexer.fail(flight, outcome)

    async def _send_when_ready(self, flight: Flight) -> None:
        """Send a flight once there is a token for it."""
        outcome = await flight.tokens.prepare()
        if flight.future.done():
            return
        if outcome is None:
            self.multiplexer.forget(flight)  # it counts when it is sent, and not if it is refused
            self.send(flight)
        else:
            self.sign_out(flight, outcome)

    def mark_lost(self, why: str) -> None:
        if not self.closed.done():
            self._why = why
            self.closed.set_result(None)

    def lose_flight(self, flight: Flight, why: str) -> None:
        """End a flight that gets no answer, by whether it was sent."""
        if flight.state is QUEUED:
            outcome = outcomes.unavailable(self.server, why, LINK_FAILED)
        else:
            outcome = outcomes.link_lost(self.server, flight.delivery, why)
        self.multiplexer.fail(flight, outcome)

    async def end(self, grace: float) -> None:
        await self.release("it was stopped")

    async def release(self, why: str) -> None:
        self.mark_lost(why)
        self.pool.close()
        await self.multiplexer.close(why)
        await self.tasks.close()

    async def describe_end(self) -> LinkEnd:
        return LinkEnd(self._why or self._end_words)


class HttpLink(RemoteLink):
    """One session with one remote server."""

    def __init__(
        self,
        definition: ServerDefinition,
        listener: LinkListener,
        limit: int,
        dialer: Dialer | None = None,
        clock: Clock | None = None,
        stalls: StallSweep | None = None,
        tokens: TokenSource | None = None,
        read_budget: ReadBudget | None = None,
    ) -> None:
        super().__init__(definition, listener, limit, dialer, stalls, tokens, read_budget)
        self._listener = listener
        self.clock = clock or SystemClock()
        headers = {"accept": _ACCEPT, **self._headers}
        self._post_head = self._where.head("POST", {"content-type": "application/json", **headers})
        self._get_head = self._where.head("GET", headers)
        self._delete_head = self._where.head("DELETE", headers)
        self._version_header = b""
        self.session_header = b""
        """The header that names our session; empty when there is none."""
        self.streamed_session = b""
        """The session that had a standing stream: it is lost if that cannot be opened again."""
        self.refused_status = 0
        """The HTTP status with which the server refused ``initialize``."""
        self.ended_flight = new_flight("")
        """Takes the place of a call's flight while its stream stays open after the answer, so that
        the stream does not hold the result."""
        self.ended_flight.future.cancel()
        self._initialize_params = b""
        self._reopening: asyncio.Task[Outcome] | None = None
        self._standing: StandingStream | None = None

    # -- life

    async def begin_session(self, protocol_version: str) -> None:
        self._version_header = b"mcp-protocol-version: %b\r\n" % protocol_version.encode()
        self.era = era_of(protocol_version)
        self.multiplexer.is_stateless = self.era is STATELESS
        if self.era is HANDSHAKE:
            await self._send_initialized()

    async def _send_initialized(self) -> None:
        """Wait for the response: each POST may use another connection and overtake this one."""
        frame = encode.notification("notifications/initialized")
        request = OwnRequest(self, self.build_post(frame, b"", self._token.line))
        self.pool.send(request)
        await asyncio.wait({request.status}, timeout=_INITIALIZED_WAIT)
        self._open_standing()

    def _open_standing(self, last_id: bytes | None = None) -> None:
        self._standing = StandingStream(self, last_id)
        self.pool.send(self._standing)

    def on_standing_ended(
        self, stream: HttpExchange, retry: int | None, last_id: bytes | None
    ) -> None:
        """A standing stream has ended that was open; ``retry`` is in milliseconds."""
        if stream is self._standing and not self.closed.done():
            self.tasks.spawn(self._reopen_standing(reconnect_delay(retry), last_id))

    async def _reopen_standing(self, delay: float, last_id: bytes | None) -> None:
        await self.clock.sleep(delay)
        if self.tokens is not None and self.tokens.must_wait:
            await self.tokens.prepare()
        self._open_standing(last_id)

    async def end(self, grace: float) -> None:
        """Delete the session, if there is one, and release the link."""
        if self.session_header and not self.closed.done():
            own = self._token.line + self.session_header + self._version_header
            farewell = OwnRequest(self, self._delete_head + own + b"content-length: 0\r\n\r\n")
            self.pool.send(farewell)
            await asyncio.wait({farewell.status}, timeout=max(grace, 0.5))
        await super().end(grace)

    async def release(self, why: str) -> None:
        await super().release(why)
        self._standing = None  # it refers to us: a reference cycle

    # -- the Link protocol

    def send(self, flight: Flight) -> None:
        if self._refuse(flight, self.closed.done()):
            return
        flight.link = self
        if self.tokens is not None and self._must_wait(flight, self.tokens):
            return
        if flight.method == "initialize":
            self._initialize_params = flight.params
        frame = self.multiplexer.encode_request(flight)
        if self._reopening is not None and not self._reopening.done():
            self.tasks.spawn(self._post_when_open(flight, frame))
        else:
            self._post(flight, frame)

    def _post(self, flight: Flight, frame: bytes, causes: int = 0) -> None:
        flight.carrier = posted = PostedCall(self, flight, frame, causes)
        self.pool.send(posted)

    def cancel(self, flight: Flight, reason: str) -> None:
        if flight.state is QUEUED or self.era is STATELESS:
            self.multiplexer.forget(flight)  # not sent yet, or cancelled by the end of its stream
        else:
            self.multiplexer.cancel(flight, reason)
        if isinstance(flight.carrier, PostedCall):
            self.pool.drop(flight.carrier)

    def _write(self, frame: bytes) -> None:
        """Post a frame that has no answer; stateless servers take none.

        Dropped at the limit, so that memory stays bounded: a server may ask without end.
        """
        if not self.closed.done() and self.era is HANDSHAKE and not self.pool.is_full:
            payload = self.build_post(frame, b"", self._token.line)
            self.pool.send(OwnRequest(self, payload, frame))

    async def write_again(self, frame: bytes, challenge: BearerChallenge | None) -> None:
        """Post a frame once more whose token was refused."""
        assert self.tokens is not None
        if await self.tokens.renew(self._token, challenge, is_again=False) is None:
            self.pool.send(OwnRequest(self, self.build_post(frame, b"", self._token.line)))

    # -- a session that was lost

    def reopen_session(self, lost: bytes) -> None:
        """Open another session, because the server does not know the one with header ``lost``."""
        if lost == self.session_header:  # else another exchange has found out before
            self.session_header = b""
            self._reopening = self.tasks.spawn(self._reopen())

    async def _reopen(self) -> Outcome:
        version, self._version_header = self._version_header, b""
        flight = new_flight("initialize")
        flight.tokens = self.tokens
        flight.params = self._initialize_params
        self._post(flight, self.multiplexer.encode_request(flight))
        outcome = await flight.future
        self._version_header = version
        if outcome.kind is OutcomeKind.RESULT:
            await self._send_initialized()
            self._listener.on_renewed()
        else:
            self.mark_lost(_not_reopened(outcome))
        return outcome

    def resend(self, flight: Flight, frame: bytes, causes: int) -> None:
        """Send a call once more that the server refused, so that it has not run.

        ``causes`` has why it was sent again so far: for each once.
        """
        if flight.future.done():
            return
        flight.state = QUEUED
        if flight.caller is not None:
            flight.caller.count_replay()
        self.tasks.spawn(self._post_when_open(flight, frame, causes))

    async def _post_when_open(self, flight: Flight, frame: bytes, causes: int = 0) -> None:
        if self._reopening is not None:
            outcome = await asyncio.shield(self._reopening)
            if outcome.kind is not OutcomeKind.RESULT and not flight.future.done():
                why = _not_reopened(outcome)
                self.multiplexer.fail(flight, outcomes.unavailable(self.server, why, LINK_FAILED))
        if not flight.future.done():
            self._post(flight, frame, causes)

    # -- requests

    def build_post(self, frame: bytes, headers: bytes = b"", token: bytes = b"") -> bytes:
        return b"%b%b%b%b%bcontent-length: %d\r\n\r\n%b" % (
            self._post_head,
            token,
            self.session_header,
            self._version_header,
            headers,
            len(frame),
            frame,
        )

    def build_get(self, last_id: bytes | None) -> bytes:
        resume = b"last-event-id: %b\r\n" % last_id if last_id is not None else b""
        own = self._get_head + self._token.line
        return own + self.session_header + self._version_header + resume + b"\r\n"

    def call_headers(self, flight: Flight) -> bytes:
        """The headers of a request beside its version."""
        if self.era is HANDSHAKE:
            return flight.headers
        return _method_line(flight.method) + flight.headers

    # -- reports of exchanges

    def set_session(self, session_id: bytes) -> None:
        """Keep the id that the server has given to our session."""
        if all(32 < byte < 127 for byte in session_id):
            self.session_header = b"mcp-session-id: %b\r\n" % session_id

    @property
    def is_older_transport(self) -> bool:
        return self.refused_status in (400, 404, 405)

    def describe_body(self, body: bytes) -> str:
        """Describe a body that is not an answer, without secrets, which the server may repeat."""
        text = body[:_DESCRIBED_BYTES].decode("utf-8", "replace")
        return describe_body(KNOWN.redact(redact_line(text, self._definition), is_cut=True))


@lru_cache(_KEPT_METHODS)
def _method_line(method: str) -> bytes:
    return b"mcp-method: %b\r\n" % encode_value(method)


def _not_reopened(outcome: Outcome) -> str:
    return f"its session was lost and could not be opened again: {outcome.message}"
