"""A client's end of an HTTP/1.1 connection, byte by byte, with a bound on every wait."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

BOUND = 20.0  # seconds; a wait this long has failed
TYPES = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@dataclass
class Response:
    """A response; the body of a stream is not read."""

    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"

    @property
    def words(self) -> str:
        """What is said about an error."""
        return self.json["error"]["message"]


@dataclass
class Event:
    id: str | None
    data: str
    retry: str | None = None

    @property
    def message(self) -> Any:
        return json.loads(self.data)


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, limit: int = 1 << 24) -> "Wire":
        """Connect; ``limit`` is about what is read ahead."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))

    # -- sending

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def request(self, method: str, path: str, body: bytes = b"", **headers: str | None) -> None:
        """Send a request; a header that is None is left out, underscores are dashes."""
        given: dict[str, str | None] = {"host": "127.0.0.1"}
        if method == "POST":
            given |= TYPES
        if body:
            given["content-length"] = str(len(body))
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
        self.send("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + body)

    # -- receiving

    async def head(self) -> Response:
        async with asyncio.timeout(BOUND):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        pairs = [line.partition(": ") for line in lines]
        return Response(int(first.split(" ")[1]), {name.lower(): value for name, _, value in pairs})

    async def response(self, *, bodiless: bool = False) -> Response:
        """The next response, whole; of a stream only the head."""
        found = await self.head()
        if found.is_stream or bodiless:
            return found
        async with asyncio.timeout(BOUND):
            if found.headers.get("transfer-encoding") == "chunked":
                found.body = b"".join([chunk async for chunk in self.chunks()])
            else:
                length = int(found.headers.get("content-length", 0))
                found.body = await self.reader.readexactly(length)
        return found

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
            if not size:
                return
            yield data[:-2]

    async def events(self) -> AsyncIterator[Event]:
        """The events of a stream, each as soon as it is there, until it ends."""
        text = ""
        async for chunk in self.chunks():
            text += chunk.decode()
            while "\n\n" in text:
                block, _, text = text.partition("\n\n")
                fields = dict(line.split(": ", 1) for line in block.split("\n") if line)
                if "data" in fields:
                    yield Event(fields.get("id"), fields["data"], fields.get("retry"))

    async def event(self) -> Event:
        """The next event of a stream."""
        async with asyncio.timeout(BOUND):
            return await anext(self._events)

    @property
    def _events(self) -> AsyncIterator[Event]:
        if not hasattr(self, "_iterator"):
            self._iterator = self.events()
        return self._iterator

    async def rest(self) -> list[Event]:
        """Every event until the stream ends."""
        async with asyncio.timeout(BOUND):
            return [event async for event in self._events]

    async def closed(self) -> bytes:
        """Wait until the other side has closed; what it still said."""
        async with asyncio.timeout(BOUND):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    # -- the end

    def reset(self) -> None:
        """Vanish, as a client does that loses its network."""
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass
