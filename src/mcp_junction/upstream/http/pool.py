"""Pool: the connections to one origin. Fewest that will do, newest used first.

An exchange that finds no connection waits for one; what waits has not been sent. Connections idle
for longer than servers usually keep them are not used again: a request written to a connection that
the other side is just closing may or may not have run, and nobody could tell.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from mcp_junction.config.limits import GENEROUS, Limits
from mcp_junction.config.urls import Place, read_url
from mcp_junction.errors import RefusedError
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.http.connection import Connection, Exchange
from mcp_junction.upstream.http.dialer import Dialer

MAX_CONNECTIONS: Final = 256
CONNECT_TIMEOUT: Final = 5.0
CONNECT_AGAIN: Final = 0.25
STALE_AFTER: Final = 3.0
COUNT_EVERY: Final = 0.05


class Target(Place, frozen=True):
    """Where a url points, and how a request to it begins."""

    def head(self, method: str, headers: dict[str, str]) -> bytes:
        """The request line and fixed headers; the caller adds its own and the blank line."""
        lines = [f"{method} {self.path} HTTP/1.1", f"host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def target(url: str) -> Target:
    """Raises ValueError when the url makes no sense."""
    place = read_url(url)
    return Target(place.host, place.port, place.path, place.tls)


class Pool:
    """Connections to one host and port."""

    def __init__(
        self,
        where: Target,
        tasks: TaskScope,
        dialer: Dialer | None = None,
        limits: Limits = GENEROUS,
    ) -> None:
        self._where = where
        self._dialer = dialer or Dialer()
        self._tasks = tasks
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._opening = 0
        self._parked = 0
        self._counted_at = 0.0
        self._counts_later = False
        self._waiting: deque[Exchange] = deque()
        self._waiting_bytes = 0
        self._limits = limits
        self._closed = False
        self._failing_since: float | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_full(self) -> bool:
        """Whether as much waits for a connection as may."""
        return len(self._waiting) >= self._limits.queue or self._waiting_bytes > self._limits.bytes

    def send(self, exchange: Exchange) -> None:
        """Start an exchange now, or as soon as there is a connection for it."""
        connection = self._fresh()
        if connection is not None:
            connection.start(exchange)
        elif self._closed:
            exchange.lost("the link is closed")
        else:
            self._waiting.append(exchange)
            self._waiting_bytes += len(exchange.payload)
            self._grow()

    def drop(self, exchange: Exchange) -> None:
        """Give an exchange up: it is not told anything more."""
        if exchange in self._waiting:
            self._waiting.remove(exchange)
            self._waiting_bytes -= len(exchange.payload)
            return
        for connection in self._all:
            if connection.carries(exchange):
                connection.abort()
                self._all.discard(connection)  # its place is free at once
                self._parked = min(self._parked, len(self._all))
                return

    def close(self) -> None:
        self._closed = True
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for exchange in waiting:
            exchange.lost("the link is closed")
        for connection in list(self._all):
            connection.abort()
        self._all.clear()
        self._idle.clear()

    def _fresh(self) -> Connection | None:
        oldest = self._loop.time() - STALE_AFTER
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def _grow(self) -> None:
        if self._closed or self._opening >= len(self._waiting):
            return
        if not self._has_room():
            self._count_parked()
        if self._has_room():
            self._opening += 1
            self._tasks.spawn(self._open())
        else:
            self._reclaim()

    def _count_parked(self) -> None:
        """See how many wait for their clients now; not all the time, since they may be many."""
        now = self._loop.time()
        if now - self._counted_at >= COUNT_EVERY:
            self._counted_at = now
            self._parked = sum(connection.is_parked for connection in self._all)
        elif not self._counts_later:
            self._counts_later = True
            self._tasks.spawn(self._grow_later())

    def _has_room(self) -> bool:
        """Connections of calls that wait for their clients are over and above the others."""
        return len(self._all) - self._parked + self._opening < MAX_CONNECTIONS

    def _reclaim(self) -> None:
        """Drop what only holds a place: a server need not end a stream after the answer."""
        for connection in self._all:
            if connection.is_over:
                connection.abort()

    async def _grow_later(self) -> None:
        await asyncio.sleep(CONNECT_AGAIN)
        self._counts_later = False
        self._grow()

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await self._dialer.dial(
                    self._where, lambda: Connection(self._freed, self._gone)
                )
        except (OSError, TimeoutError, RefusedError) as error:
            self._opening -= 1
            self._could_not(error)
            return
        self._opening -= 1
        self._all.add(connection)
        self._freed(connection)

    def _could_not(self, error: OSError | TimeoutError | RefusedError) -> None:
        """No connection can be made: what waits for one will not be sent, unless one comes free."""
        if self._failing_since is None:
            self._failing_since = self._loop.time()
        if self._opening:
            return
        if self._all and self._loop.time() - self._failing_since < CONNECT_TIMEOUT:
            self._tasks.spawn(self._grow_later())
            return
        self._failing_since = None
        words = "no connection within 5 s" if isinstance(error, TimeoutError) else _words(error)
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for exchange in waiting:
            exchange.lost(words)

    def _freed(self, connection: Connection) -> None:
        self._failing_since = None
        if self._closed:
            connection.abort()
        elif self._waiting:
            waiting = self._waiting.popleft()
            self._waiting_bytes -= len(waiting.payload)
            connection.start(waiting)
            if self._waiting:
                self._grow()
        else:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)

    def _gone(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._parked = min(self._parked, len(self._all))
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting:
            self._grow()


def _words(error: OSError | RefusedError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, RefusedError):
        return str(error)
    return error.strerror or str(error) or type(error).__name__
