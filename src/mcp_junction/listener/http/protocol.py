"""HttpProtocol: HTTP/1.1 for uvicorn's server, on httptools, at half the cost of its own.

A request is handed to the app when its body is complete; a head that was parsed before is not
parsed again (``heads.py``); head and body of a response go out in one write; one timer a connection
watches for idleness and for requests that drip in, instead of one a request. What the app sees is
ASGI, so any ASGI app can stand behind it, and uvicorn's own protocol could take its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from mcp_junction.listener.http.exchange import STATUS, AsgiExchange, Patience
from mcp_junction.listener.http.heads import CachedHead, Fields, cache_head
from mcp_junction.listener.http.owner import is_own_peer
from mcp_junction.listener.http.parsing import RequestParser
from mcp_junction.policy.quotas import Quotas, QuotaUsage
from mcp_junction.protocol.lines import MERGE_EVERY, merge_small
from mcp_junction.resilience.read_budget import AT_ONCE, PacedInput, ReadBudget
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.http")

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_QUEUED: Final = 16


class HttpProtocol(asyncio.Protocol):
    """One connection of a client. ``protocol_for`` makes the class that uvicorn is given."""

    __slots__ = (
        "_answer_checked", "_app", "_base", "_begun", "_body", "_body_size", "_cached_head",
        "_current", "_due", "_has_head", "_header_bytes", "_idle_after", "_idle_since",
        "_is_own_peer", "_is_refused", "_keep_alive", "_last_active", "_last_scope", "_loop",
        "_paced", "_parser", "_paused", "_queue", "_resumed", "_state", "_timer", "_transport",
        "_unparsed", "_usage", "fields", "owes_continue", "url", "written",
    )  # fmt: skip

    max_body: int
    patience: Patience
    tasks: TaskScope
    read_budget: ReadBudget
    stalls: StallSweep | None = None
    quotas: Quotas | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = config.loaded_app
        self._answer_checked = getattr(self._app, "answer_checked", None)
        self._idle_after = config.timeout_keep_alive
        self._state = server_state
        self._loop = _loop or asyncio.get_event_loop()
        self._parser = RequestParser(self)
        self._paced = PacedInput(self, self.read_budget)
        self._transport: asyncio.Transport | None = None
        self._base: dict[str, Any] = {}
        self._queue: deque[AsgiExchange] | None = None
        self._current: AsgiExchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._usage: QuotaUsage | None = None  # of the principal that unsent bytes count for
        self.written = 0
        self._resumed: asyncio.Future[None] | None = None
        self._keep_alive = True
        self._is_refused = False  # whether what comes is no request for here
        self._begun = 0.0  # when the request began that is coming in; 0 when none is
        self._cached_head: CachedHead | None = None
        self._is_own_peer: bool | None = None
        self._last_scope: dict[str, Any] | None = None
        self._begin()

    def _begin(self) -> None:
        self.url = b""
        self.fields = Fields()
        self._header_bytes = 0
        self._unparsed = 0  # bytes that httptools keeps, as the beginning of a header
        self._has_head = False  # whether it is complete: what follows the body is no part of it
        self.owes_continue = False
        self._body: list[bytes] = []
        self._body_size = 0

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self._state.connections.add(self)  # type: ignore[arg-type]
        if self.stalls is not None:
            self.stalls.watch(self)
        tls = transport.get_extra_info("sslcontext") is not None
        self._base = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "https" if tls else "http",
            "client": transport.get_extra_info("peername"),
            "server": transport.get_extra_info("sockname"),
            "root_path": "",
        }
        self._last_active = self._idle_since = self._loop.time()
        self._due = self._idle_since + self._idle_after
        self._timer = self._loop.call_later(self._idle_after, self._check_time)

    def data_received(self, data: bytes) -> None:
        self._last_active = self._loop.time()
        begins = not self._begun and self._keep_alive
        if (
            begins
            and self._cached_head is not None
            and (matched := self._cached_head.match(data)) is not None
        ):
            scope, body = matched
            if len(body) <= self.max_body:
                self._take(AsgiExchange(self, scope, body))
                return
        self._last_scope = None
        if len(data) <= AT_ONCE:
            self.receive_piece(data)
        elif self._paced.take(data) and self._transport is not None:
            self._transport.pause_reading()
        if begins and not self._begun:
            self._remember(data)

    def receive_piece(self, piece: bytes | memoryview, *, is_last: bool = True) -> None:
        """Parse what has come, or a piece of it."""
        if self._is_refused:
            return
        self._unparsed += len(piece)
        try:
            self._parser.feed(piece)
        except httptools.HttpParserError:
            self._refuse(400, b"this is not HTTP")
        if self._begun:
            if self._unparsed > MAX_HEADER_BYTES:  # httptools copies all of it each time
                self._refuse(431, b"the headers are too large")
            self._watch()

    def resume_input(self) -> None:
        """Read on, unless enough waits."""
        is_full = self._queue is not None and len(self._queue) >= MAX_QUEUED
        if self._transport is not None and not is_full and not self._paced.is_waiting:
            self._transport.resume_reading()

    def _remember(self, data: bytes) -> None:
        """Cache the head of ``data``, if that was exactly one request."""
        if self._last_scope is not None and not self._paced.is_waiting:
            self._cached_head = cache_head(data, self._last_scope)
        self._last_scope = None

    def eof_received(self) -> None:
        pass  # a client that closes its side counts as gone, though it may still read

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        if self.stalls is not None:
            self.stalls.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        self._transport = self._cached_head = None
        del self._parser, self._paced  # they hold methods of ours: a cycle for the collector
        self._is_refused = True
        self.resume_writing()
        for exchange in (self._current, *(self._queue or ())):
            if exchange is not None:
                exchange.disconnect()
        self._queue = None

    def pause_writing(self) -> None:
        self._paused = True
        asking = self._current.principal if self._current is not None else None
        if asking is not None and self.quotas is not None:
            self._usage = self.quotas.of(asking)
            self._usage.count_unsent(self, self.unsent)

    def resume_writing(self) -> None:
        self._paused = False
        if self._usage is not None:
            self._usage.stop_counting(self)
            self._usage = None
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        if self._queue and self._current is None and self._transport is not None:
            self._next()

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def cut_stalled(self, seconds: float) -> None:
        log.info("a client has read nothing for %.0f s; its connection is closed", seconds)
        self.cut()

    def cut(self) -> None:
        """End the connection, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def shutdown(self) -> None:
        """Finish the current request and take no more; the server is ending."""
        self._keep_alive = False
        if self._current is None and self._transport is not None:
            self._transport.close()

    def _check_time(self) -> None:
        """Close a connection that is idle for too long, or whose request drips in."""
        now = self._loop.time()
        due = self._deadline() if self._current is None else now + self._idle_after
        if due > now or self._transport is None:
            self._arm(due)
            return
        self._timer = None
        if self._begun:
            self._refuse(408, b"the request took too long to come in")
        else:
            self._transport.close()

    def _deadline(self) -> float:
        """The time at which to close the connection, if no response is being written."""
        since = self._idle_since
        if not self._begun:
            return since + self._idle_after
        size = min(self._body_size, self.max_body)
        return self.patience.until(max(self._begun, since), max(self._last_active, since), size)

    def _watch(self) -> None:
        """Move the timer forward for a request that has come in part."""
        if self._current is None and self._timer is not None:
            due = self._deadline()
            if due < self._due:
                self._timer.cancel()
                self._arm(due)

    def _arm(self, due: float) -> None:
        self._due = due
        wait = max(due - self._loop.time(), 0.05)
        self._timer = self._loop.call_later(wait, self._check_time)

    @property
    def is_own_peer(self) -> bool:
        """Whether the client is a process of our own user; checked once per connection."""
        if self._is_own_peer is None:
            self._is_own_peer = is_own_peer(self._base["server"], self._base["client"])
        return self._is_own_peer

    # -- httptools

    def on_message_begin(self) -> None:
        self._begun = self._last_active
        self._begin()

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._header_bytes += len(url)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, b"the headers are too large")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unparsed = 0
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, b"the headers are too large")
        if self._has_head:
            return
        name = name.lower()
        if value[-1:] in (b" ", b"\t"):  # httptools leaves it at the end
            value = value.strip(b" \t")
        self.fields.append((name, value))
        self.fields.by_name[name] = value

    def on_headers_complete(self) -> None:
        self._has_head = True
        self.owes_continue = b"expect" in self.fields.by_name
        if self._current is None and not self._queue:
            self._continue()

    def _continue(self) -> None:
        """Have a client that waits for it send the body, once all before is answered."""
        if self.owes_continue and self._transport is not None:
            self.owes_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body_size += len(body)
        if self._body_size <= self.max_body:
            self._body.append(body)
            if not len(self._body) % MERGE_EVERY:
                merge_small(self._body)
        elif self._body:
            self._body = []

    def on_message_complete(self) -> None:
        if self._parser.is_upgrading:
            return  # the parser takes the body for what comes after the upgrade
        self._begun = 0.0
        scope = {**self._base, **self._parser.scope()}
        parts, self._body = self._body, []
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        exchange = AsgiExchange(self, scope, body if self._body_size <= self.max_body else None)
        exchange.keep_alive = self._parser.keeps_alive
        self._last_scope = scope if exchange.keep_alive else None
        self._take(exchange)

    def _take(self, exchange: AsgiExchange) -> None:
        """Start a complete request, or queue it behind the current one."""
        if self._transport is None or self._transport.is_closing() or self._is_refused:
            return
        if self._current is None and not self._paused:
            exchange.keep_alive = exchange.keep_alive and self._keep_alive
            self._current = exchange
            self.tasks.run_pooled(exchange.run(self._app, self._answer_checked))
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(exchange)
        if len(self._queue) >= MAX_QUEUED:
            self._transport.pause_reading()

    # -- responses

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self.written += len(data)
            self._transport.write(data)

    def write_last(self, exchange: AsgiExchange, data: bytes) -> None:
        """Write all of a response, and go on to the next request."""
        self.written += len(data)
        if self._transport is not None:
            self._transport.write(data)
        self.finish(exchange)

    def write_parts(self, parts: tuple[bytes, bytes]) -> None:
        """Write head and body in one step, without copying the body."""
        if self._transport is not None:
            self.written += len(parts[0]) + len(parts[1])
            self._transport.writelines(parts)

    async def drain(self) -> None:
        """Wait until the client has taken some of what was written."""
        while self._paused:
            if self._resumed is None or self._resumed.done():
                self._resumed = self._loop.create_future()
            await asyncio.shield(self._resumed)  # others may wait for it too

    @property
    def is_paused(self) -> bool:
        return self._paused

    def finish(self, exchange: AsgiExchange) -> None:
        """Go on to the next request after a complete response."""
        if self._current is not exchange:
            return
        self._current = None
        self._idle_since = self._loop.time()
        transport = self._transport
        if transport is None:
            return
        if not (exchange.keep_alive and self._keep_alive):
            transport.close()
        elif self._queue and not self._paused:  # a client that does not read gets no more done
            self._next()
        elif self._begun:
            if not self._queue:
                self._continue()
            self._watch()

    def _next(self) -> None:
        assert self._queue is not None
        assert self._transport is not None
        exchange = self._queue.popleft()
        if len(self._queue) == MAX_QUEUED - 1:
            self.resume_input()
        exchange.keep_alive = exchange.keep_alive and self._keep_alive
        self._current = exchange
        self.tasks.run_pooled(exchange.run(self._app, self._answer_checked))

    def _refuse(self, status: int, words: bytes) -> None:
        """Answer a request that cannot be handed to the app, and close the connection."""
        if self._transport is None or self._transport.is_closing():
            return
        self._keep_alive, self._is_refused = False, True
        if self._current is None:  # else that is answered first
            head = b"%bcontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self._transport.write(head % (STATUS[status], len(words)) + words)
            self._transport.close()
