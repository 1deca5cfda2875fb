"""Connection: one HTTP/1.1 connection to a server, which carries one HttpExchange at a time.

An exchange is driven by callbacks instead of coroutines. Redirects, cookies and content codings are
not supported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import httptools

from mcp_junction.config.urls import UrlTarget, parse_url
from mcp_junction.resilience.read_budget import AT_ONCE, PacedInput, ReadBudget
from mcp_junction.resilience.stalls import StallSweep

MAX_HEADER_BYTES: Final = 64 * 1024
OVERDUE_AFTER: Final = 30.0
"""Seconds after which the response to a request is given up that says nothing but a status."""
_CHALLENGE: Final = b"www-authenticate"
_TOO_LARGE: Final = "the headers of its response are too large"


class Target(UrlTarget):
    """A url's address and path, and how a request to it begins."""

    __slots__ = ()

    def head(self, method: str, headers: dict[str, str]) -> bytes:
        """The request line and fixed headers; the caller adds its own and the blank line."""
        lines = [f"{method} {self.path} HTTP/1.1", f"host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def parse_target(url: str) -> Target:
    """Parse a url. Raises ValueError when it makes no sense."""
    place = parse_url(url)
    return Target(place.host, place.port, place.path, place.tls)


class HttpExchange:
    """One request and the callbacks for its response; each does nothing unless overridden."""

    __slots__ = ("connection", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.connection: Connection | None = None
        """The connection that carries it now."""

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for more of the response."""
        return False

    @property
    def is_parked(self) -> bool:
        """Whether the server waits for a client's answer, for as long as that takes."""
        return False

    def on_written(self) -> None:
        """The first byte of the request was handed to the transport."""

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """The status and headers of the response have arrived."""

    def on_data(self, chunk: bytes) -> None:
        """A part of the response's body has arrived."""

    def on_complete(self) -> None:
        """The response is complete."""

    def on_lost(self, why: str) -> None:
        """The connection failed: there will be no (more of the) response."""


def is_overdue(written_at: float) -> bool:
    """Whether the response to such a request is given up; ``written_at`` is when it was written."""
    return asyncio.get_running_loop().time() - written_at > OVERDUE_AFTER


class Connection(asyncio.Protocol):
    """Parses responses and hands them to the exchange under way."""

    __slots__ = (
        "_answered", "_exchange", "_has_more", "_header_bytes", "_headers", "_keeps_alive",
        "_on_closed", "_on_idle", "_paced", "_parser", "_stalls", "_transport", "_unparsed",
        "_until_close", "idle_since", "written",
    )  # fmt: skip

    def __init__(
        self,
        on_idle: Callable[[Connection], None],
        on_closed: Callable[[Connection], None],
        stalls: StallSweep | None = None,
        read_budget: ReadBudget | None = None,
    ) -> None:
        self._stalls = stalls
        self._paced = PacedInput(self, read_budget or ReadBudget())
        self.written = 0
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._unparsed = 0
        """Bytes that have come in a row and are no body yet; -1 when the last of them were."""
        self._until_close = False
        self._exchange: HttpExchange | None = None
        self._answered: HttpExchange | None = None
        """The exchange whose response is complete, until all that has come is parsed."""
        self._keeps_alive = False
        self._has_more = False
        """Whether something follows the response that nobody has asked for."""
        self._transport: asyncio.Transport | None = None
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if self._stalls is not None:
            self._stalls.watch(self)

    @property
    def is_usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def start(self, exchange: HttpExchange) -> None:
        """Write the request of an exchange, which gets the response."""
        assert self._transport is not None
        self._exchange = exchange
        exchange.connection = self
        exchange.on_written()
        self.written += len(exchange.payload)
        self._transport.write(exchange.payload)

    def abort(self) -> None:
        """Drop the connection; the exchange under way gets no further callback."""
        self._release()
        if self._transport is not None:
            self._transport.abort()

    def _release(self) -> HttpExchange | None:
        """Part with the exchange under way, if there is one."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.connection = None
        return exchange

    @property
    def unsent(self) -> int:
        """Bytes that the server has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def cut_stalled(self, seconds: float) -> None:
        self._fail(f"it has read nothing of the request for {seconds:.0f} s")

    @property
    def is_over(self) -> bool:
        """Whether it still receives a response that nobody waits for."""
        return self._exchange is not None and self._exchange.is_over

    @property
    def is_parked(self) -> bool:
        """Whether its exchange waits for a client's answer."""
        return self._exchange is not None and self._exchange.is_parked

    # -- asyncio

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:  # no request is under way: it is closing, or out of step
            self.abort()
            return
        if len(data) > AT_ONCE:
            if self._paced.take(data) and self._transport is not None:
                self._transport.pause_reading()
            return
        self._parse(data)
        if self._answered is not None:
            self._finish(self._answered)

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"its response is not HTTP: {error}")
        except httptools.HttpParserUpgrade:
            self._fail("it switches to another protocol, which it was not asked for")
        if self._answered is None and self._exchange is not None:
            self._unparsed = 0 if self._unparsed < 0 else self._unparsed + len(data)
            if self._unparsed > MAX_HEADER_BYTES:  # httptools copies all of a header each time
                self._fail(_TOO_LARGE)

    def receive_piece(self, piece: memoryview, *, is_last: bool) -> None:
        """Parse a piece of much that has come at once."""
        if self._exchange is not None or self._answered is not None:
            self._parse(piece)
        if is_last and self._answered is not None:
            self._finish(self._answered)

    def resume_input(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _finish(self, exchange: HttpExchange) -> None:
        """Go on after a complete response; not with a connection that is out of step."""
        self._answered = None
        if self._has_more:
            self.abort()
        elif self._keeps_alive and self.is_usable:
            self._on_idle(self)
        elif self._transport is not None:
            self._transport.close()
        exchange.on_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._paced.finish()  # an answer that has come is still an answer
        exchange = self._release()
        self._on_closed(self)
        if self._stalls is not None:
            self._stalls.forget(self)
        del self._parser, self._paced  # they hold methods of ours: a cycle for the collector
        self._transport = None
        if exchange is None:
            return
        if exc is None and self._until_close:
            exchange.on_complete()
        else:
            exchange.on_lost(str(exc) if exc else "it closed the connection")

    def _fail(self, why: str) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.on_lost(why)

    # -- httptools

    def on_message_begin(self) -> None:
        self._has_more = self._answered is not None
        self._headers = {}
        self._header_bytes = 0
        self._unparsed = -1
        self._until_close = False

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key == _CHALLENGE and key in self._headers:  # the only one that may come twice
            value = self._headers[key] + b", " + value
        self._headers[key] = value.strip()
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._fail(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        sized = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        headers, self._headers = self._headers, {}
        status = self._parser.get_status_code()
        self._until_close = status >= 200 and not sized
        if self._exchange is not None and status >= 200:  # else 100 Continue, say
            self._exchange.on_head(status, headers)

    def on_body(self, body: bytes) -> None:
        self._unparsed = -1
        if self._exchange is not None:
            self._exchange.on_data(body)

    def on_message_complete(self) -> None:
        if self._exchange is None or self._parser.get_status_code() < 200:
            return
        self._answered, self._exchange = self._exchange, None
        self._answered.connection = None
        self._until_close = False  # until the next response begins, nothing is
        self._keeps_alive = self._parser.should_keep_alive()
