"""An MCP server over HTTP in the test's own process: what it offers and how it behaves is a matter
of attributes, and it can be stopped and started again on the same port."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress

from mcp_junction.listener.http.server import stop_accepting

BOUND = 60.0


async def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so, but not for ever."""
    async with asyncio.timeout(BOUND):
        while not is_so():  # noqa: ASYNC110 - there is no event for most of it
            await asyncio.sleep(0.005)


def tool(name: str, description: str = "does something", **members) -> dict:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}} | members


class Toolbox:
    """One server. ``gate`` holds calls back while it is clear, ``listing`` its list of tools, and
    ``answers`` everything."""

    def __init__(self, tools: list[dict] | None = None) -> None:
        self.tools = tools if tools is not None else [tool("echo")]
        self.underway = 0
        self.most = 0
        """How many openings there were at one time, and at most."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.listing = asyncio.Event()
        self.listing.set()
        self.answers = asyncio.Event()
        self.answers.set()
        self.slowness = 0.0
        self.pings = 0
        self.calls = 0
        self.bodies: list[bytes] = []
        """What each call was, byte for byte."""
        self.says: dict = {}
        """Members of every tool's result, beside or instead of ``content``."""
        self.openings = 0
        self.lists = 0
        self.ping_status = 200
        self.health_status = 200
        self.health_checks = 0
        self.session = "s"
        self.needs_session = False
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> "Toolbox":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Like a process that is killed: nothing listens, and every connection ends."""
        if self._server is not None:
            server, self._server = self._server, None
            await stop_accepting([server])
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def __aenter__(self) -> "Toolbox":
        return await self.start()

    async def __aexit__(self, *_) -> None:
        for held in (self.gate, self.listing, self.answers):
            held.set()
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._exchange(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (h.partition(":") for h in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        await self.answers.wait()
        if path == "/health":
            self.health_checks += 1
            return self._write(writer, self.health_status, b"")
        if method != "POST":
            return self._write(writer, 405 if method == "GET" else 200, b"")
        asked = json.loads(body)
        if asked["method"] == "tools/call":
            self.bodies.append(body)
        known = headers.get("mcp-session-id")
        is_first = asked["method"] in ("initialize", "server/discover")
        if self.needs_session and known != self.session and not is_first:
            return self._write(writer, 404, b"")
        if "id" not in asked:
            return self._write(writer, 202, b"")
        status, answer = await self._answer(asked["method"], asked.get("params") or {})
        reply = json.dumps({"jsonrpc": "2.0", "id": asked["id"]} | answer).encode()
        return self._write(writer, status, reply)

    async def _answer(self, method: str, params: dict) -> tuple[int, dict]:
        if method == "initialize":
            self.openings += 1
            self.underway += 1
            self.most = max(self.most, self.underway)
            await asyncio.sleep(self.slowness)
            self.underway -= 1
            return 200, {
                "result": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": {"name": "toolbox", "version": "1"},
                }
            }
        if method == "tools/list":
            self.lists += 1
            await self.listing.wait()
            return 200, {"result": {"tools": self.tools}}
        if method == "ping":
            self.pings += 1
            return self.ping_status, {"result": {}}
        if method == "tools/call":
            self.calls += 1
            await self.gate.wait()
            text = json.dumps(params.get("arguments") or {})
            return 200, {"result": {"content": [{"type": "text", "text": text}]} | self.says}
        return 200, {"error": {"code": -32601, "message": "no such method"}}

    def _write(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
            f"mcp-session-id: {self.session}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
