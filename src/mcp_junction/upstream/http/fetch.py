"""Single HTTP requests under the rules for outgoing connections: ``fetch``, ``fetch_status``.

For OAuth, webhooks, telemetry, models and health checks. No redirects, no cookies, no retries, and
bounds on size and time; the Dialer checks the address that it connects to, and certificates. What
servers of the catalog are sent goes through their links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from mcp_junction.tasks import resolve
from mcp_junction.upstream.http.connection import Connection, HttpExchange, Target, parse_target
from mcp_junction.upstream.http.dialer import Dialer

MAX_BODY: Final = 1024 * 1024
TIMEOUT: Final = 10.0


class FetchedResponse(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def content_type(self) -> str:
        return self.headers.get(b"content-type", b"").decode("latin-1")


async def fetch(
    url: str,
    dialer: Dialer,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout: float = TIMEOUT,
) -> FetchedResponse:
    """Send one request and read its response.

    Raises ValueError for a url that makes no sense, OSError (TimeoutError) when there is no whole
    response, AddressRefused when the rules forbid the address.
    """
    where = parse_target(url)
    sent = {"accept": "application/json", "connection": "close", **(headers or {})}
    if body or method != "GET":
        sent["content-length"] = str(len(body))
    exchange = _SingleExchange(where.head(method, sent) + b"\r\n" + body)
    async with asyncio.timeout(timeout):
        return await exchange.run(where, dialer)


async def fetch_status(url: str, dialer: Dialer) -> int:
    """GET a url, and return the status without waiting for the body.

    Raises as ``fetch`` does; the caller sets a timeout.
    """
    where = parse_target(url)
    head = where.head("GET", {"accept": "*/*", "connection": "close"})
    exchange = _SingleExchange(head + b"\r\n", wants_body=False)
    return (await exchange.run(where, dialer)).status


class _SingleExchange(HttpExchange):
    """An exchange on a connection of its own, whose response is collected up to MAX_BODY bytes."""

    __slots__ = ("_body", "_headers", "_response", "_status", "_wants_body")

    def __init__(self, payload: bytes, *, wants_body: bool = True) -> None:
        super().__init__(payload)
        self._response: asyncio.Future[FetchedResponse] = asyncio.get_running_loop().create_future()
        self._wants_body = wants_body
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()

    async def run(self, where: Target, dialer: Dialer) -> FetchedResponse:
        """Connect, send the request and return the response."""
        connection = await dialer.dial(where, lambda: Connection(_ignore, _ignore))
        try:
            connection.start(self)
            return await self._response
        finally:
            connection.abort()

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers
        if not self._wants_body:
            self.on_complete()

    def on_data(self, chunk: bytes) -> None:
        self._body += chunk
        if len(self._body) > MAX_BODY:
            self.on_lost(f"its response is over the limit of {MAX_BODY} bytes")
            if self.connection is not None:
                self.connection.abort()

    def on_complete(self) -> None:
        response = FetchedResponse(self._status, self._headers, bytes(self._body))
        resolve(self._response, response)

    def on_lost(self, why: str) -> None:
        if not self._response.done():
            self._response.set_exception(ConnectionError(why))


def _ignore(connection: Connection) -> None:
    """Do nothing: the connection is dropped after its one exchange."""
