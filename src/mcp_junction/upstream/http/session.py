"""RemoteLink: what both HTTP transports share; RemoteSession: an HttpLink as its exchanges use it.

The session builds requests, keeps the session id and the protocol version, and passes on what
arrives. How a lost session is opened again is decided by the HttpLink.
"""

from __future__ import annotations

from abc import abstractmethod

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.urls import check_headers
from mcp_junction.protocol.param_headers import encode_value
from mcp_junction.protocol.versions import HANDSHAKE
from mcp_junction.redaction.texts import redact_line
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.http.connection import HttpExchange, parse_target
from mcp_junction.upstream.http.dialer import Dialer, dialer_for
from mcp_junction.upstream.http.pool import Pool
from mcp_junction.upstream.http.refusals import describe_body
from mcp_junction.upstream.link import LinkEnd, LinkListener
from mcp_junction.upstream.multiplexer import MultiplexedLink
from mcp_junction.upstream.outcome import LINK_FAILED

_ACCEPT = "application/json, text/event-stream"
_KEPT_METHODS = 64
_DESCRIBED_BYTES = 4096


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
    ) -> None:
        super().__init__(definition.key, listener, definition.limits)
        self._definition = definition
        self.limit = limit
        """The most bytes of one message."""
        self.tasks = TaskScope(f"link to {definition.key}")
        self._dialer = dialer or dialer_for(definition)
        self._where = parse_target(definition.url)
        self._headers = check_headers(definition.headers)
        self.pool = Pool(self._where, self.tasks, self._dialer, self._limits, stalls)
        self._why = ""

    def _refuse(self, flight: Flight, is_closed: bool) -> bool:
        """End a flight that cannot be sent now; whether that was so."""
        if self.pool.is_full:
            flight.end(outcomes.unavailable(self.server, "too many requests wait"))
        elif is_closed:
            flight.end(outcomes.unavailable(self.server, self._closed_words, LINK_FAILED))
        elif len(self.multiplexer) >= self._limits.calls and flight.caller is not None:
            flight.end(outcomes.overloaded(self.server, len(self.multiplexer)))
        else:
            return False
        return True

    def mark_lost(self, why: str) -> None:
        if not self.closed.done():
            self._why = why
            self.closed.set_result(None)

    async def describe_end(self) -> LinkEnd:
        return LinkEnd(self._why or self._end_words)


class RemoteSession(RemoteLink):
    """A session with one remote server, without the decisions that HttpLink makes."""

    def __init__(
        self,
        definition: ServerDefinition,
        listener: LinkListener,
        limit: int,
        dialer: Dialer | None = None,
        clock: Clock | None = None,
        stalls: StallSweep | None = None,
    ) -> None:
        super().__init__(definition, listener, limit, dialer, stalls)
        self._listener = listener
        self.clock = clock or SystemClock()
        headers = {"accept": _ACCEPT, **self._headers}
        self._post_head = self._where.head("POST", {"content-type": "application/json", **headers})
        self._get_head = self._where.head("GET", headers)
        self._delete_head = self._where.head("DELETE", headers)
        self._method_lines: dict[str, bytes] = {}
        self._version_header = b""
        self.session_header = b""
        """The header that names our session; empty when there is none."""
        self.streamed_session = b""
        """The session that had a standing stream: it is lost if that cannot be opened again."""
        self.refused_status = 0
        """The HTTP status with which the server refused ``initialize``."""

    # -- requests

    def build_post(self, frame: bytes, headers: bytes = b"") -> bytes:
        return b"%b%b%b%bcontent-length: %d\r\n\r\n%b" % (
            self._post_head,
            self.session_header,
            self._version_header,
            headers,
            len(frame),
            frame,
        )

    def build_get(self, last_id: bytes | None) -> bytes:
        resume = b"last-event-id: %b\r\n" % last_id if last_id is not None else b""
        return self._get_head + self.session_header + self._version_header + resume + b"\r\n"

    def build_delete(self) -> bytes:
        headers = self._delete_head + self.session_header + self._version_header
        return headers + b"content-length: 0\r\n\r\n"

    def call_headers(self, flight: Flight) -> bytes:
        """The headers of a request beside its version."""
        if self.era is HANDSHAKE:
            return flight.headers
        return self._method_line(flight.method) + flight.headers

    def _method_line(self, method: str) -> bytes:
        line = self._method_lines.get(method)
        if line is None:
            line = b"mcp-method: %b\r\n" % encode_value(method)
            if len(self._method_lines) < _KEPT_METHODS:
                self._method_lines[method] = line
        return line

    # -- reports of exchanges

    def set_session(self, session_id: bytes) -> None:
        """Keep the id that the server has given to our session."""
        if all(32 < byte < 127 for byte in session_id):
            self.session_header = b"mcp-session-id: %b\r\n" % session_id

    @abstractmethod
    def reopen_session(self, lost: bytes) -> None:
        """Open another session, because the server does not know the one with header ``lost``."""

    @abstractmethod
    def resend(self, flight: Flight, frame: bytes) -> None:
        """Send a call once more that the server refused, so that it has not run."""

    @abstractmethod
    def on_standing_ended(
        self, stream: HttpExchange, retry: int | None, last_id: bytes | None
    ) -> None:
        """A standing stream has ended that was open; ``retry`` is in milliseconds."""

    @property
    def is_older_transport(self) -> bool:
        return self.refused_status in (400, 404, 405)

    def describe_body(self, body: bytes) -> str:
        """Describe a body that is not an answer, without secrets, which the server may repeat."""
        text = body[:_DESCRIBED_BYTES].decode("utf-8", "replace")
        return describe_body(redact_line(text, self._definition))
