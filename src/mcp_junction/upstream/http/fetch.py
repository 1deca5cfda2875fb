"""Fetch: one whole HTTP request and response under the rules for outgoing connections.

For documents of authorization servers, such as metadata and keys. No redirects, no cookies, no
retries, and a bound on the size. What servers of the catalog are sent goes through their links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from mcp_junction.upstream.http.connection import Connection, HttpExchange, parse_target
from mcp_junction.upstream.http.dialer import Dialer

MAX_BODY: Final = 1024 * 1024
TIMEOUT: Final = 10.0


class FetchedResponse(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


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
    exchange = _WholeExchange(where.head(method, sent) + b"\r\n" + body)
    async with asyncio.timeout(timeout):
        connection = await dialer.dial(where, lambda: Connection(_ignore, _ignore))
        try:
            connection.start(exchange)
            return await exchange.response
        finally:
            connection.abort()


def _ignore(connection: Connection) -> None:
    """Do nothing: the connection is dropped after its one exchange."""


class _WholeExchange(HttpExchange):
    """An exchange whose response is collected, up to MAX_BODY bytes."""

    __slots__ = ("_body", "_headers", "_status", "response")

    def __init__(self, payload: bytes) -> None:
        super().__init__(payload)
        self.response: asyncio.Future[FetchedResponse] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers

    def on_data(self, chunk: bytes) -> None:
        self._body += chunk
        if len(self._body) > MAX_BODY:
            self.on_lost(f"its response is over the limit of {MAX_BODY} bytes")
            if self.connection is not None:
                self.connection.abort()

    def on_complete(self) -> None:
        if not self.response.done():
            found = FetchedResponse(self._status, self._headers, bytes(self._body))
            self.response.set_result(found)

    def on_lost(self, why: str) -> None:
        if not self.response.done():
            self.response.set_exception(ConnectionError(why))
