"""A server of either era on any transport, whose tools end in every way a call can end.

    python upstream.py stdio old|new      on stdin and stdout
    python upstream.py http               prints its port; ERA/json and ERA/events are streamable
                                          HTTP, /older is the older transport

Tools: ``blob`` answers with 256 KiB, ``fail`` with an error, ``hang`` and ``wait`` never,
``die`` by closing the connection or ending the process, ``ask`` after a question, ``progress``
after some notifications. When ``hang`` has begun, a datagram is sent to the socket that HANGING
names. Standard library only, so that ``python -S`` can start it at once.
"""

import asyncio
import itertools
import json
import os
import socket
import sys
from typing import Any

SIZE = 256 * 1024
STATELESS = "2026-07-28"
TOOLS = ("blob", "fail", "hang", "wait", "die", "ask", "progress")
ELICIT = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
BLOB = "x" * SIZE

Message = dict[str, Any]


class Channel:
    """The way back to the client for one request."""

    def say(self, message: Message) -> None:
        raise NotImplementedError

    def end(self, message: Message) -> None:
        raise NotImplementedError

    def die(self) -> None:
        raise NotImplementedError


class Conversation:
    """What the server answers, in one era."""

    def __init__(self, era: str) -> None:
        self.is_new = era == "new"
        self.asked: dict[str, tuple[Any, Channel]] = {}
        self.numbers = itertools.count(1)

    def receive(self, message: Message, channel: Channel) -> None:
        method, mid = message.get("method"), message.get("id")
        if method is None:
            call, waiting = self.asked.pop(mid, (None, None))
            if waiting is not None:
                waiting.end(self.result(call, text("asked")))
        elif mid is not None:
            self.request(method, mid, message.get("params") or {}, channel)

    def request(self, method: str, mid: Any, params: Message, channel: Channel) -> None:
        if method == "tools/call":
            self.call(params["name"], mid, params, channel)
        elif method == ("server/discover" if self.is_new else "initialize"):
            channel.end(self.result(mid, self.greeting(params)))
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
            channel.end(self.result(mid, {"tools": tools}))
        elif method == "initialize":
            data = {"supported": [STATELESS], "requested": params.get("protocolVersion")}
            channel.end(error(mid, -32022, "Unsupported protocol version", data))
        else:
            channel.end(error(mid, -32601, "Method not found"))

    def greeting(self, params: Message) -> Message:
        if self.is_new:
            return {"supportedVersions": [STATELESS], "capabilities": {"tools": {}}}
        info = {"name": "memory", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}

    def result(self, mid: Any, found: Message) -> Message:
        if self.is_new and "resultType" not in found:
            found = {"resultType": "complete", "ttlMs": 60000, "cacheScope": "public", **found}
        return {"jsonrpc": "2.0", "id": mid, "result": found}

    def call(self, name: str, mid: Any, params: Message, channel: Channel) -> None:
        if name == "hang":
            report_hanging()
        elif name == "wait":
            pass
        elif name == "die":
            channel.die()
        elif name == "fail":
            channel.end(error(mid, -32050, "it was asked to fail", {"padding": BLOB}))
        elif name == "ask":
            self.ask(mid, params, channel)
        else:
            token = params.get("_meta", {}).get("progressToken")
            if name == "progress" and token is not None:
                for step in range(3):
                    told = {"progressToken": token, "progress": step, "total": 3}
                    channel.say({"method": "notifications/progress", "params": told})
            channel.end(self.result(mid, text(BLOB)))

    def ask(self, mid: Any, params: Message, channel: Channel) -> None:
        if not self.is_new:
            question = f"q{next(self.numbers)}"
            self.asked[question] = mid, channel
            channel.say({"id": question, "method": "elicitation/create", "params": ELICIT})
        elif "inputResponses" in params:
            channel.end(self.result(mid, text("asked")))
        else:
            wanted = {"who": {"method": "elicitation/create", "params": ELICIT}}
            found = {"resultType": "input_required", "inputRequests": wanted}
            channel.end(self.result(mid, {**found, "requestState": "a-state"}))


def text(words: str) -> Message:
    return {"content": [{"type": "text", "text": words}]}


def error(mid: Any, code: int, words: str, data: Any = None) -> Message:
    return {"jsonrpc": "2.0", "id": mid, "error": {"code": code, "message": words, "data": data}}


def report_hanging() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.sendto(b".", os.environ["HANGING"])


# -- stdio


class Pipe(Channel):
    def say(self, message: Message) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    end = say

    def die(self) -> None:
        os._exit(3)


def serve_stdio(era: str) -> None:
    conversation, channel = Conversation(era), Pipe()
    for line in sys.stdin:
        conversation.receive(json.loads(line), channel)


# -- HTTP


class Response(Channel):
    """JSON, unless something is said before the answer; a stream of events where that is wanted."""

    def __init__(self, writer: asyncio.StreamWriter, *, streams: bool) -> None:
        self.writer = writer
        self.is_stream = False
        if streams:
            self.begin()

    def begin(self) -> None:
        if not self.is_stream:
            self.is_stream = True
            head = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            self.writer.write(b"HTTP/1.1 200 OK\r\n" + head)

    def say(self, message: Message) -> None:
        self.begin()
        self.event(b"message", json.dumps({"jsonrpc": "2.0", **message}).encode())

    def event(self, name: bytes, data: bytes) -> None:
        body = b"event: %b\ndata: %b\n\n" % (name, data)
        self.writer.write(b"%x\r\n%b\r\n" % (len(body), body))

    def end(self, message: Message) -> None:
        if self.is_stream:
            self.say(message)
            self.writer.write(b"0\r\n\r\n")
            return
        body = json.dumps(message).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.writer.write(head % len(body) + body)

    def die(self) -> None:
        self.writer.transport.abort()


class OlderStream(Response):
    """The one stream of the older transport: no answer ends it."""

    end = Response.say


class HttpServer:
    """Both eras, streamable and older, each at a path of its own."""

    def __init__(self) -> None:
        self.conversations = {era: Conversation(era) for era in ("old", "new")}
        self.older: dict[str, OlderStream] = {}

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                method, path, _ = head.split(" ", 2)
                _, _, rest = head.partition("content-length:")
                body = await reader.readexactly(int(rest.split("\r\n")[0])) if rest else b""
                if method == "post":
                    self.post(path, json.loads(body), writer)
                elif path == "/older":
                    stream = self.older[f"s{len(self.older)}"] = OlderStream(writer, streams=True)
                    stream.event(b"endpoint", f"/older?s{len(self.older) - 1}".encode())
                else:
                    status = b"405 No" if method == "get" else b"200 OK"
                    writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def post(self, path: str, message: Message, writer: asyncio.StreamWriter) -> None:
        taken = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
        place, _, stream = path.partition("?")
        if place == "/older":
            writer.write(taken)
            self.conversations["old"].receive(message, self.older[stream])
            return
        _, era, kind = place.split("/")
        if "id" not in message or "method" not in message:
            self.conversations[era].receive(message, Channel())
            writer.write(taken)
        else:
            response = Response(writer, streams=kind == "events")
            self.conversations[era].receive(message, response)


async def serve_http() -> None:
    server = await asyncio.start_server(
        HttpServer().connection, "127.0.0.1", 0, limit=1 << 24, backlog=256
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        serve_stdio(sys.argv[2])
    else:
        asyncio.run(serve_http())
