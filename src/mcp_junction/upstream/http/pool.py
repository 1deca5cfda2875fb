"""Pool: the connections to one origin. Fewest that will do, newest used first.

An exchange that finds no connection waits for one; what waits has not been sent. Connections idle
for longer than servers usually keep them are not used again: a request written to a connection that
the other side is just closing may or may not have run, and nobody could tell.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from mcp_junction.config.settings import GENEROUS, Limits
from mcp_junction.config.urls import Place, read_url
from mcp_junction.errors import RefusedError
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.http.connection import Connection, HttpExchange
from mcp_junction.upstream.http.dialer import Dialer

MAX_CONNECTIONS: Final = 256
MAX_OPENING: Final = 16
"""Connections that are being made at a time: most who wait are served sooner by one that comes free
than by one of their own, and making one costs as much as several calls."""
CONNECT_TIMEOUT: Final = 5.0
CONNECT_AGAIN: Final = 0.25
STALE_AFTER: Final = 3.0
LOOK_EVERY: Final = 0.05


class Target(Place):
    """Where a url points, and how a request to it begins."""

    __slots__ = ()

    def head(self, method: str, headers: dict[str, str]) -> bytes:
        """The request line and fixed headers; the caller adds its own and the blank line."""
        lines = [f"{method} {self.path} HTTP/1.1", f"host: {self.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def parse_target(url: str) -> Target:
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
        stalls: StallSweep | None = None,
    ) -> None:
        self._where = where
        self._dialer = dialer or Dialer()
        self._tasks = tasks
        self._idle: dict[Connection, None] = {}  # the newest last
        self._all: set[Connection] = set()
        self._opening = 0
        self._parked: set[Connection] = set()
        self._looked_at = 0.0
        self._tries_later = False
        self._waiting: OrderedDict[HttpExchange, None] = OrderedDict()  # in the order they came
        self._carriers: dict[HttpExchange, Connection] = {}
        self._waiting_bytes = 0
        self._limits = limits
        self._stalls = stalls
        self._closed = False
        self._failing_since: float | None = None
        self._outages = 0
        self._hopes = 0
        """How many attempts that began before the outage have not ended."""
        self._loop = asyncio.get_running_loop()

    @property
    def is_full(self) -> bool:
        """Whether as much waits for a connection as may."""
        return len(self._waiting) >= self._limits.queue or self._waiting_bytes > self._limits.bytes

    def send(self, exchange: HttpExchange) -> None:
        """Start an exchange now, or as soon as there is a connection for it."""
        connection = self._fresh()
        if connection is not None:
            self._start(connection, exchange)
        elif self._closed:
            exchange.lost("the link is closed")
        else:
            if not self._waiting:
                self._failing_since = None  # of those whom it concerned none is left
            self._waiting[exchange] = None
            self._waiting_bytes += len(exchange.payload)
            self._grow()

    def drop(self, exchange: HttpExchange) -> None:
        """Give an exchange up: it is not told anything more."""
        if exchange in self._waiting:
            del self._waiting[exchange]
            self._waiting_bytes -= len(exchange.payload)
            return
        connection = self._carriers.pop(exchange, None)
        if connection is not None and connection.carries(exchange):
            connection.abort()
            self._leave(connection)  # its place is free at once
            if self._waiting:
                self._grow()

    def close(self) -> None:
        self._closed = True
        self._lose_waiting("the link is closed")
        for connection in list(self._all):
            connection.abort()
        self._all.clear()
        self._parked.clear()
        self._idle.clear()
        self._carriers.clear()

    def _fresh(self) -> Connection | None:
        oldest = self._loop.time() - STALE_AFTER
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def _grow(self) -> None:
        if self._closed or self._opening >= min(len(self._waiting), MAX_OPENING):
            return
        if not self._has_room():
            self._look_around()
        if self._has_room():
            self._opening += 1
            self._tasks.spawn(self._open(self._outages))
        else:
            self._try_later()

    def _has_room(self) -> bool:
        """Connections of calls that wait for their clients are over and above the others."""
        return len(self._all) - len(self._parked) + self._opening < MAX_CONNECTIONS

    def _look_around(self) -> None:
        """Find room: see which wait for their clients, and drop those that only hold a place, since
        a server need not end a stream after the answer. Not each time: they may be thousands."""
        now = self._loop.time()
        if now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        self._parked = {connection for connection in self._all if connection.is_parked}
        for connection in self._all:
            if connection.is_over:
                connection.abort()

    def _try_later(self) -> None:
        """Nobody says so when a call begins to wait for its client: look again while any waits."""
        if not self._tries_later:
            self._tries_later = True
            self._tasks.spawn(self._grow_later())

    async def _grow_later(self) -> None:
        await asyncio.sleep(CONNECT_AGAIN)
        self._tries_later = False
        self._grow()

    async def _open(self, outages: int) -> None:
        """``outages`` is how many had been when this attempt was begun."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await self._dialer.dial(
                    self._where, lambda: Connection(self._freed, self._gone, self._stalls)
                )
        except (OSError, TimeoutError, RefusedError) as error:
            self._opening -= 1
            self._could_not(error, outages)
            return
        self._opening -= 1
        self._all.add(connection)
        self._freed(connection)

    def _could_not(self, error: OSError | TimeoutError | RefusedError, outages: int) -> None:
        """No connection can be made: what waits for one will not be sent, unless one comes free.

        What was being tried when the first attempt failed may yet succeed. What is begun later is
        not waited for: while calls keep coming there would never be a last attempt.
        """
        if self._failing_since is None:
            self._failing_since = self._loop.time()
            self._outages += 1
            self._hopes = self._opening
        elif outages != self._outages:
            self._hopes -= 1
        if self._hopes:
            return
        if self._all and self._loop.time() - self._failing_since < CONNECT_TIMEOUT:
            self._try_later()
            return
        self._failing_since = None
        words = "no connection within 5 s" if isinstance(error, TimeoutError) else _words(error)
        self._lose_waiting(words)

    def _lose_waiting(self, why: str) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, OrderedDict(), 0
        for exchange in waiting:
            exchange.lost(why)

    # -- what becomes of a connection

    def _freed(self, connection: Connection) -> None:
        self._failing_since = None
        self._forget(connection)
        if self._closed:
            connection.abort()
        elif self._waiting:
            waiting, _ = self._waiting.popitem(last=False)
            self._waiting_bytes -= len(waiting.payload)
            self._start(connection, waiting)
            if self._waiting:
                self._grow()
        else:
            connection.idle_since = self._loop.time()
            self._idle[connection] = None

    def _start(self, connection: Connection, exchange: HttpExchange) -> None:
        self._carriers[exchange] = connection
        connection.start(exchange)

    def _forget(self, connection: Connection) -> None:
        """It carries nothing any more."""
        self._parked.discard(connection)
        carried, connection.carried = connection.carried, None
        if carried is not None and self._carriers.get(carried) is connection:
            del self._carriers[carried]

    def _gone(self, connection: Connection) -> None:
        self._forget(connection)
        self._leave(connection)
        self._idle.pop(connection, None)
        if self._waiting:
            self._grow()

    def _leave(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._parked.discard(connection)


def _words(error: OSError | RefusedError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, RefusedError):
        return str(error)
    return error.strerror or str(error) or type(error).__name__
