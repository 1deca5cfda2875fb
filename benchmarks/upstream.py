"""A minimal, very fast upstream MCP server used as the load sink of the benchmark.

Hand-written JSON-RPC (no SDK), so that it is not the bottleneck. Tools:

  echo(text, …) -> the arguments, as JSON text
  blob(size)    -> a text content of `size` bytes
  sleep(ms)     -> answers after `ms` milliseconds, other calls go on meanwhile
  ask()         -> asks the user, on the call's own stream, and waits (HTTP, with `--asks`)
  asking()      -> how many calls of `ask` wait (with `--asks`)
  tool_NNNN(..) -> fillers, so that the server has `--tools` tools in total

    python upstream.py --stdio [--tools N] [--stateless]
    python upstream.py --http PORT [--tools N] [--asks]

Uses orjson and uvloop when they are installed. In HTTP mode it answers every POST with
`application/json` unless it asks, keeps no sessions, and refuses GET with 405 (no server-initiated
stream). `--stateless` makes it a server of 2026-07-28 alone.
"""

import argparse
import asyncio
import sys

try:
    from orjson import dumps, loads
except ImportError:  # the slow but dependency-free way
    import json

    loads = json.loads

    def dumps(value):
        return json.dumps(value, separators=(",", ":")).encode()


VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
NEWEST = VERSIONS[-1]
STATELESS = "2026-07-28"
BLOB = b""  # cache of the last blob asked for


