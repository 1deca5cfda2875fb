"""A small HTTP/1.1 server for tests: it keeps every request and answers as the test says.

Nothing of ours is in it, so that it can contradict us. One handler answers everything; it is given
a Visit: the request, and the ways to answer it, down to the bytes.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from mcp_junction.listener.http.server import stop_accepting

BOUND = 20.0  # seconds; a wait this long has failed

Handler = Callable[["Visit"], Awaitable[None]]


class Visit:
    """One request, and the answering of it."""

    def __init__(self, head: bytes, body: bytes, link: "Link") -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = lines[0].split(" ")
        self.head = head
        self.headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(": ")
            self.headers[name.lower()] = value
        self.body = body
        self.link = link
        self.gone = link.gone  # set when the client has left

    @property
    def message(self) -> dict[str, Any]:
        """The JSON-RPC message it carries; an empty one when it carries none."""
        return json.loads(self.body) if self.body else {}

    @property
    def rpc(self) -> str:
        return self.message.get("method", "")

    # -- answering

    def raw(self, data: bytes) -> None:
        self.link.writer.write(data)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def json(self, message: Any, status: int = 200, **headers: str) -> None:
        self.answer(
            status, json.dumps(message).encode(), content_type="application/json", **headers
        )

    def result(self, result: Any, **headers: str) -> None:
        self.json({"jsonrpc": "2.0", "id": self.message["id"], "result": result}, **headers)

    def accepted(self) -> None:
        self.answer(202)

    def stream(self, *headers: str) -> None:
        """Begin a stream of events."""
        lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream", *headers]
        self.raw("\r\n".join([*lines, "transfer-encoding: chunked"]).encode() + b"\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, message: Any, id: str | None = None, retry: int | None = None) -> None:
        lines = [f"id: {id}"] if id is not None else []
        lines += [f"retry: {retry}"] if retry is not None else []
        text = json.dumps(message) if message is not None else ""
        self.chunk("\n".join([*lines, f"data: {text}", "", ""]).encode())

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """Drop the connection, as a crash does."""
        self.link.writer.transport.abort()


@dataclass(eq=False)
class Link:
    """One connection of a client's."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Origin:
    """The server. ``async with Origin(handler) as origin`` listens on a port of its own."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self.handler = handler
        self.visits: list[Visit] = []
        self.connections = 0
        self.links: set[Link] = set()
        self.port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/mcp"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def listen(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, ssl=self._tls, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Take no more connections; those there are stay."""
        assert self._server is not None
        await stop_accepting([self._server])

    async def close(self) -> None:
        """Stop, and drop every connection."""
        await self.refuse()
        for link in list(self.links):
            link.writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=BOUND)
        for _ in range(4):  # the clients on this loop come to know of it
            await asyncio.sleep(0)

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait until ``found()`` gives something; it is asked after every request."""
        async with asyncio.timeout(BOUND):
            while not (thing := found()):
                self._news.clear()
                await self._news.wait()
        return thing

    def told(self, rpc: str) -> list[Visit]:
        """The requests that carried this JSON-RPC method."""
        return [visit for visit in self.visits if visit.method == "POST" and visit.rpc == rpc]

    async def visited(self, rpc: str, times: int = 1) -> Visit:
        """The request that carried this JSON-RPC method for the n-th time."""
        return (await self.until(lambda: len(self.told(rpc)) >= times and self.told(rpc)))[
            times - 1
        ]

    # -- connections

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = Link(reader, writer)
        self.links.add(link)
        try:
            await self._read(link)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            link.gone.set()
            self._news.set()
            self.links.discard(link)
            writer.transport.abort()

    async def _read(self, link: Link) -> None:
        while True:
            head = (await link.reader.readuntil(b"\r\n\r\n"))[:-4]
            visit = Visit(head, b"", link)
            visit.body = await link.reader.readexactly(int(visit.headers.get("content-length", 0)))
            self.visits.append(visit)
            self._news.set()
            # Beside the reading, which notices at once when the client leaves.
            task = asyncio.create_task(self._handle(visit))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, visit: Visit) -> None:
        try:
            await self.handler(visit)
        except (ConnectionError, asyncio.CancelledError):
            pass
