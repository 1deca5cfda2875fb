"""One GET of an address, under the same rules as every connection; for health checks.

No redirects, no body: the status is all that is wanted, and the connection is dropped after it.
"""

from __future__ import annotations

import asyncio

from mcp_junction.upstream.http.connection import Connection
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.pool import parse_target


async def fetch_status(url: str, dialer: Dialer, headers: dict[str, str] | None = None) -> int:
    """The status that a GET is answered with.

    Raises ValueError for a url that makes no sense, OSError when there is no answer, RefusedError
    when the rules forbid the address. Whoever asks says how long to wait.
    """
    where = parse_target(url)
    connection = await dialer.dial(where, lambda: Connection(_ignored, _ignored))
    head = where.head("GET", {"accept": "*/*", "connection": "close", **(headers or {})})
    asked = _Status(head + b"\r\n")
    try:
        connection.start(asked)
        return await asked.status
    finally:
        connection.abort()


def _ignored(connection: Connection) -> None:
    """Nobody keeps this connection."""


class _Status:
    """An exchange of which only the head matters."""

    is_over = False

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def written(self) -> None:
        pass

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        if status >= 200 and not self.status.done():
            self.status.set_result(status)

    def data(self, chunk: bytes) -> None:
        pass

    def done(self) -> None:
        pass

    def lost(self, why: str) -> None:
        if not self.status.done():
            self.status.set_exception(ConnectionError(why))