def make_tools(count):
    obj = "object"
    tools = [
        {
            "name": "echo",
            "description": "Return the arguments as text.",
            "inputSchema": {
                "type": obj,
                "properties": {
                    "text": {"type": "string", "minLength": 1},
                    "topic": {"type": "string", "pattern": "^[a-z]+$"},
                },
                "required": ["text"],
                "additionalProperties": False,
            },
        },
        {
            "name": "blob",
            "description": "Return a text of the given size.",
            "inputSchema": {
                "type": obj,
                "properties": {"size": {"type": "integer"}},
                "required": ["size"],
            },
        },
        {
            "name": "sleep",
            "description": "Answer after the given number of milliseconds.",
            "inputSchema": {
                "type": obj,
                "properties": {"ms": {"type": "integer"}},
                "required": ["ms"],
            },
        },
    ]
    for i in range(len(tools), count):
        tools.append(
            {
                "name": f"tool_{i:04d}",
                "description": f"Filler tool number {i}: looks up a record of kind {i % 17} "
                "and returns its fields, newest first, as a table.",
                "inputSchema": {
                    "type": obj,
                    "properties": {
                        "query": {"type": "string", "description": "What to look for."},
                        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
                        "tags": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["query"],
                },
            }
        )
    return tools[: max(count, 1)]


class Asking:
    """An answer that is a question first: the call's id, and the question's."""

    def __init__(self, call, question):
        self.call, self.question = call, question


class Core:
    """Answers one decoded message. `answer` returns bytes, None, or a coroutine of bytes."""

    def __init__(self, tools):
        self.tools_tail = b',"result":' + dumps({"tools": make_tools(tools)}) + b"}"

    def answer(self, msg):
        method = msg.get("method")
        mid = msg.get("id")
        if mid is None or method is None:
            return None  # a notification, or a response to nothing we asked
        head = b'{"jsonrpc":"2.0","id":' + dumps(mid)
        if method == "tools/call":
            params = msg["params"]
            name = params["name"]
            args = params.get("arguments") or {}
            if name == "blob":
                return head + self.blob_tail(int(args.get("size", 1024)))
            if name == "sleep":
                return self.sleep(head, float(args.get("ms", 10)))
            return head + self.text_tail(dumps(args).decode())
        if method == "tools/list":
            return head + self.tools_tail
        if method == "initialize":
            wanted = (msg.get("params") or {}).get("protocolVersion")
            return (
                head
                + b',"result":'
                + dumps(
                    {
                        "protocolVersion": wanted if wanted in VERSIONS else NEWEST,
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "bench-upstream", "version": "1"},
                    }
                )
                + b"}"
            )
        if method == "ping" or method == "logging/setLevel":
            return head + b',"result":{}}'
        empty = {
            "resources/list": "resources",
            "resources/templates/list": "resourceTemplates",
            "prompts/list": "prompts",
        }.get(method)
        if empty:
            return head + b',"result":{"' + empty.encode() + b'":[]}}'
        return head + b',"error":{"code":-32601,"message":"Method not found"}}'

    @staticmethod
    def text_tail(text):
        return (
            b',"result":{"content":[{"type":"text","text":' + dumps(text) + b'}],"isError":false}}'
        )

    def blob_tail(self, size):
        global BLOB
        if len(BLOB) != size:
            BLOB = (b"abcdefghijklmnopqrstuvwxyz012345" * (size // 32 + 1))[:size]
        return b',"result":{"content":[{"type":"text","text":"' + BLOB + b'"}],"isError":false}}'

    async def sleep(self, head, ms):
        await asyncio.sleep(ms / 1000)
        return head + self.text_tail("slept")


class StatelessCore(Core):
    """A server of 2026-07-28 alone. It does not look at envelopes: it is not under test."""

    KEPT = b',"result":{"resultType":"complete","ttlMs":60000,"cacheScope":"public",'

    def __init__(self, tools):
        self.tools_tail = self.KEPT + dumps({"tools": make_tools(tools)})[1:] + b"}"

    def answer(self, msg):
        mid, method = msg.get("id"), msg.get("method")
        if mid is None or method in (None, "tools/call", "tools/list"):
            return super().answer(msg)
        head = b'{"jsonrpc":"2.0","id":' + dumps(mid)
        if method == "server/discover":
            found = {
                "supportedVersions": [STATELESS],
                "capabilities": {"tools": {}},
                "_meta": {
                    "io.modelcontextprotocol/serverInfo": {"name": "bench-upstream", "version": "1"}
                },
            }
            return head + self.KEPT + dumps(found)[1:] + b"}"
        if method == "initialize":
            wanted = (msg.get("params") or {}).get("protocolVersion")
            data = {"supported": [STATELESS], "requested": wanted}
            error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
            return head + b',"error":' + dumps(error) + b"}"
        return head + b',"error":{"code":-32601,"message":"Method not found"}}'

    @staticmethod
    def text_tail(text):
        return (
            b',"result":{"resultType":"complete","content":[{"type":"text","text":'
            + dumps(text)
            + b'}],"isError":false}}'
        )


class AskingCore(Core):
    """Adds `ask` and `asking`."""

    def __init__(self, tools):
        super().__init__(tools)
        listed = make_tools(tools)
        listed += [
            {"name": name, "description": name, "inputSchema": {"type": "object"}}
            for name in ("ask", "asking")
        ]
        self.tools_tail = b',"result":' + dumps({"tools": listed}) + b"}"
        self.waiting = {}  # the connection of each call that waits, by its question's id
        self.questions = {}  # and the question's id by the call's
        self.next_question = 0

    def answer(self, msg):
        if msg.get("method") == "tools/call" and msg["params"]["name"] == "ask":
            self.next_question += 1
            return Asking(msg["id"], f"q{self.next_question}")
        if msg.get("method") == "tools/call" and msg["params"]["name"] == "asking":
            head = b'{"jsonrpc":"2.0","id":' + dumps(msg["id"])
            return head + self.text_tail(str(len(self.waiting)))
        if msg.get("method") == "notifications/cancelled":
            self.end(self.questions.get(msg["params"]["requestId"]))
        elif "method" not in msg:
            self.end(msg.get("id"), answered=True)
        return super().answer(msg)

    def ask(self, asking, connection):
        self.waiting[asking.question] = connection, asking.call
        self.questions[asking.call] = asking.question
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        question = {
            "jsonrpc": "2.0",
            "id": asking.question,
            "method": "elicitation/create",
            "params": {"message": "Who?", "requestedSchema": schema},
        }
        return dumps(question)

    def end(self, question, answered=False):
        """The call that this question belongs to is over."""
        connection, call = self.waiting.pop(question, (None, None))
        if connection is not None:
            del self.questions[call]
            tail = self.text_tail("asked") if answered else b""
            connection.told(b'{"jsonrpc":"2.0","id":' + dumps(call) + tail if tail else b"")

    def lost(self, question):
        _, call = self.waiting.pop(question, (None, None))
        self.questions.pop(call, None)


class StdioIn(asyncio.Protocol):
    def __init__(self, core, done):
        self.core, self.done, self.buf = core, done, b""
        self.out = None

    def data_received(self, data):
        data = self.buf + data if self.buf else data
        lines = data.split(b"\n")
        self.buf = lines.pop()
        out = []
        for line in lines:
            if not line.strip():
                continue
            reply = self.core.answer(loads(line))
            if reply is None:
                continue
            if asyncio.iscoroutine(reply):
                # Whatever it waits for keeps the task alive; a set of tasks would cost the floor.
                asyncio.ensure_future(self.later(reply))  # noqa: RUF006
            else:
                out.append(reply)
        if out:
            out.append(b"")
            self.out.write(b"\n".join(out))

    async def later(self, coro):
        self.out.write(await coro + b"\n")

    def connection_lost(self, exc):
        if not self.done.done():
            self.done.set_result(None)


async def serve_stdio(core):
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    proto = StdioIn(core, done)
    proto.out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout.buffer)
    await loop.connect_read_pipe(lambda: proto, sys.stdin.buffer)
    await done


class Http(asyncio.Protocol):
    def __init__(self, core):
        self.core, self.buf, self.tr, self.question = core, b"", None, None

    def connection_made(self, transport):
        self.tr = transport

    def connection_lost(self, exc):
        if self.question is not None:
            self.core.lost(self.question)

    def data_received(self, data):
        self.buf = self.buf + data if self.buf else data
        while True:
            end = self.buf.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buf[:end].lower()
            length, body_at = 0, end + 4
            at = head.find(b"\r\ncontent-length:")
            if at >= 0:
                stop = head.find(b"\r\n", at + 2)
                length = int(head[at + 17 : stop if stop > 0 else None])
                if len(self.buf) < body_at + length:
                    return
                body = self.buf[body_at : body_at + length]
                self.buf = self.buf[body_at + length :]
            elif b"transfer-encoding: chunked" in head:
                got = dechunk(self.buf, body_at)
                if got is None:
                    return
                body, rest = got
                self.buf = self.buf[rest:]
            else:
                body, self.buf = b"", self.buf[body_at:]
            self.request(head, body)

    def request(self, head, body):
        if not head.startswith(b"post "):
            code = b"405 Method Not Allowed" if head.startswith(b"get ") else b"200 OK"
            self.tr.write(b"HTTP/1.1 " + code + b"\r\ncontent-length: 0\r\n\r\n")
            return
        reply = self.core.answer(loads(body))
        if reply is None:
            self.tr.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        elif asyncio.iscoroutine(reply):
            asyncio.ensure_future(self.later(reply))  # noqa: RUF006 - as above
        elif isinstance(reply, Asking):
            self.question = reply.question
            self.tr.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n" + event(self.core.ask(reply, self))
            )
        else:
            self.send(reply)

    def told(self, answer):
        """The question was answered, or the call cancelled: this ends its stream."""
        self.question = None
        self.tr.write((event(answer) if answer else b"") + b"0\r\n\r\n")

    async def later(self, coro):
        self.send(await coro)

    def send(self, reply):
        self.tr.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % len(reply)
            + reply
        )


def event(message):
    """One chunk with one event."""
    data = b"data: " + message + b"\n\n"
    return b"%x\r\n" % len(data) + data + b"\r\n"


def dechunk(buf, at):
    parts = []
    while True:
        eol = buf.find(b"\r\n", at)
        if eol < 0:
            return None
        size = int(buf[at:eol].split(b";")[0], 16)
        at = eol + 2
        if len(buf) < at + size + 2:
            return None
        if size == 0:
            return b"".join(parts), at + 2
        parts.append(buf[at : at + size])
        at += size + 2


async def serve_http(core, port):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http(core), "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--stdio", action="store_true")
    how.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--tools", type=int, default=3)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--stateless", dest="core", action="store_const", const=StatelessCore)
    kind.add_argument("--asks", dest="core", action="store_const", const=AskingCore)
    args = parser.parse_args()
    core = (args.core or Core)(args.tools)
    main_coro = serve_stdio(core) if args.stdio else serve_http(core, args.http)
    try:
        from uvloop import run
    except ImportError:
        run = asyncio.run
    try:
        run(main_coro)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
