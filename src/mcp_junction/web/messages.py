"""Request, Response and Stream: what a handler is given, and what it returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from mcp_junction.tasks import TaskScope

T = TypeVar("T")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Sending = Callable[[Receive, Send], Awaitable[None]]

JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"
_NO_CONTENT: Final = 204


class Request:
    """One HTTP request: its ASGI scope, and its body."""

    __slots__ = ("_receive", "app", "scope")

    def __init__(self, app: Any, scope: Scope, receive: Receive) -> None:
        """``app`` is the WebApp that it came to."""
        self.app = app
        self.scope = scope
        self._receive = receive

    async def body(self) -> bytes:
        """Read the whole body; once only."""
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return b"".join(parts)  # the client has left
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)


class Response(Generic[T]):
    """An answer: a value that is encoded as JSON, or bytes as they are."""

    __slots__ = ("_content", "_headers", "_media_type", "_status")

    def __init__(
        self,
        content: T,
        *,
        status_code: int | None = None,
        media_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Without a ``status_code`` it is that of the operation."""
        self._content = content
        self._status = status_code
        self._media_type = media_type
        self._headers = headers or {}

    def prepare(self, status: int) -> Sending:
        """Encode it, with the operation's status if it has none; return what sends it."""
        content: Any = self._content
        status = self._status or status
        headers = _encode_headers(self._media_type, self._headers)
        if status == _NO_CONTENT:
            body, headers = b"", headers[1:]
        else:
            body = content if isinstance(content, bytes) else msgspec.json.encode(content)
            headers.append((b"content-length", b"%d" % len(body)))

        async def transmit(_: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        return transmit


class Stream:
    """An answer that comes in parts, until they end or the client leaves."""

    __slots__ = ("_headers", "_media_type", "_parts")

    def __init__(
        self, parts: AsyncIterator[bytes], *, media_type: str, headers: Mapping[str, str]
    ) -> None:
        self._parts = parts
        self._media_type = media_type
        self._headers = headers

    def prepare(self, status: int) -> Sending:
        """Return what sends the parts as they come."""
        headers = _encode_headers(self._media_type, self._headers)

        async def transmit(receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await self._transmit(receive, send)

        return transmit

    async def _transmit(self, receive: Receive, send: Send) -> None:
        tasks = TaskScope("stream")
        try:
            sending = tasks.spawn(self._send_parts(send))
            leaving = tasks.spawn(_wait_until_left(receive))
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.close()

    async def _send_parts(self, send: Send) -> None:
        try:
            async for part in self._parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            close = getattr(self._parts, "aclose", None)
            if close is not None:
                await close()


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encode_headers(media_type: str, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    given = headers.items()
    encoded = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in given]
    return [(b"content-type", media_type.encode()), *encoded]
