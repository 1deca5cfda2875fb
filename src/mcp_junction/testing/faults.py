"""FaultProxy: a TCP proxy between two peers that refuses, delays, drips, cuts and resets.

It runs in the test's own loop, keeps its port when it refuses and accepts again, and knows nothing
of HTTP. Use it as ``async with FaultProxy(port) as proxy``.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from types import TracebackType

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
