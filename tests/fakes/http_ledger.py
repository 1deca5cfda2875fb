"""The ledger server over HTTP: streamable HTTP at ``/mcp``, the older HTTP+SSE at ``/sse``.

    python -m tests.fakes.http_ledger --file FILE [--port PORT] [--lines] [...]

It keeps the same ledger and offers the same tools as ``mcp_junction.testing.ledger`` on stdio; a
call's arguments choose its fault: see ``FAULTS``. Each ``initialize`` is recorded, too. SIGUSR1
makes it forget every session, as a restart does. It prints ``listening on URL``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from mcp_junction.tasks import TaskScope, resolve
from mcp_junction.testing.ledger import (
    CRASH_CODE,
    LedgerFile,
    answer_line,
    answer_request,
    encode_line,
    log_lines,
    progress_lines,
    verbatim,
)

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


class LedgerRequest(NamedTuple):
    """One HTTP request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def session(self) -> str | None:
        if "?" in self.path:
            return self.path.partition("?s=")[2]
        return self.headers.get("mcp-session-id")


class LedgerReply:
    """Sends the answer to one call: as the body of a response, or as events in a stream."""

    def __init__(self, writer: asyncio.StreamWriter, *, open_already: bool = False) -> None:
        self.writer = writer
        self.is_stream = open_already
        self.shared = open_already

    def raw(self, data: bytes) -> None:
        """Send bytes of a stream, as they are."""
        if not self.is_stream:
            self.is_stream = True
            self.writer.write(_STREAM)
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, line: bytes) -> None:
        """Send one frame as one event; its line breaks become lines of data."""
        text = line.rstrip(b"\n").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self.raw(
            b"event: message\n" + b"".join(b"data: %b\n" % t for t in text.split(b"\n")) + b"\n"
        )

    def end(self, line: bytes | None) -> None:
        """Send the answer, and end the response."""
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
        self.ledger = LedgerFile(given.file)
        self.sessions: dict[str, LedgerReply | None] = {}
        self.calls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.answers: dict[str, asyncio.Future[Json]] = {}
        self.tasks = TaskScope("ledger")

    async def run(self) -> None:
        server = await asyncio.start_server(
            self.connection, "127.0.0.1", self.given.port, limit=1 << 24, backlog=1024
        )
        port = server.sockets[0].getsockname()[1]
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.forget)
        self.ledger.record(event="start", pid=os.getpid(), port=port)
        print(f"listening on http://127.0.0.1:{port}/mcp", flush=True)
        async with server:
            await server.serve_forever()

    def forget(self) -> None:
        self.sessions.clear()
        self.ledger.record(event="forgot")

    # -- HTTP

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self.route(await read_request(reader), reader, writer)
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
            self.open_stream(writer, self.new_session(), older=True)
            await reader.read()
        elif path != "/mcp" or request.session not in self.sessions:
            writer.write(page(404))
        elif request.method == "DELETE":
            self.sessions.pop(request.session or "")
            self.ledger.record(event="deleted")
            writer.write(page(200))
        else:
            self.open_stream(writer, request.session or "", older=False)
            await reader.read()

    def new_session(self) -> str:
        session = uuid.uuid4().hex
        self.sessions[session] = None
        return session

    def open_stream(self, writer: asyncio.StreamWriter, session: str, *, older: bool) -> None:
        """Open the stream of a session: for all messages, or for those that belong to no call."""
        channel = LedgerReply(writer)
        channel.raw(
            f"event: endpoint\ndata: /messages?s={session}\n\n".encode() if older else b":\n\n"
        )
        channel.shared = True
        self.sessions[session] = channel

    async def post(
        self, request: LedgerRequest, writer: asyncio.StreamWriter, *, older: bool
    ) -> None:
        if self.given.lines:
            self.ledger.record(event="line", text=request.body[:8192].decode("latin-1"))
        frame = json.loads(request.body)
        extra = ""
        if frame.get("method") == "initialize" and not older:
            session = self.new_session()
            extra = f"mcp-session-id: {session}\r\n"
        elif request.session is None:
            writer.write(page(400))
            return
        elif request.session not in self.sessions:
            self.ledger.record(event="unknown session")
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
            await self.take(frame, session, LedgerReply(writer))
            writer.write(page(202))
        elif frame["method"] == "initialize":
            writer.write(page(200, self.initialize(frame), extra))
        else:
            await self.take(frame, session, LedgerReply(writer))

    # -- frames

    async def take(self, frame: Json, session: str, channel: LedgerReply) -> None:
        """Handle one message."""
        method, params = frame.get("method"), frame.get("params") or {}
        if method is None:
            waiting = self.answers.get(str(frame.get("id")))
            self.ledger.record(event="answer", id=frame.get("id"))
            if waiting is not None:
                resolve(waiting, frame)
        elif "id" not in frame:
            self.handle_notification(method, params, session)
        elif method == "tools/call":
            await self.call_tool(frame["id"], params, session, channel)
        elif method == "initialize":
            channel.end(self.initialize(frame))
        else:
            channel.end(encode_line({"id": frame["id"], **answer_request(method, params)}))

    def initialize(self, frame: Json) -> bytes:
        self.ledger.record(event="initialize")
        return encode_line({"id": frame["id"], **answer_request("initialize", frame["params"])})

    def handle_notification(self, method: str, params: Json, session: str) -> None:
        if method != "notifications/cancelled":
            self.ledger.record(event="notification", method=method)
            return
        self.ledger.record(event="cancel", id=params.get("requestId"), reason=params.get("reason"))
        task = self.calls.get((session, json.dumps(params.get("requestId"))))
        if task is not None:
            task.cancel()

    # -- calls

    async def call_tool(
        self, frame_id: Any, params: Json, session: str, channel: LedgerReply
    ) -> None:
        arguments = params.get("arguments") or {}
        tool, fault = params.get("name"), arguments.get("fault")
        self.ledger.record_run(frame_id, str(tool), arguments.get("nonce"), fault)
        token = (params.get("_meta") or {}).get("progressToken")
        if tool == "say":
            data = verbatim(arguments, frame_id, token)
            self.say(data, arguments.get("way", "body"), channel)
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

    def say(self, data: bytes, way: str, channel: LedgerReply) -> None:
        """Send the caller's own bytes: as a body, as an event's data, or as a stream."""
        if way == "body" and not channel.shared:
            channel.writer.write(page(200, data))
        elif way == "raw":
            channel.raw(data)
        else:
            channel.event(data)

    async def end_call(
        self, frame_id: Any, token: Any, arguments: Json, channel: LedgerReply
    ) -> None:
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


