"""Clients in front of a gateway: over HTTP and on pipes, with the same verbs.

Everything that comes is kept in ``messages``, whatever wire it came on. Every wait has a bound.
"""

import asyncio
import itertools
import json
import os
from collections.abc import Callable
from typing import Any, Self

from tests.http.wire import BOUND, Response, Wire

VERSION = "2025-11-25"
EVERYTHING = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}}

Message = dict[str, Any]


class Front:
    """A client: what both kinds can do."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.hello = b""
        self._ids = itertools.count(1)
        self._news = asyncio.Event()

    def send(self, message: Message) -> None:
        raise NotImplementedError

    def received(self, message: Message) -> None:
        self.messages.append(message)
        self._news.set()

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait until ``found()`` gives something; it is asked after every message."""
        try:
            async with asyncio.timeout(BOUND):
                while not (thing := found()):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"it did not come; there was {self.messages}") from None
        return thing

    # -- saying

    def notify(self, method: str, params: Any = None) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        self.send(message if params is None else {**message, "params": params})

    def ask(self, method: str, params: Any = None) -> int:
        """Send a request without waiting; its id."""
        frame_id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": frame_id, "method": method}
        self.send(message if params is None else {**message, "params": params})
        return frame_id

    def begin(self, tool: str, token: Any = None, **arguments: Any) -> int:
        """Call a tool without waiting; the id of the call."""
        params: Message = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return self.ask("tools/call", params)

    def respond(self, question: Message, result: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": question["id"], "result": result})

    # -- hearing

    async def answer(self, frame_id: Any) -> Message:
        def found() -> Message | None:
            answers = (m for m in self.messages if "method" not in m)
            return next((m for m in answers if m.get("id") == frame_id), None)

        return await self.until(found)

    def all_heard(self, method: str) -> list[Message]:
        return [message for message in self.messages if message.get("method") == method]

    async def heard(self, method: str, times: int = 1) -> Message:
        """The n-th notification or question of this method."""
        return (await self.until(lambda: self.all_heard(method)[times - 1 :]))[0]

    async def result(self, method: str, params: Any = None) -> Any:
        answer = await self.answer(self.ask(method, params))
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, params: Any = None) -> Message:
        answer = await self.answer(self.ask(method, params))
        assert "error" in answer, answer
        return answer["error"]

    async def error_without_id(self, method: str) -> Message:
        """The error of a request that did not get as far as being read."""
        before = len(self.messages)
        self.ask(method)
        return (await self.until(lambda: self.messages[before:]))[0]["error"]

    async def told(self, tool: str, **arguments: Any) -> str:
        """The words of a tool."""
        return words(await self.answer(self.begin(tool, **arguments)))

    async def read(self, tool: str, **arguments: Any) -> Any:
        """What a tool said, as JSON."""
        return json.loads(await self.told(tool, **arguments))

    async def refused(self, tool: str, **arguments: Any) -> Message:
        """The error a call ended with."""
        answer = await self.answer(self.begin(tool, **arguments))
        assert "error" in answer, answer
        return answer["error"]

    async def under_way(self, tool: str, **arguments: Any) -> int:
        """Call a tool that reports when it has begun, and wait for that."""
        token = f"under way {next(self._ids)}"
        frame_id = self.begin(tool, token, **arguments)
        await self.until(
            lambda: any(m.get("params", {}).get("progressToken") == token for m in self.messages)
        )
        return frame_id

    async def names(self, kind: str = "tools", method: str = "") -> list[str]:
        """The names of everything of a kind, page after page."""
        key = {"resources": "uri", "resourceTemplates": "uriTemplate"}.get(kind, "name")
        found: list[str] = []
        cursor: Message = {}
        while True:
            page = await self.result(method or f"{kind}/list", cursor)
            found += [item[key] for item in page[kind]]
            if "nextCursor" not in page:
                return found
            cursor = {"cursor": page["nextCursor"]}

    async def introduce(self, capabilities: Message, version: str, name: str) -> Message:
        info = {"name": name, "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info}
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        self.hello = json.dumps(hello).encode()
        result = await self.result("initialize", params)
        self.notify("notifications/initialized")
        return result

    async def close(self) -> None:
        raise NotImplementedError


def words(answer: Message) -> str:
    assert "result" in answer, answer
    return answer["result"]["content"][0]["text"]


class HttpFront(Front):
    """A client over HTTP: a connection for every request, and one for the standing stream."""

    def __init__(self, port: int, path: str = "/mcp", key: str | None = None) -> None:
        super().__init__()
        self.port = port
        self.path = path
        self.headers: dict[str, str] = {"authorization": f"Bearer {key}"} if key else {}
        self.responses: list[Response] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls,
        port: int,
        path: str = "/mcp",
        key: str | None = None,
        *,
        capabilities: Message | None = None,
        version: str = VERSION,
        name: str = "a-test",
        listens: bool = True,
    ) -> Self:
        front = cls(port, path, key)
        await front.introduce(capabilities or {}, version, name)
        front.headers |= {"mcp-protocol-version": version}
        if listens:
            await front.listen()
        return front

    def send(self, message: Message) -> None:
        self._spawn(self._post(json.dumps(message).encode(), dict(self.headers)))

    async def listen(self, **headers: str) -> None:
        """Open the standing stream; returns when it is open."""
        wire = await Wire.open(self.port)
        wire.request("GET", self.path, accept="text/event-stream", **self.headers, **headers)
        response = await wire.response()
        assert response.status == 200, response
        self._spawn(self._take(wire))

    def _spawn(self, coro: Any) -> None:
        task = asyncio.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, body: bytes, headers: dict[str, str]) -> None:
        wire = await Wire.open(self.port)
        try:
            wire.request("POST", self.path, body, **headers)
            response = await wire.response()
            self.responses.append(response)
            if "mcp-session-id" in response.headers:
                self.headers["mcp-session-id"] = response.headers["mcp-session-id"]
            if response.is_stream:
                async for event in wire.events():
                    if event.data:
                        self.received(event.message)
            elif response.body:
                self.received(response.json)
        finally:
            wire.reset()

    async def _take(self, wire: Wire) -> None:
        try:
            async for event in wire.events():
                if event.data:
                    self.received(event.message)
        finally:
            wire.reset()

    async def delete(self) -> Response:
        wire = await Wire.open(self.port)
        wire.request("DELETE", self.path, **self.headers)
        try:
            return await wire.response()
        finally:
            wire.reset()

    async def close(self) -> None:
        """End the session, if it is not over, and let go of everything."""
        if "mcp-session-id" in self.headers:
            try:
                await self.delete()
            except (OSError, asyncio.IncompleteReadError):
                pass  # it is gone already
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=BOUND)


class PipeFront(Front):
    """A client on two pipes."""

    def __init__(self, stdin: int, stdout: int) -> None:
        super().__init__()
        self._stdin = os.fdopen(stdin, "wb", 0)
        self._stdout = stdout
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        stdin: int,
        stdout: int,
        *,
        capabilities: Message | None = None,
        version: str = VERSION,
        name: str = "a-test",
    ) -> Self:
        front = cls(stdin, stdout)
        reader = asyncio.StreamReader(limit=1 << 24)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdout, "rb", 0)
        )
        front._reading = asyncio.create_task(front._read(reader, pipe))
        await front.introduce(capabilities or {}, version, name)
        return front

    def send(self, message: Message) -> None:
        self._stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self, reader: asyncio.StreamReader, pipe: asyncio.ReadTransport) -> None:
        try:
            while line := await reader.readline():
                self.received(json.loads(line))
        finally:
            pipe.close()

    async def close(self) -> None:
        self._stdin.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading}, timeout=BOUND)
