"""An HTTP client for the fault tests: raw, in the test's own loop, nothing done behind its back.

Connections are kept and used again, as a real client's are. What came is kept as it came, so that a
test can look at the bytes.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

VERSION = "2025-11-25"
BOUND = 60.0
Json = dict[str, Any]
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]

BOTH = "application/json, text/event-stream"


class Response:
    """A response as it comes: the head is there, the rest is read."""

    def __init__(self, status: int, headers: dict[str, str], pair: Pair) -> None:
        self.status = status
        self.headers = headers
        self.raw = b""
        self._pair = pair

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    async def pieces(self) -> AsyncIterator[bytes]:
        reader = self._pair[0]
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while size := int(await reader.readline(), 16):
                data = await reader.readexactly(size + 2)
                yield data[:-2]
            await reader.readline()
        elif size := int(self.headers.get("content-length", 0)):
            yield await reader.readexactly(size)

    async def read(self) -> bytes:
        async for piece in self.pieces():
            self.raw += piece
        return self.raw

    async def events(self) -> AsyncIterator[list[bytes]]:
        """The lines of each event, as they were sent."""
        begun = b""
        async for piece in self.pieces():
            self.raw += piece
            *whole, begun = (begun + piece).split(b"\n\n")
            for event in whole:
                yield event.split(b"\n")

    async def frames(self) -> AsyncIterator[Json]:
        """Each frame of the response, as a stream or as its body."""
        if not self.is_stream:
            body = await self.read()
            if body:
                yield json.loads(body)
            return
        async for lines in self.events():
            data = [text.removeprefix(b"data:").strip() for text in lines if text[:5] == b"data:"]
            assert len(data) <= 1, "a frame is one line of data"
            assert not any(b"\r" in text for text in lines), "a carriage return in a stream"
            if data and data[0]:
                yield json.loads(data[0])


OPEN: list["Client"] = []


class Client:
    """One session, or none yet."""

    def __init__(self, port: int, path: str = "/mcp", key: str | None = None) -> None:
        self.port = port
        self.path = path
        self.key = key
        self.session: str | None = None
        self.others: list[Json] = []
        self.raw: list[bytes] = []
        self._ids = itertools.count(1)
        self._idle: list[Pair] = []
        self._all: set[asyncio.StreamWriter] = set()
        OPEN.append(self)

    # -- HTTP

    def head(self, method: str, size: int, headers: Json | None = None) -> bytes:
        fields: Json = {"host": f"127.0.0.1:{self.port}", "accept": BOTH}
        if method == "POST":
            fields |= {"content-type": "application/json"}
        if self.session is not None:
            fields |= {"mcp-session-id": self.session, "mcp-protocol-version": VERSION}
        if self.key is not None:
            fields["authorization"] = f"Bearer {self.key}"
        path = fields.pop(":path", self.path)
        fields |= {name.lower(): value for name, value in (headers or {}).items()}
        path = fields.pop(":path", path)
        lines = [f"{method} {path} HTTP/1.1", f"content-length: {size}"]
        lines += [f"{name}: {value}" for name, value in fields.items() if value is not None]
        return "\r\n".join([*lines, "\r\n"]).encode("utf-8", "surrogateescape")

    async def connect(self) -> Pair:
        pair = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        self._all.add(pair[1])
        return pair

    async def send(self, method: str, body: bytes = b"", headers: Json | None = None) -> Response:
        """Send a request; the response when its head has come."""
        while self._idle:
            pair = self._idle.pop()
            if not pair[0].at_eof():
                break
        else:
            pair = await self.connect()
        pair[1].write(self.head(method, len(body), headers) + body)
        return await read_head(pair)

    async def request(
        self, method: str, body: bytes = b"", headers: Json | None = None
    ) -> Response:
        """Send a request and read the whole response."""
        async with asyncio.timeout(BOUND):
            response = await self.send(method, body, headers)
            await response.read()
        self.done(response)
        return response

    def done(self, response: Response) -> None:
        """A response was read to its end: its connection may be used again."""
        pair = response._pair
        if response.headers.get("connection") == "close":
            pair[1].close()
        else:
            self._idle.append(pair)

    # -- MCP

    async def open(self, capabilities: Json | None = None, name: str = "wire") -> Json:
        params = {
            "protocolVersion": VERSION,
            "capabilities": capabilities or {},
            "clientInfo": {"name": name, "version": "0"},
        }
        response = await self.request("POST", frame("initialize", params, "opening"))
        assert response.status == 200, response.raw
        self.session = response.headers["mcp-session-id"]
        await self.notify("notifications/initialized")
        greeting: Json = json.loads(response.raw)["result"]
        return greeting

    async def notify(self, method: str, params: Json | None = None) -> int:
        return (await self.request("POST", frame(method, params or {}))).status

    async def post(self, body: bytes, frame_id: Any, bound: float = BOUND) -> Json | None:
        """Post a request; its answer. What came before it is in ``others``."""
        want, found = json.dumps(frame_id), None
        async with asyncio.timeout(bound):
            response = await self.send("POST", body)
            async for got in response.frames():
                if "method" in got:
                    self.others.append(got)
                else:
                    assert found is None, "two answers"
                    assert json.dumps(got["id"]) == want
                    found = got
        self.raw.append(response.raw)
        self.done(response)
        return found

    async def ask(
        self, method: str, params: Json | None = None, frame_id: Any = None, bound: float = BOUND
    ) -> Json:
        if frame_id is None:
            frame_id = next(self._ids)
        answer = await self.post(frame(method, params or {}, frame_id), frame_id, bound)
        assert answer is not None
        return answer

    async def call(
        self, tool: str, frame_id: Any = None, meta: Json | None = None, **what: Any
    ) -> Json | None:
        """Call a tool; its answer, None when there was none."""
        params: Json = {"name": tool, "arguments": what}
        if meta is not None:
            params["_meta"] = meta
        if frame_id is None:
            frame_id = next(self._ids)
        return await self.post(frame("tools/call", params, frame_id), frame_id, 2 * BOUND)

    async def result(self, tool: str, **what: Any) -> Json:
        answer = await self.call(tool, **what)
        assert answer is not None
        assert "result" in answer, answer
        found: Json = answer["result"]
        return found

    async def nonce(self, tool: str, nonce: str, **what: Any) -> None:
        """Call a tool that answers with the nonce."""
        assert (await self.result(tool, nonce=nonce, **what))["structuredContent"] == {
            "nonce": nonce
        }

    async def cancel(self, frame_id: Any) -> None:
        status = await self.notify("notifications/cancelled", {"requestId": frame_id})
        assert status == 202

    async def tools(self) -> list[str]:
        listed = (await self.ask("tools/list"))["result"]["tools"]
        return [tool["name"] for tool in listed]

    async def delete(self) -> int:
        return (await self.request("DELETE")).status

    def close(self) -> None:
        for writer in self._all:
            writer.close()
        self._idle.clear()


def frame(method: str, params: Json, frame_id: Any = None) -> bytes:
    made: Json = {"jsonrpc": "2.0", "method": method, "params": params}
    if frame_id is not None:
        made["id"] = frame_id
    return json.dumps(made, ensure_ascii=False).encode("utf-8", "surrogatepass")


async def read_head(pair: Pair) -> Response:
    head = await pair[0].readuntil(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {}
    for text in rest:
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    return Response(int(first.split(" ")[1]), headers, pair)


async def until(condition: Any, what: str, seconds: float = BOUND) -> None:
    """Wait for a condition, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - what it looks at are files and processes
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"waited {seconds:g} s for {what}") from None
