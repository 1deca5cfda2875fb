"""HTTP/1.1 for uvicorn's server, on httptools: less than its own does, and at half the cost.

A request is handed to the app when its body is complete; head and body of a response go out in one
write; one timer a connection watches for idleness instead of one a request. What the app sees is
ASGI, so any ASGI app can stand behind it, and uvicorn's own protocol could take its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.http")

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_QUEUED: Final = 16

_STATUS = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_BODILESS = (204, 304)
_LARGE = 64 * 1024
_BLANK = (b" ", b"\t")


class HttpProtocol(asyncio.Protocol):
    """One connection of a client. ``protocol_for`` makes the class that uvicorn is given."""

    __slots__ = (
        "_app", "_base", "_body", "_body_size", "_current", "_header_bytes", "_headers",
        "_idle_after", "_keep_alive", "_last_active", "_loop", "_parser", "_paused",
        "_queue", "_resumed", "_state", "_timer", "_transport", "_url",
    )  # fmt: skip

    max_body: int
    tasks: TaskScope

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = config.loaded_app
        self._idle_after = config.timeout_keep_alive
        self._state = server_state
        self._loop = _loop or asyncio.get_event_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._base: dict[str, Any] = {}
        self._queue: deque[Exchange] | None = None
        self._current: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._resumed: asyncio.Future[None] | None = None
        self._keep_alive = True
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_size = 0

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self._state.connections.add(self)  # type: ignore[arg-type]
        tls = transport.get_extra_info("sslcontext") is not None
        self._base = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "https" if tls else "http",
            "client": transport.get_extra_info("peername"),
            "server": transport.get_extra_info("sockname"),
            "root_path": "",
        }
        self._last_active = self._loop.time()
        self._timer = self._loop.call_later(self._idle_after, self._check_idle)

    def data_received(self, data: bytes) -> None:
        self._last_active = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # not offered here; the request itself was complete and is answered
        except httptools.HttpParserError:
            self._refuse(400, b"this is not HTTP")

    def eof_received(self) -> None:
        pass  # whoever closes its side is gone: a client that still reads looks no different

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self.resume_writing()
        for exchange in (self._current, *(self._queue or ())):
            if exchange is not None:
                exchange.disconnect()
        self._queue = None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        if self._queue and self._current is None and self._transport is not None:
            self._next()

    def shutdown(self) -> None:
        """The server is ending: finish what runs, take nothing more."""
        self._keep_alive = False
        if self._current is None and self._transport is not None:
            self._transport.close()

    def _check_idle(self) -> None:
        """Close a connection on which nothing has happened for as long as it is kept alive."""
        left = self._last_active + self._idle_after - self._loop.time()
        if self._current is not None:
            left = self._idle_after
        if left <= 0 and self._transport is not None:
            self._transport.close()
            self._timer = None
        else:
            self._timer = self._loop.call_later(max(left, 0.05), self._check_idle)

    # -- httptools

    def on_message_begin(self) -> None:
        self._begin()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if value[-1:] in _BLANK:  # httptools leaves it at the end
            value = value.strip(b" \t")
        self._headers.append((name, value))
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, b"the headers are too large")
        if name == b"expect" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, b"the headers are too large")

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size <= self.max_body:
            self._body.append(body)
        elif self._body:
            self._body = []

    def on_message_complete(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        exchange = Exchange(self, self._scope(), self._take_body(), self._body_size)
        exchange.keep_alive = self._parser.should_keep_alive()
        if self._current is None and not self._paused:
            self._start(exchange)
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(exchange)
        if len(self._queue) >= MAX_QUEUED:
            self._transport.pause_reading()

    def _take_body(self) -> bytes:
        body, self._body = self._body, []
        return body[0] if len(body) == 1 else b"".join(body)

    def _scope(self) -> dict[str, Any]:
        raw, _, query = self._url.partition(b"?")
        path = raw.decode("latin-1")
        return {
            **self._base,
            "http_version": self._parser.get_http_version(),
            "method": self._parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw,
            "query_string": query,
            "headers": self._headers,
        }

    def _start(self, exchange: Exchange) -> None:
        exchange.keep_alive = exchange.keep_alive and self._keep_alive
        self._current = exchange
        self.tasks.spawn(exchange.run(self._app))

    # -- responses

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def write_parts(self, parts: tuple[bytes, bytes]) -> None:
        """Both in one go, without copying the second."""
        if self._transport is not None:
            self._transport.writelines(parts)

    async def drained(self) -> None:
        """Wait until the client has taken some of what was written."""
        while self._paused:
            if self._resumed is None or self._resumed.done():
                self._resumed = self._loop.create_future()
            await asyncio.shield(self._resumed)  # others may wait for it too

    @property
    def is_paused(self) -> bool:
        return self._paused

    def finished(self, exchange: Exchange) -> None:
        """A response is complete: on to the next request."""
        if self._current is not exchange:
            return
        self._current = None
        self._state.total_requests += 1
        transport = self._transport
        if transport is None:
            return
        if not (exchange.keep_alive and self._keep_alive):
            transport.close()
        elif self._queue and not self._paused:  # a client that does not read gets no more done
            self._next()

    def _next(self) -> None:
        assert self._queue is not None
        assert self._transport is not None
        if len(self._queue) == MAX_QUEUED:
            self._transport.resume_reading()
        self._start(self._queue.popleft())

    def _refuse(self, status: int, words: bytes) -> None:
        """Answer what cannot be handed to the app, and hang up."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._current is None:
            head = b"%bcontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self._transport.write(head % (_STATUS[status], len(words)) + words)
        self._transport.close()


