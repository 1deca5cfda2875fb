"""The ledger server over HTTP: streamable HTTP at ``/mcp``, the older transport at ``/sse``.

    python -m mcp_junction.testing.http_ledger --file FILE [--port PORT] [--lines] [...]

It keeps the same ledger as its sibling on stdio and offers the same tools; what a call is to suffer
is in its arguments: see ``FAULTS``. Each opening is written down, too. SIGUSR1 makes it forget
every session, as a restart or an idle hour does. It says ``listening on URL`` on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from mcp_junction.tasks import TaskScope
from mcp_junction.testing.ledger import CRASH_CODE, TOOLS, VERSIONS, answer_line, verbatim

FAULTS = {
    "before_execute": "exit before the call is written down",
    "after_execute_before_answer": "exit after it was written down, without an answer",
    "half_answer": "send half of the answer, then exit",
    "cut": "close the connection after it was written down, without an answer",
    "hang": "never answer",
    "stream": "answer in a stream of events",
    "progress": "send `amount` progress notifications in a stream, then answer",
    "logs": "send `amount` log messages of `size` bytes in a stream, then answer",
    "ask": "ask the client for its roots, then answer when it has answered",
}
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_PAGE = "HTTP/1.1 {} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{}\r\n"

Json = dict[str, Any]


class LedgerRequest:
    """One request, and the ways to answer it."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def session(self) -> str | None:
        if "?" in self.path:
            return self.path.partition("?s=")[2]
        return self.headers.get("mcp-session-id")


class Channel:
    """The way back for one call: the body of a response, or events in a stream."""

    def __init__(self, writer: asyncio.StreamWriter, *, open_already: bool = False) -> None:
        self.writer = writer
        self.is_stream = open_already
        self.shared = open_already

    def raw(self, data: bytes) -> None:
        """Bytes of a stream, as they are."""
        if not self.is_stream:
            self.is_stream = True
            self.writer.write(_STREAM)
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, line: bytes) -> None:
        """One frame as one event; its line breaks become lines of data."""
        text = line.rstrip(b"\n").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self.raw(
            b"event: message\n" + b"".join(b"data: %b\n" % t for t in text.split(b"\n")) + b"\n"
        )

    def end(self, line: bytes | None) -> None:
        """The answer, and the end of the response."""
        if not self.is_stream:
            self.writer.write(page(200, line or b""))
            return
        if line is not None:
            self.event(line)
        if not self.shared:
            self.writer.write(b"0\r\n\r\n")


