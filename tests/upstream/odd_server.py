"""A server over stdio with bad manners, for the opening: `odd_server.py MANNER`.

exits     on anything before initialize
silent    never answers what it does not know
slow      of both eras, locked by what it reads first; starts to read after 4 s
denies    knows no method at all
refuses   knows no handshake, and first says that it does not know our version either
"""

import json
import sys
import time

VERSION = "2026-07-28"
TOOLS = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "odd"},
}
DISCOVERY = {"supportedVersions": [VERSION], "capabilities": {"tools": {}}}


def say(frame_id: object, **members: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": frame_id, **members}), flush=True)


def unsupported() -> dict[str, object]:
    return {"code": -32022, "message": "Unsupported", "data": {"supported": [VERSION]}}


class Odd:
    def __init__(self, manner: str) -> None:
        self.manner = manner
        self.opened = ""
        self.refusals = 0

    def asked(self, frame_id: object, method: str) -> None:
        if self.manner == "denies":
            say(frame_id, error={"code": -32601, "message": "no"})
        elif method == "tools/list":
            say(frame_id, result=TOOLS)
        elif method == "initialize":
            self.initialize(frame_id)
        elif method == "server/discover" and self.manner in ("slow", "refuses"):
            self.discover(frame_id)
        elif self.manner == "exits":
            sys.exit("what is this?")

    def initialize(self, frame_id: object) -> None:
        if self.manner == "refuses" or self.opened == "stateless":
            say(frame_id, error=unsupported())
        else:
            self.opened = "handshake"
            say(frame_id, result=GREETING)

    def discover(self, frame_id: object) -> None:
        if self.manner == "refuses" and not self.refusals:
            self.refusals += 1
            say(frame_id, error=unsupported())
        else:
            self.opened = self.opened or "stateless"
            say(frame_id, result=DISCOVERY)


def main(manner: str) -> None:
    if manner == "slow":
        time.sleep(4)
    odd = Odd(manner)
    for line in sys.stdin:
        frame = json.loads(line)
        if "id" in frame:
            odd.asked(frame["id"], frame["method"])


main(sys.argv[1])
