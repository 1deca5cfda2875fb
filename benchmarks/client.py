"""Raw, low-overhead MCP load clients: streamable HTTP and stdio.

`HttpSession` is one MCP session over one keep-alive connection, one request at a time (use
several for concurrency). `StdioSession` multiplexes any number of requests over a child's
pipes. Both have the same three coroutines: `open()` (the initialize handshake), `request()`
and `close()`. The `Stateless…` ones are the same of 2026-07-28: nothing is opened, and each
request says everything.
"""

import asyncio
import subprocess

import orjson

PROTOCOL = "2025-06-18"
STATELESS = "2026-07-28"


class McpError(Exception):
    """An HTTP failure, a JSON-RPC error, or an answer that makes no sense."""


def encode(method, params=None, mid=None):
    msg = {"jsonrpc": "2.0", "method": method}
    if mid is not None:
        msg["id"] = mid
    if params is not None:
        msg["params"] = params
    return orjson.dumps(msg)


INIT_PARAMS = {
    "protocolVersion": PROTOCOL,
    "capabilities": {},
    "clientInfo": {"name": "bench-client", "version": "1"},
}


ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    "io.modelcontextprotocol/clientInfo": INIT_PARAMS["clientInfo"],
}


def events(body):
    """The JSON messages of a finished text/event-stream body."""
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = [line[5:].lstrip(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        data = b"\n".join(data)
        if data.strip():
            yield orjson.loads(data)


def unwrap(msg):
    if "error" in msg:
        raise McpError(f"JSON-RPC error {str(msg['error'])[:300]}")
    return msg["result"]


class _Conn(asyncio.Protocol):
    """One HTTP/1.1 client connection; one response at a time."""

    def __init__(self):
        self.waiter = None
        self.closed = False
        self.transport = None
        self.reset()

    def reset(self):
        self.parts, self.size = [], 0
        self.head = None
        self.need = 0  # bytes of body wanted; -1 chunked, -2 until the connection ends
        self.body_at = 0

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, exc):
        self.closed = True
        if self.waiter and not self.waiter.done():
            if self.head is not None and self.need == -2:
                self.finish(b"".join(self.parts)[self.body_at :])
            else:
                self.waiter.set_exception(McpError(f"connection lost {exc or ''}"))

    def data_received(self, data):
        if self.waiter is None:
            return
        self.parts.append(data)
        self.size += len(data)
        if self.head is None and not self.read_head():
            return
        if self.need >= 0:
            if self.size >= self.body_at + self.need:
                buf = b"".join(self.parts)
                self.finish(buf[self.body_at : self.body_at + self.need])
        elif self.need == -1:
            # Only try to decode when the last chunk has come.
            tail = data if len(data) >= 5 else b"".join(self.parts)[-5:]
            if tail.endswith(b"0\r\n\r\n"):
                body = self.dechunk()
                if body is not None:
                    self.finish(body)

    def read_head(self):
        """Find the end of the head and how the body is delimited; false while it is incomplete."""
        buf = b"".join(self.parts)
        end = buf.find(b"\r\n\r\n")
        self.parts = [buf]
        if end < 0:
            return False
        self.head = buf[:end]
        self.body_at = end + 4
        low = self.head.lower()
        at = low.find(b"\r\ncontent-length:")
        if at >= 0:
            stop = low.find(b"\r\n", at + 2)
            self.need = int(low[at + 17 : stop if stop > 0 else None])
        elif b"\r\ntransfer-encoding: chunked" in low:
            self.need = -1
        elif low.startswith((b"http/1.1 204", b"http/1.1 304")):
            self.need = 0
        else:
            self.need = -2
        return True

    def dechunk(self):
        buf = b"".join(self.parts)
        self.parts = [buf]
        at, out = self.body_at, []
        while True:
            eol = buf.find(b"\r\n", at)
            if eol < 0:
                return None
            size = int(buf[at:eol].split(b";")[0], 16)
            at = eol + 2
            if len(buf) < at + size + 2:
                return None
            if size == 0:
                return b"".join(out)
            out.append(buf[at : at + size])
            at += size + 2

    def finish(self, body):
        waiter, head = self.waiter, self.head
        self.waiter = None
        self.reset()
        if not waiter.done():
            waiter.set_result((head, body))

    async def exchange(self, payload):
        self.waiter = asyncio.get_running_loop().create_future()
        self.transport.write(payload)
        try:
            return await self.waiter
        except asyncio.CancelledError:
            # The answer would be taken for that of the next request.
            self.closed = True
            self.transport.abort()
            raise


class Http:
    """A keep-alive connection which is reopened when the server closed it."""

    def __init__(self, host, port):
        self.host, self.port, self.conn = host, port, None
        self.reconnects = -1

    async def exchange(self, payload):
        if self.conn is None or self.conn.closed:
            loop = asyncio.get_running_loop()
            _, self.conn = await loop.create_connection(_Conn, self.host, self.port)
            self.reconnects += 1
        return await self.conn.exchange(payload)

    def close(self):
        if self.conn and self.conn.transport:
            self.conn.transport.abort()
        self.conn = None


class HttpSession:
    def __init__(self, port, path="/mcp", host="127.0.0.1", headers=None):
        self.http = Http(host, port)
        extra = "".join(f"{k}: {v}\r\n" for k, v in (headers or {}).items())
        self.fixed = (
            f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\n"
            "content-type: application/json\r\n"
            "accept: application/json, text/event-stream\r\n" + extra
        ).encode()
        self.delete = f"DELETE {path} HTTP/1.1\r\nhost: {host}:{port}\r\n{extra}".encode()
        self.session = b""
        self.prefix = self.fixed
        self.next_id = 0

    async def post(self, body):
        head, answer = await self.http.exchange(
            self.prefix + b"content-length: %d\r\n\r\n" % len(body) + body
        )
        status = int(head[9:12])
        if status >= 300:
            raise McpError(f"HTTP {status} {answer[:300]!r}")
        return status, head, answer

    async def open(self):
        _, head, body = await self.post(encode("initialize", INIT_PARAMS, 0))
        msg = self.find(head, body, 0)
        result = unwrap(msg)
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"mcp-session-id":
                self.session = b"mcp-session-id: " + value.strip() + b"\r\n"
        self.prefix = (
            self.fixed
            + self.session
            + b"mcp-protocol-version: "
            + result["protocolVersion"].encode()
            + b"\r\n"
        )
        await self.post(encode("notifications/initialized"))
        return result

    @staticmethod
    def find(head, body, mid):
        if b"text/event-stream" in head.lower():
            for msg in events(body):
                if msg.get("id") == mid and "method" not in msg:
                    return msg
            raise McpError("no answer in the event stream")
        return orjson.loads(body)

    async def request(self, method, params=None):
        self.next_id += 1
        mid = self.next_id
        _, head, body = await self.post(encode(method, params, mid))
        msg = self.find(head, body, mid)
        if msg.get("id") != mid:
            raise McpError(f"answer to another request: {msg.get('id')} for {mid}")
        return unwrap(msg)

    async def close(self):
        if self.session and self.http.conn and not self.http.conn.closed:
            try:
                await asyncio.wait_for(
                    self.http.exchange(self.delete + self.session + b"content-length: 0\r\n\r\n"),
                    2,
                )
            except (McpError, OSError, TimeoutError):
                pass
        self.http.close()


class StatelessHttpSession(HttpSession):
    """A client without a session, on one keep-alive connection."""

    def __init__(self, port, path="/mcp", host="127.0.0.1", headers=None):
        super().__init__(port, path, host, headers)
        self.stateless = self.fixed + f"mcp-protocol-version: {STATELESS}\r\n".encode()

    async def open(self):
        return {}

    async def request(self, method, params=None):
        params = {**(params or {}), "_meta": ENVELOPE}
        name = f"mcp-name: {params['name']}\r\n" if method == "tools/call" else ""
        self.prefix = self.stateless + f"mcp-method: {method}\r\n{name}".encode()
        return await super().request(method, params)


class Lines(asyncio.Protocol):
    """Cuts what a pipe delivers into lines for `owner.line`; its end is told to `owner.lost`."""

    def __init__(self, owner):
        self.owner, self.parts = owner, []

    def data_received(self, data):
        if b"\n" not in data:
            self.parts.append(data)
            return
        if self.parts:
            self.parts.append(data)
            data = b"".join(self.parts)
            self.parts = []
        lines = data.split(b"\n")
        if lines[-1]:
            self.parts.append(lines[-1])
        for line in lines[:-1]:
            if line.strip():
                self.owner.line(line)

    def connection_lost(self, exc):
        self.owner.lost()


class StdioSession:
    """A child process and any number of requests in flight over its pipes."""

    def __init__(self, argv, stderr=subprocess.DEVNULL):
        self.argv, self.stderr = argv, stderr
        self.waiting, self.next_id, self.proc, self.out = {}, 0, None, None
        self.closed = False

    async def spawn(self):
        loop = asyncio.get_running_loop()
        self.popen()
        self.out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self.proc.stdin)
        await loop.connect_read_pipe(lambda: Lines(self), self.proc.stdout)

    def popen(self):
        # A session of its own keeps Ctrl-C from reaching the child before the runner ends it.
        self.proc = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            bufsize=0,
            start_new_session=True,
        )

    async def open(self):
        if self.proc is None:
            await self.spawn()
        result = await self.request("initialize", INIT_PARAMS)
        self.notify("notifications/initialized")
        return result

    def line(self, line):
        try:
            msg = orjson.loads(line)
        except orjson.JSONDecodeError:
            return  # a log line on stdout: against the protocol, but seen
        if "method" in msg:
            if "id" in msg:
                self.out.write(
                    orjson.dumps({"jsonrpc": "2.0", "id": msg["id"], "result": {}}) + b"\n"
                )
            return
        waiter = self.waiting.pop(msg.get("id"), None)
        if waiter and not waiter.done():
            waiter.set_result(msg)

    def lost(self):
        self.closed = True
        for waiter in self.waiting.values():
            if not waiter.done():
                waiter.set_exception(McpError("the server closed its stdout"))
        self.waiting.clear()

    def post(self, method, params=None):
        """Write a request at once; the future answers the whole message."""
        if self.closed:
            raise McpError("the server closed its stdout")
        self.next_id += 1
        mid = self.next_id
        waiter = self.waiting[mid] = asyncio.get_running_loop().create_future()
        self.out.write(encode(method, params, mid) + b"\n")
        return waiter

    def notify(self, method):
        self.out.write(encode(method) + b"\n")

    async def request(self, method, params=None):
        return unwrap(await self.post(method, params))

    async def close(self):
        """End of stdin and five seconds to finish in, then SIGTERM, then SIGKILL."""
        if self.out:
            self.out.close()
        if self.proc is None:
            return
        for seconds, harder in ((5, self.proc.terminate), (2, self.proc.kill)):
            if await self.ended(seconds):
                return
            harder()
        await self.ended(5)

    async def ended(self, seconds):
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self.proc.wait, seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


class StatelessStdioSession(StdioSession):
    """A child that is spoken to without a handshake."""

    async def open(self):
        if self.proc is None:
            await self.spawn()
        return {}

    async def request(self, method, params=None):
        return await super().request(method, {**(params or {}), "_meta": ENVELOPE})