class HttpLedger:
    """One server: its sessions, its calls, its file."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.file = os.open(given.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.sessions: dict[str, Channel | None] = {}
        self.calls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.answers: dict[str, asyncio.Future[Json]] = {}
        self.tasks = TaskScope("ledger")

    def write_down(self, **entry: Any) -> None:
        os.write(self.file, json.dumps({**entry, "at": time.monotonic()}).encode() + b"\n")

    async def run(self) -> None:
        server = await asyncio.start_server(
            self.connection, "127.0.0.1", self.given.port, limit=1 << 24, backlog=1024
        )
        port = server.sockets[0].getsockname()[1]
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.forget)
        self.write_down(event="start", pid=os.getpid(), port=port)
        print(f"listening on http://127.0.0.1:{port}/mcp", flush=True)
        async with server:
            await server.serve_forever()

    def forget(self) -> None:
        self.sessions.clear()
        self.write_down(event="forgot")

    # -- HTTP

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                await self.route(request, reader, writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def route(
        self, request: LedgerRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = request.path.partition("?")[0]
        if request.method == "POST" and path in ("/mcp", "/messages"):
            await self.post(request, writer, older=path == "/messages")
        elif request.method == "GET" and path == "/sse":
            self.stand(writer, self.new_session(), older=True)
            await reader.read()
        elif path != "/mcp" or request.session not in self.sessions:
            writer.write(page(404))
        elif request.method == "DELETE":
            self.sessions.pop(request.session or "")
            self.write_down(event="deleted")
            writer.write(page(200))
        else:
            self.stand(writer, request.session or "", older=False)
            await reader.read()

    def new_session(self) -> str:
        session = uuid.uuid4().hex
        self.sessions[session] = None
        return session

    def stand(self, writer: asyncio.StreamWriter, session: str, *, older: bool) -> None:
        """The stream for everything, or for what belongs to no call."""
        channel = Channel(writer)
        channel.raw(
            f"event: endpoint\ndata: /messages?s={session}\n\n".encode() if older else b":\n\n"
        )
        channel.shared = True
        self.sessions[session] = channel

    async def post(
        self, request: LedgerRequest, writer: asyncio.StreamWriter, *, older: bool
    ) -> None:
        if self.given.lines:
            self.write_down(event="line", text=request.body[:8192].decode("latin-1"))
        frame = json.loads(request.body)
        extra = ""
        if frame.get("method") == "initialize" and not older:
            session = self.new_session()
            extra = f"mcp-session-id: {session}\r\n"
        elif request.session is None:
            writer.write(page(400))
            return
        elif request.session not in self.sessions:
            self.write_down(event="unknown session")
            writer.write(page(404))
            return
        else:
            session = request.session
        if older:
            writer.write(page(202))
            stream = self.sessions[session]
            assert stream is not None
            self.tasks.spawn(self.take(frame, session, stream))
        elif "id" not in frame or "method" not in frame:
            await self.take(frame, session, Channel(writer))
            writer.write(page(202))
        elif frame["method"] == "initialize":
            writer.write(page(200, line({"id": frame["id"], **self.opened(frame)}), extra))
        else:
            await self.take(frame, session, Channel(writer))

    # -- frames

    async def take(self, frame: Json, session: str, channel: Channel) -> None:
        method, params = frame.get("method"), frame.get("params") or {}
        if method is None:
            waiting = self.answers.get(str(frame.get("id")))
            self.write_down(event="answer", id=frame.get("id"))
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
        elif "id" not in frame:
            self.notified(method, params, session)
        elif method == "tools/call":
            await self.called(frame["id"], params, session, channel)
        elif method == "initialize":
            channel.end(line({"id": frame["id"], **self.opened(frame)}))
        elif method == "tools/list":
            channel.end(line({"id": frame["id"], "result": {"tools": TOOLS}}))
        elif method in ("ping", "logging/setLevel"):
            channel.end(line({"id": frame["id"], "result": {}}))
        else:
            error = {"code": -32601, "message": f"no method {method}"}
            channel.end(line({"id": frame["id"], "error": error}))

    def opened(self, frame: Json) -> Json:
        self.write_down(event="initialize")
        wanted = frame["params"].get("protocolVersion")
        return {
            "result": {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[-1],
                "capabilities": {"tools": {"listChanged": True}, "logging": {}},
                "serverInfo": {"name": "ledger", "version": "1"},
            }
        }

    def notified(self, method: str, params: Json, session: str) -> None:
        if method != "notifications/cancelled":
            self.write_down(event="notification", method=method)
            return
        self.write_down(event="cancel", id=params.get("requestId"), reason=params.get("reason"))
        task = self.calls.get((session, json.dumps(params.get("requestId"))))
        if task is not None:
            task.cancel()

    # -- calls

    async def called(self, frame_id: Any, params: Json, session: str, channel: Channel) -> None:
        arguments = params.get("arguments") or {}
        tool, fault = params.get("name"), arguments.get("fault")
        if fault == "before_execute":
            os._exit(CRASH_CODE)
        if tool != "echo":
            self.write_down(event="run", tool=tool, nonce=arguments.get("nonce"), id=frame_id)
        if fault == "after_execute_before_answer":
            os._exit(CRASH_CODE)
        token = (params.get("_meta") or {}).get("progressToken")
        if tool == "say":
            said = verbatim(arguments, frame_id, token)
            self.say(said, arguments.get("way", "body"), channel)
            if not arguments.get("answer"):
                return
        name = (session, json.dumps(frame_id))
        ending = self.end_call(frame_id, token, arguments, channel)
        task = self.calls[name] = self.tasks.spawn(ending)
        try:
            await task
        except asyncio.CancelledError:
            if not channel.shared:
                channel.writer.close()
        finally:
            del self.calls[name]

    def say(self, said: bytes, way: str, channel: Channel) -> None:
        """The caller's own bytes: as a body, as the data of an event, or as a stream itself."""
        if way == "body" and not channel.shared:
            channel.writer.write(page(200, said))
        elif way == "raw":
            channel.raw(said)
        else:
            channel.event(said)

    async def end_call(self, frame_id: Any, token: Any, arguments: Json, channel: Channel) -> None:
        fault = arguments.get("fault")
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "cut":
            channel.writer.close()
            return
        if arguments.get("delay_ms"):
            await asyncio.sleep(arguments["delay_ms"] / 1000)
        if fault in PREFACES:
            await PREFACES[fault](self, channel, arguments, token)
        size = 0 if fault == "logs" else arguments.get("size", 0)
        answer = answer_line(frame_id, arguments, size)
        if fault == "half_answer":
            whole = page(200, answer)
            channel.writer.write(whole[: len(whole) // 2])
            await channel.writer.drain()
            os._exit(CRASH_CODE)
        if fault == "stream":
            channel.raw(b":\n\n")
        channel.end(answer)
        await channel.writer.drain()


# -- what happens before an answer


async def progress(_: HttpLedger, channel: Channel, arguments: Json, token: Any) -> None:
    for number in range(arguments.get("amount", 1) if token is not None else 0):
        told = {"progressToken": token, "progress": number + 1, "message": arguments.get("nonce")}
        channel.event(line({"method": "notifications/progress", "params": told}))
        await channel.writer.drain()


async def logs(_: HttpLedger, channel: Channel, arguments: Json, _token: Any) -> None:
    params = {"level": "warning", "data": "l" * arguments.get("size", 0)}
    for _number in range(arguments.get("amount", 1)):
        channel.event(line({"method": "notifications/message", "params": params}))
        await channel.writer.drain()


async def ask(server: HttpLedger, channel: Channel, arguments: Json, _token: Any) -> None:
    question = f"ask-{arguments.get('nonce')}"
    answer = server.answers[question] = asyncio.get_running_loop().create_future()
    channel.event(line({"id": question, "method": "roots/list"}))
    try:
        await answer
    finally:
        del server.answers[question]


PREFACES: dict[str, Callable[[HttpLedger, Channel, Json, Any], Any]] = {
    "progress": progress,
    "logs": logs,
    "ask": ask,
}


# -- bytes


async def read_request(reader: asyncio.StreamReader) -> LedgerRequest | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {}
    for text in rest:
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return LedgerRequest(method, path, headers, body)


def page(status: int, body: bytes = b"", extra: str = "") -> bytes:
    return _PAGE.format(status, len(body), extra).encode() + body


def line(frame: Json) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **frame}, ensure_ascii=False).encode() + b"\n"


def main(argv: list[str] | None = None) -> int:
    words = argparse.ArgumentParser(prog="http_ledger", description="A ledger server over HTTP.")
    words.add_argument("--file", required=True, help="the ledger, appended to")
    words.add_argument("--port", type=int, default=0, help="where to listen; 0 takes a free one")
    words.add_argument("--lines", action="store_true", help="write down every frame that comes in")
    asyncio.run(HttpLedger(words.parse_args(argv)).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
