"""The practical floor for Python: a byte-level MCP aggregator that does almost nothing.

It decodes a request only to rename the tool and to rewrite the id, and passes the bytes of
the answer through undecoded. No sessions, no validation, no notifications, no recovery: it is
a yardstick, not a product.

    python rawproxy.py CONFIG.json (--http PORT | --stdio)

CONFIG.json is the usual {"mcpServers": {name: {"command", "args"} | {"url"}}}. Tools are
named <server>__<tool>. Needs orjson; uses uvloop when it is installed.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
from urllib.parse import urlsplit

from orjson import dumps, loads

from client import INIT_PARAMS, Lines, encode
from client import Http as HttpClient
from upstream import Http as HttpFront
from upstream import StdioIn

ID = re.compile(rb'\{"jsonrpc":\s?"2\.0",\s?"id":\s?(\d+)')
SEP = "__"


class StdioUp:
    """An upstream behind pipes: all calls share it, told apart by the rewritten id."""

    def __init__(self, conf):
        self.conf, self.waiting, self.next_id, self.out = conf, {}, 0, None

    async def start(self):
        loop = asyncio.get_running_loop()
        self.popen()
        self.out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self.proc.stdin)
        await loop.connect_read_pipe(lambda: Lines(self), self.proc.stdout)
        await self.send("initialize", INIT_PARAMS)
        self.out.write(encode("notifications/initialized") + b"\n")

    def popen(self):
        self.proc = subprocess.Popen(
            [self.conf["command"], *self.conf.get("args", [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def lost(self):
        for waiter in self.waiting.values():
            waiter.cancel()

    def line(self, line):
        found = ID.match(line)
        if found:
            waiter = self.waiting.pop(int(found[1]), None)
            tail = line[found.end() :]
        else:  # the id is elsewhere in the message
            msg = loads(line)
            waiter = self.waiting.pop(msg.pop("id", None), None)
            msg.pop("jsonrpc", None)
            tail = b"," + dumps(msg)[1:]
        if waiter and not waiter.done():
            waiter.set_result(tail)

    def send(self, method, params):
        self.next_id += 1
        waiter = asyncio.get_running_loop().create_future()
        self.waiting[self.next_id] = waiter
        self.out.write(encode(method, params, self.next_id) + b"\n")
        return waiter


class HttpUp:
    """An upstream behind HTTP: a pool of keep-alive connections, one exchange each."""

    def __init__(self, conf):
        url = urlsplit(conf["url"])
        self.host, self.port = url.hostname, url.port
        self.head = (
            f"POST {url.path} HTTP/1.1\r\nhost: {url.netloc}\r\n"
            "content-type: application/json\r\n"
            "accept: application/json, text/event-stream\r\n"
        ).encode()
        self.idle = []

    async def start(self):
        await self.send("initialize", INIT_PARAMS)

    async def send(self, method, params):
        conn = self.idle.pop() if self.idle else HttpClient(self.host, self.port)
        body = encode(method, params, 1)
        _, answer = await conn.exchange(
            self.head + b"content-length: %d\r\n\r\n" % len(body) + body
        )
        self.idle.append(conn)
        found = ID.match(answer)
        return answer[found.end() :]


class Core:
    """What the fronts of upstream.py call: bytes, None, or a coroutine of bytes."""

    def __init__(self, servers):
        self.ups = {
            name: StdioUp(conf) if "command" in conf else HttpUp(conf)
            for name, conf in servers.items()
        }
        self.tools_tail = b""

    async def start(self):
        await asyncio.gather(*(up.start() for up in self.ups.values()))
        found = await asyncio.gather(*(up.send("tools/list", {}) for up in self.ups.values()))
        tools = []
        for name, tail in zip(self.ups, found, strict=True):
            for tool in loads(b'{"id":1' + tail)["result"]["tools"]:
                tool["name"] = name + SEP + tool["name"]
                tools.append(tool)
        self.tools_tail = b',"result":' + dumps({"tools": tools}) + b"}"

    def answer(self, msg):
        mid, method = msg.get("id"), msg.get("method")
        if mid is None or method is None:
            return None
        head = b'{"jsonrpc":"2.0","id":' + dumps(mid)
        if method == "tools/call":
            return self.call(head, msg["params"])
        if method == "tools/list":
            return head + self.tools_tail
        if method == "initialize":
            result = {
                "protocolVersion": msg["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "rawproxy", "version": "1"},
            }
            return head + b',"result":' + dumps(result) + b"}"
        return head + b',"error":{"code":-32601,"message":"Method not found"}}'

    async def call(self, head, params):
        server, _, params["name"] = params["name"].partition(SEP)
        return head + await self.ups[server].send("tools/call", params)


async def amain(args, servers):
    core = Core(servers)
    await core.start()
    loop = asyncio.get_running_loop()
    if args.stdio:
        done = loop.create_future()
        front = StdioIn(core, done)
        front.out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout.buffer)
        await loop.connect_read_pipe(lambda: front, sys.stdin.buffer)
        await done
        return
    server = await loop.create_server(lambda: HttpFront(core), "127.0.0.1", args.http, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--stdio", action="store_true")
    how.add_argument("--http", type=int, metavar="PORT")
    parsed = parser.parse_args()
    try:
        from uvloop import run
    except ImportError:
        run = asyncio.run
    with open(parsed.config) as f:
        config = json.load(f)
    run(amain(parsed, config["mcpServers"]))
