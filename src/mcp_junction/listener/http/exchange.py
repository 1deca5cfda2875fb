"""AsgiExchange: one request and the response to it, as ASGI's receive and send. Patience with it.

It writes heads and chunks; the connection itself, and what is read from it, is ``protocol.py``'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec

from mcp_junction.policy.principal import Principal

log = logging.getLogger("mcp_junction.http")

STATUS: Final = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_BODILESS = (204, 304)
_LARGE = 64 * 1024
_SIZE: Final = b"\r\ncontent-length: "


class Patience(msgspec.Struct, frozen=True):
    """How long a request may take to come in; a slower client is cut off."""

    head: float = 30.0
    """Seconds for the head and the first byte of the body."""
    body: float = 60.0
    """Seconds without a byte of the body, and for the whole body beside what ``rate`` allows."""
    rate: int = 1024
    """The least bytes per second of a body."""

    def until(self, begun: float, last_active: float, size: int) -> float:
        """When it is over for a request of which ``size`` bytes of the body have come."""
        if not size:
            return begun + self.head
        return self.body + min(last_active, begun + size / self.rate)


class ClientConnection(Protocol):
    """The connection that an exchange writes its response to."""

    @property
    def is_own_peer(self) -> bool: ...

    @property
    def is_paused(self) -> bool:
        """Whether the client has yet to take what was written."""
        ...

    def write(self, data: bytes) -> None: ...

    def write_last(self, exchange: AsgiExchange, data: bytes) -> None:
        """Write all of a response, and go on to the next request."""
        ...

    def write_parts(self, parts: tuple[bytes, bytes]) -> None: ...

    async def drain(self) -> None: ...

    def finish(self, exchange: AsgiExchange) -> None: ...


AnswerChecked = Callable[["AsgiExchange"], Awaitable[None] | None]
"""Answers a request whose head an app has checked before, without ASGI; None for any other."""


class AsgiExchange(msgspec.Struct, eq=False):
    """One request, and the response to it: ASGI's receive and send."""

    _connection: ClientConnection
    scope: dict[str, Any]
    """The ASGI scope of all requests with its head: the app gets a copy."""
    body: bytes | None
    """The whole body, without ``receive``; None when it was too large to keep."""
    keep_alive: bool = True
    complete: bool = False
    principal: Principal | None = None
    """The sender of the request, once that is known."""
    is_gone: bool = False
    """Whether the response is complete or the client has left."""
    when_gone: Callable[[], None] | None = None
    """Called when that comes about: who sets it looks first whether it has."""
    when_left: Callable[[], None] | None = None
    """Called when the client leaves before the response is complete."""
    _read: bool = False
    _head: bytes = b""
    _started: bool = False
    _chunked: bool = False
    _disconnected: asyncio.Future[None] | None = None

    async def run(self, app: Any, answer_checked: AnswerChecked | None = None) -> None:
        """Have the request answered: directly, if the app has that way for it, else by ASGI."""
        try:
            answering = answer_checked(self) if answer_checked is not None else None
            if answering is None:
                answering = app({**self.scope, "exchange": self}, self.receive, self.send)
            await answering
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
                self._connection.finish(self)

    @property
    def is_own_peer(self) -> bool:
        """Whether the connection is from a process of our own user on this machine."""
        return self._connection.is_own_peer

    def respond(self, head: bytes, correlation_id: str, body: bytes) -> None:
        """Write a whole response.

        ``head`` is the status line and headers; with a correlation id it ends with the name of its
        header. The line break after it is added.
        """
        if self.is_gone or self._started:
            return
        self._started = self.complete = True
        told, size = correlation_id.encode(), b"%d" % len(body)
        end = b"\r\n\r\n" if self.keep_alive else b"\r\nconnection: close\r\n\r\n"
        if len(body) < _LARGE:
            self._connection.write_last(self, b"".join((head, told, _SIZE, size, end, body)))
        else:
            self._connection.write_parts((b"".join((head, told, _SIZE, size, end)), body))
            self._connection.finish(self)

    def disconnect(self) -> None:
        self.is_gone = True
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(None)
        if self.when_gone is not None:
            self.when_gone()
        left, self.when_left = self.when_left, None
        if left is not None and not self.complete:
            left()

    async def receive(self) -> dict[str, Any]:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self.body or b"", "more_body": False}
        if not self.is_gone and not self.complete:
            self._disconnected = asyncio.get_running_loop().create_future()
            await self._disconnected
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if self.is_gone:
            return
        if self._connection.is_paused:
            await self._connection.drain()
        if not self._started:
            self._start(message)
        elif not self.complete:
            self._continue(message)

    def _start(self, message: dict[str, Any]) -> None:
        self._started = True
        status: int = message["status"]
        parts = [STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status]
        sized = status in _BODILESS
        for name, value in message.get("headers", ()):
            if b"\r" in value or b"\n" in value:
                raise ValueError("a header holds a line break")
            sized = sized or name == b"content-length"
            parts.append(b"%b: %b\r\n" % (name, value))
        if not sized and self.scope["http_version"] == "1.0":
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
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk if more else chunk + b"0\r\n\r\n"
        data = self._head + body if self._head else body
        self._head = b""
        if data:
            self._connection.write(data)
        if not more:
            self.complete = True
            self.disconnect()
            self._connection.finish(self)
