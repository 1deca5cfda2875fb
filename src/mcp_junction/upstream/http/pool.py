"""Pool: the connections to one origin; as few as possible, the newest idle one first.

An exchange that finds no connection waits for one; while it waits it has not been sent. When a
connection was idle for longer than servers usually keep one it is not reused: a request written
while the server closes the connection may or may not have run, and nobody could tell.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from mcp_junction.config.settings import DEFAULT_LIMITS, Limits
from mcp_junction.errors import AddressRefused
from mcp_junction.resilience.read_budget import ReadBudget
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.http.connection import Connection, HttpExchange, Target
from mcp_junction.upstream.http.dialer import Dialer

MAX_CONNECTIONS: Final = 256
MAX_OPENING: Final = 16
"""Connections opened at the same time. Most waiting exchanges are served sooner by one that comes
free than by a new one, and opening one costs as much as several calls."""
CONNECT_TIMEOUT: Final = 5.0
CONNECT_AGAIN: Final = 0.25
STALE_AFTER: Final = 3.0
SURVEY_EVERY: Final = 0.05


class Pool:
    """The connections to one host and port, and the exchanges that wait for one."""

    def __init__(
        self,
        where: Target,
        tasks: TaskScope,
        dialer: Dialer | None = None,
        limits: Limits = DEFAULT_LIMITS,
        stalls: StallSweep | None = None,
        read_budget: ReadBudget | None = None,
    ) -> None:
        self._where = where
        self._dialer = dialer or Dialer()
        self._tasks = tasks
        self._idle: dict[Connection, None] = {}  # the newest last
        self._all: set[Connection] = set()
        self._opening = 0
        self._parked: set[Connection] = set()
        self._surveyed_at = 0.0
        self._grows_later = False
        self._waiting: OrderedDict[HttpExchange, None] = OrderedDict()  # in the order they came
        self._waiting_bytes = 0
        self._limits = limits
        self._stalls = stalls
        self._read_budget = read_budget or ReadBudget()
        self._closed = False
        self._failing_since: float | None = None
        self._outages = 0
        self._pending_attempts = 0
        """Attempts to connect that began before the outage and have not ended."""
        self._loop = asyncio.get_running_loop()

    @property
    def is_full(self) -> bool:
        """Whether no further exchange may wait for a connection."""
        return len(self._waiting) >= self._limits.queue or self._waiting_bytes > self._limits.bytes

    def send(self, exchange: HttpExchange) -> None:
        """Start an exchange now, or as soon as there is a connection for it."""
        connection = self._take_idle()
        if connection is not None:
            connection.start(exchange)
        elif self._closed:
            exchange.on_lost("the link is closed")
        else:
            if not self._waiting:
                self._failing_since = None  # no exchange of the earlier outage is left
            self._waiting[exchange] = None
            self._waiting_bytes += len(exchange.payload)
            self._grow()

    def drop(self, exchange: HttpExchange) -> None:
        """Abandon an exchange; it gets no further callback."""
        if exchange in self._waiting:
            del self._waiting[exchange]
            self._waiting_bytes -= len(exchange.payload)
            return
        connection = exchange.connection
        if connection is not None:
            connection.abort()
            self._remove(connection)  # its place is free at once
            if self._waiting:
                self._grow()

    def close(self) -> None:
        """Fail what waits, and drop all connections."""
        self._closed = True
        self._fail_waiting("the link is closed")
        for connection in list(self._all):
            connection.abort()
        self._all.clear()
        self._parked.clear()
        self._idle.clear()

    def _take_idle(self) -> Connection | None:
        oldest = self._loop.time() - STALE_AFTER
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def _grow(self) -> None:
        """Open a connection for a waiting exchange, if one more may be opened."""
        if self._closed or self._opening >= min(len(self._waiting), MAX_OPENING):
            return
        if not self._has_room():
            self._survey()
        if self._has_room():
            self._opening += 1
            self._tasks.spawn(self._open(self._outages))
        else:
            self._schedule_growth()

    def _has_room(self) -> bool:
        """Whether one more may be opened; those of parked calls do not count."""
        return len(self._all) - len(self._parked) + self._opening < MAX_CONNECTIONS

    def _survey(self) -> None:
        """Find out which connections are parked, and drop those with nothing more to deliver.

        A server need not end a stream after the answer. Not done each time: they may be thousands.
        """
        now = self._loop.time()
        if now - self._surveyed_at < SURVEY_EVERY:
            return
        self._surveyed_at = now
        self._parked = {connection for connection in self._all if connection.is_parked}
        for connection in self._all:
            if connection.is_over:
                connection.abort()

    def _schedule_growth(self) -> None:
        """Grow after a while: that a call became parked, and so makes room, is not announced."""
        if not self._grows_later:
            self._grows_later = True
            self._tasks.spawn(self._grow_later())

    async def _grow_later(self) -> None:
        await asyncio.sleep(CONNECT_AGAIN)
        self._grows_later = False
        self._grow()

    async def _open(self, outages: int) -> None:
        """Open a connection; ``outages`` is the number of outages when this attempt began."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await self._dialer.dial(self._where, self._make_connection)
        except (OSError, AddressRefused) as error:
            self._opening -= 1
            self._on_connect_failed(error, outages)
            return
        self._opening -= 1
        self._all.add(connection)
        self._on_free(connection)

    def _make_connection(self) -> Connection:
        return Connection(self._on_free, self._on_closed, self._stalls, self._read_budget)

    def _on_connect_failed(self, error: OSError | AddressRefused, outages: int) -> None:
        """Handle a failed attempt to connect: fail what waits, once no earlier attempt is pending.

        Attempts that were pending when the first one failed may yet succeed. Later ones are not
        waited for: while calls keep coming there would never be a last attempt.
        """
        if self._failing_since is None:
            self._failing_since = self._loop.time()
            self._outages += 1
            self._pending_attempts = self._opening
        elif outages != self._outages:
            self._pending_attempts -= 1
        if self._pending_attempts:
            return
        if self._all and self._loop.time() - self._failing_since < CONNECT_TIMEOUT:
            self._schedule_growth()
            return
        self._failing_since = None
        self._fail_waiting(_describe(error))

    def _fail_waiting(self, why: str) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, OrderedDict(), 0
        for exchange in waiting:
            exchange.on_lost(why)

    # -- callbacks of connections

    def _on_free(self, connection: Connection) -> None:
        self._failing_since = None
        self._parked.discard(connection)
        if self._closed:
            connection.abort()
        elif self._waiting:
            waiting, _ = self._waiting.popitem(last=False)
            self._waiting_bytes -= len(waiting.payload)
            connection.start(waiting)
            if self._waiting:
                self._grow()
        else:
            connection.idle_since = self._loop.time()
            self._idle[connection] = None

    def _on_closed(self, connection: Connection) -> None:
        self._remove(connection)
        self._idle.pop(connection, None)
        if self._waiting:
            self._grow()

    def _remove(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._parked.discard(connection)


def _describe(error: OSError | AddressRefused) -> str:
    if isinstance(error, TimeoutError):
        return "no connection within 5 s"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, AddressRefused):
        return str(error)
    return error.strerror or str(error) or type(error).__name__
