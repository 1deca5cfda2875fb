"""upstream.py that also talks without being asked: `flood(rate)` starts and ends it.

It writes so many log messages a second, in a burst every five milliseconds; a rate of 0 is silence.
The name of this file contains "upstream.py" so that procs.py leaves it out of the CPU time.

    python flooding_upstream.py
"""

import asyncio
import sys

import uvloop
from orjson import dumps

from upstream import Core, StdioIn, make_tools

PAUSE = 0.005
MESSAGE = {
    "jsonrpc": "2.0",
    "method": "notifications/message",
    "params": {"level": "info", "logger": "flood", "data": "a line of a log, as long as most are"},
}
LINE = dumps(MESSAGE) + b"\n"
FLOOD = {"name": "flood", "description": "Log.", "inputSchema": {"type": "object"}}


class FloodingCore(Core):
    def __init__(self):
        super().__init__(3)
        self.tools_tail = b',"result":' + dumps({"tools": [*make_tools(3), FLOOD]}) + b"}"
        self.rate = 0

    def answer(self, msg):
        if msg.get("method") == "tools/call" and msg["params"]["name"] == "flood":
            self.rate = msg["params"]["arguments"]["rate"]
        return super().answer(msg)


async def flood(core, out):
    """Bursts by the clock: one that comes late is made up for, as a program's own log would be."""
    loop = asyncio.get_running_loop()
    owed, last = 0.0, loop.time()
    while True:
        await asyncio.sleep(PAUSE)
        now = loop.time()
        owed, last = (owed + (now - last) * core.rate if core.rate else 0.0), now
        if owed >= 1:
            out.write(LINE * int(owed))
            owed -= int(owed)


async def main():
    loop = asyncio.get_running_loop()
    core, done = FloodingCore(), loop.create_future()
    proto = StdioIn(core, done)
    proto.out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout.buffer)
    await loop.connect_read_pipe(lambda: proto, sys.stdin.buffer)
    flooding = asyncio.ensure_future(flood(core, proto.out))
    await done
    flooding.cancel()


if __name__ == "__main__":
    uvloop.run(main())
