"""The load sink of the benchmark over streams of events.

    python events_upstream.py PORT

Streamable HTTP at /mcp, every answer in a stream of its own; the older HTTP+SSE transport at /sse,
every answer in the one stream of its client. The tools are those of `upstream.py`.
"""

import asyncio
import sys
from typing import ClassVar

import uvloop

from upstream import Core, Http, event, loads

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TAKEN = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"


class Events(Http):
    """A connection of either transport."""

    streams: ClassVar[dict[bytes, asyncio.Transport]] = {}

    def request(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if head.startswith(b"get /sse"):
            number = b"%d" % len(self.streams)
            self.streams[number] = self.tr
            named = b"event: endpoint\ndata: /messages?%b\n\n" % number
            self.tr.write(STREAM + b"%x\r\n%b\r\n" % (len(named), named))
        elif path.startswith(b"/messages?"):
            self.tr.write(TAKEN)
            reply = self.core.answer(loads(body))
            if reply is not None:
                self.streams[path.partition(b"?")[2]].write(event(reply))
        elif path == b"/sse":  # who tries the newer transport first
            self.tr.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
        else:
            super().request(head, body)

    def send(self, reply: bytes) -> None:
        self.tr.write(STREAM + event(reply) + b"0\r\n\r\n")


async def serve(port: int) -> None:
    core = Core(3)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Events(core), "127.0.0.1", port, backlog=256)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