# -- faults before an answer


async def send_events(channel: LedgerReply, lines: Iterable[bytes]) -> None:
    for line in lines:
        channel.event(line)
        await channel.writer.drain()


async def ask(server: HttpLedger, channel: LedgerReply, arguments: Json, _token: Any) -> None:
    question = f"ask-{arguments.get('nonce')}"
    answer = server.answers[question] = asyncio.get_running_loop().create_future()
    channel.event(encode_line({"id": question, "method": "roots/list"}))
    try:
        await answer
    finally:
        del server.answers[question]


PREFACES: dict[str, Callable[[HttpLedger, LedgerReply, Json, Any], Any]] = {
    "progress": lambda _, channel, given, token: send_events(channel, progress_lines(given, token)),
    "logs": lambda _, channel, given, _token: send_events(channel, log_lines(given)),
    "ask": ask,
}


# -- bytes


async def read_request(reader: asyncio.StreamReader) -> LedgerRequest:
    """Read a request. Raises IncompleteReadError when there is no other."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (text.partition(":") for text in rest)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return LedgerRequest(method, path, headers, body)


def page(status: int, body: bytes = b"", extra: str = "") -> bytes:
    return _PAGE.format(status, len(body), extra).encode() + body


def main(argv: list[str] | None = None) -> int:
    words = argparse.ArgumentParser(prog="http_ledger", description="A ledger server over HTTP.")
    words.add_argument("--file", required=True, help="the ledger, appended to")
    words.add_argument("--port", type=int, default=0, help="where to listen; 0 takes a free one")
    words.add_argument("--lines", action="store_true", help="write down every frame that comes in")
    asyncio.run(HttpLedger(words.parse_args(argv)).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
