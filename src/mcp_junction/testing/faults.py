"""Tools that cause faults: FaultProxy between two peers, StatementFaults below the store.

FaultProxy is a TCP proxy in the test's own loop that refuses, delays, drips, cuts and resets. It
keeps its port when it refuses and accepts again, and knows nothing of HTTP. Use it as ``async with
FaultProxy(port) as proxy``. StatementFaults makes chosen statements of a database fail or hang: it
makes connection classes for both drivers, which ``open_store`` accepts, and knows nothing of the
store's own errors.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from mcp_junction.listener.http.server import stop_accepting
from mcp_junction.tasks import TaskScope

_CHUNK = 1 << 16
_LINGER = struct.pack("ii", 1, 0)


class FaultProxy:
    """A TCP proxy in front of a port."""

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        self.host = host
        self.target = target
        self.port = 0
        self.delay = 0.0
        """Seconds that every chunk is delayed, in both directions."""
        self.drip = 0
        """The size that chunks are cut to; 0 leaves them as they came."""
        self.connections = 0
        """How many connections were accepted so far."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks = TaskScope("fault proxy")

    async def __aenter__(self) -> FaultProxy:
        await self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.refuse()
        self.cut()
        await self._tasks.close()

    async def accept(self) -> None:
        """Listen, at first or again, on the same port."""
        self._server = await asyncio.start_server(
            self._connected, self.host, self.port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Refuse new connections; existing ones stay."""
        if self._server is not None:
            server, self._server = self._server, None
            await stop_accepting([server])

    def cut(self) -> None:
        """Close every connection."""
        for writer in list(self._writers):
            writer.close()

    def reset(self) -> None:
        """End every connection with a reset."""
        for writer in list(self._writers):
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            writer.transport.abort()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.spawn(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there = await asyncio.open_connection(self.host, self.target)
        except OSError:
            self._end(writer)
            return
        self._writers.add(there[1])
        back = self._tasks.spawn(self._pass(there[0], writer))
        try:
            await self._pass(reader, there[1])
        finally:
            self._end(there[1])
            back.cancel()
            self._end(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                step = self.drip or len(data)
                for start in range(0, len(data), step):
                    if self.delay:
                        await asyncio.sleep(self.delay)
                    writer.write(data[start : start + step])
                    await writer.drain()
        except OSError:
            pass
        finally:
            self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()


# -- statements

Fault = Callable[[], BaseException]
"""Makes an exception of the driver."""


class StatementFaults:
    """Decides which statements fail or hang, and records all statements."""

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        """Every statement so far, in the order of their first use."""
        self.met = 0
        """How many statements failed or hung."""
        self._text: str | None = None
        self._fault: Fault | None = None
        self._released = threading.Event()

    def fail(self, text: str, fault: Fault) -> None:
        """Make statements that contain a text fail."""
        self._released.clear()
        self._text, self._fault = text, fault

    def hang(self, text: str) -> None:
        """Make statements that contain a text wait until ``clear`` is called."""
        self._released.clear()
        self._text, self._fault = text, None

    def clear(self) -> None:
        """Let all statements pass, also those that hang."""
        self._text = None
        self._released.set()

    def connection_class(self, url: str) -> type[Any]:
        """Make the class for connections to the database of this URL."""
        return self._sqlite() if url.startswith("sqlite") else self._postgres()

    def _must_hang(self, sql: str) -> bool:
        """Whether a statement must hang. Raises the fault of one that must fail."""
        self.seen.setdefault(sql)
        is_met = self._text is not None and self._text in sql
        self.met += is_met
        if is_met and self._fault is not None:
            raise self._fault()
        return is_met

    def _check(self, sql: str) -> None:
        """Fail or hang, if that is wanted of a statement; called in a thread."""
        if self._must_hang(sql):
            self._released.wait()

    async def _check_async(self, sql: str) -> None:
        """Do the same on the event loop."""
        if self._must_hang(sql):
            while not self._released.is_set():  # noqa: ASYNC110 - another thread may set it
                await asyncio.sleep(0.01)

    def _sqlite(self) -> type[sqlite3.Connection]:
        faults = self

        class FaultySqliteConnection(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                faults._check(sql)
                return super().execute(sql, parameters)

            def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
                faults._check(sql)
                return super().executemany(sql, parameters)

        return FaultySqliteConnection

    def _postgres(self) -> type[Any]:
        import asyncpg

        faults = self

        class FaultyPostgresConnection(asyncpg.Connection):  # type: ignore[misc]
            async def fetch(self, query: str, *args: Any, **more: Any) -> Any:
                await faults._check_async(query)
                return await super().fetch(query, *args, **more)

            async def executemany(self, command: str, args: Any, **more: Any) -> Any:
                await faults._check_async(command)
                return await super().executemany(command, args, **more)

            async def copy_records_to_table(self, table_name: str, **more: Any) -> Any:
                await faults._check_async(f"COPY {table_name}")
                return await super().copy_records_to_table(table_name, **more)

            async def execute(self, query: str, *args: Any, **more: Any) -> Any:
                await faults._check_async(query)
                return await super().execute(query, *args, **more)

        return FaultyPostgresConnection