def protocol_for(tasks: TaskScope, max_body: int) -> type[HttpProtocol]:
    """The protocol, with the owner of its tasks and the size of body it takes."""
    return type("Protocol", (HttpProtocol,), {"tasks": tasks, "max_body": max_body})


class Exchange:
    """One request, and the response to it: ASGI's receive and send."""

    __slots__ = (
        "_body", "_chunked", "_disconnected", "_gone", "_head", "_protocol", "_read", "_scope",
        "_size", "_started", "complete", "keep_alive", "when_gone",
    )  # fmt: skip

    def __init__(
        self, protocol: HttpProtocol, scope: dict[str, Any], body: bytes, size: int
    ) -> None:
        self._protocol = protocol
        self._scope = scope
        self._body = body
        self._size = size
        self._read = False
        self._head = b""
        self._started = False
        self._chunked = False
        self._gone = False
        self._disconnected: asyncio.Future[None] | None = None
        self.complete = False
        self.keep_alive = True
        self.when_gone: Callable[[], None] | None = None
        """Told when the response is complete or the client has left; ``receive`` says it too."""

    async def run(self, app: Any) -> None:
        try:
            self._scope["exchange"] = self
            await app(self._scope, self.receive, self.send)
        except Exception:  # the client still gets an answer
            log.exception("a request failed inside Junction")
            self.keep_alive = False
            if not self._started:
                await self.send({"type": "http.response.start", "status": 500, "headers": []})
                await self.send({"type": "http.response.body", "body": b""})
        finally:
            if not self.complete:
                self.keep_alive = False
                self.complete = True
            self._protocol.finished(self)

    @property
    def body(self) -> bytes | None:
        """The whole body, without asking ``receive`` for it; None when it was too large to keep."""
        return self._body if self._size <= self._protocol.max_body else None

    def respond(self, head: bytes, body: bytes) -> None:
        """A whole response in one step: status line and headers, without the blank line."""
        if self._gone or self._started:
            return
        self._started = self.complete = True
        close = b"" if self.keep_alive else b"connection: close\r\n"
        head = b"%bcontent-length: %d\r\n%b\r\n" % (head, len(body), close)
        if len(body) < _LARGE:
            self._protocol.write(head + body)
        else:
            self._protocol.write_parts((head, body))
        self._protocol.finished(self)

    def disconnect(self) -> None:
        self._gone = True
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(None)
        if self.when_gone is not None:
            self.when_gone()

    async def receive(self) -> dict[str, Any]:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        if not self._gone and not self.complete:
            self._disconnected = asyncio.get_running_loop().create_future()
            await self._disconnected
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if self._gone:
            return
        if self._protocol.is_paused:
            await self._protocol.drained()
        if not self._started:
            self._start(message)
        elif not self.complete:
            self._continue(message)

    def _start(self, message: dict[str, Any]) -> None:
        self._started = True
        status: int = message["status"]
        parts = [_STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status]
        sized = status in _BODILESS
        for name, value in message.get("headers", ()):
            if b"\r" in value or b"\n" in value:
                raise ValueError("a header holds a line break")
            sized = sized or name == b"content-length"
            parts.append(b"%b: %b\r\n" % (name, value))
        if not sized and self._scope["http_version"] == "1.0":
            self.keep_alive = False  # the end of the connection is the end of the body
        elif not sized:
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        self._head = b"".join(parts)

    def _continue(self, message: dict[str, Any]) -> None:
        body: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        if self._scope["method"] == "HEAD":
            body = b""
        elif self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk if more else chunk + b"0\r\n\r\n"
        data = self._head + body if self._head else body
        self._head = b""
        if data:
            self._protocol.write(data)
        if not more:
            self.complete = True
            self.disconnect()
            self._protocol.finished(self)
