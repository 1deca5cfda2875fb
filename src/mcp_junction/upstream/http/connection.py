"""Connection: one HTTP/1.1 connection to a server, one exchange at a time.

Callbacks instead of coroutines: whoever makes an exchange is told of its head, data and end. No
redirects, no cookies, no content codings: it asks for none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import httptools

from mcp_junction.resilience.stalls import StallSweep

MAX_HEADER_BYTES: Final = 64 * 1024


class HttpExchange(Protocol):
    """One request and what comes back."""

    payload: bytes

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for more of it."""
        ...

    def written(self) -> None:
        """Its first byte was handed to the transport."""
        ...

    def head(self, status: int, headers: dict[bytes, bytes]) -> None: ...

    def data(self, chunk: bytes) -> None: ...

    def done(self) -> None:
        """The response is complete."""
        ...

    def lost(self, why: str) -> None:
        """There will be no (more of the) response."""
        ...


class Connection(asyncio.Protocol):
    """Parses responses and hands them to the exchange under way."""

    __slots__ = (
        "_closed", "_exchange", "_header_bytes", "_headers", "_idle", "_parser", "_stalls",
        "_transport", "_until_close", "carried", "idle_since", "written",
    )  # fmt: skip

    def __init__(
        self,
        idle: Callable[[Connection], None],
        closed: Callable[[Connection], None],
        stalls: StallSweep | None = None,
    ) -> None:
        self._stalls = stalls
        self.written = 0
        self._idle = idle
        self._closed = closed
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._until_close = False
        self._exchange: HttpExchange | None = None
        self._transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self.carried: HttpExchange | None = None
        """The last exchange it was given; its pool forgets it when the connection comes free."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if self._stalls is not None:
            self._stalls.watch(self)

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def start(self, exchange: HttpExchange) -> None:
        assert self._transport is not None
        self._exchange = self.carried = exchange
        exchange.written()
        self.written += len(exchange.payload)
        self._transport.write(exchange.payload)

    def abort(self) -> None:
        """Drop the connection and whatever was under way, without a word to its exchange."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    @property
    def unsent(self) -> int:
        """Bytes that the server has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def cut_stalled(self, seconds: float) -> None:
        self._fail(f"it has read nothing of the request for {seconds:.0f} s")

    def carries(self, exchange: HttpExchange) -> bool:
        return self._exchange is exchange

    @property
    def is_over(self) -> bool:
        """Whether it still brings something that nobody waits for."""
        return self._exchange is not None and self._exchange.is_over

    @property
    def is_parked(self) -> bool:
        """Whether it waits for someone to answer the server, for as long as that takes."""
        return getattr(self._exchange, "is_parked", False)

    # -- asyncio

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:  # nothing was asked: it is closing, or out of step
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"its response is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        self._closed(self)
        if self._stalls is not None:
            self._stalls.forget(self)
        del self._parser  # it holds methods of ours: a cycle for the collector
        self._transport = None
        if exchange is None:
            return
        if exc is None and self._until_close:
            exchange.done()
        else:
            exchange.lost(str(exc) if exc else "it closed the connection")

    def _fail(self, why: str) -> None:
        exchange, self._exchange = self._exchange, None
        if self._transport is not None:
            self._transport.abort()
        if exchange is not None:
            exchange.lost(why)

    # -- httptools

    def on_message_begin(self) -> None:
        self._headers = {}
        self._header_bytes = 0
        self._until_close = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value.strip()
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._fail("the headers of its response are too large")

    def on_headers_complete(self) -> None:
        sized = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        self._until_close = not sized
        headers, self._headers = self._headers, {}
        if self._exchange is not None:
            self._exchange.head(self._parser.get_status_code(), headers)

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.data(body)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or self._parser.get_status_code() < 200:  # 100 Continue and the like
            return
        self._exchange = None
        keep = self._parser.should_keep_alive()
        if keep and self.usable:
            self._idle(self)
        elif self._transport is not None:
            self._transport.close()
        exchange.done()
