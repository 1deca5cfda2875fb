"""A server on stdio that speaks both eras, each request as it comes. Standard library only.

    python dual_server.py FILE [INSTRUCTIONS]

It writes a line into FILE when it starts. ``count`` counts its calls and says the era of each;
``ask`` asks the user something, in the way of the era that it is called in.
"""

import json
import sys
from typing import Any

NEWER = "2026-07-28"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
QUESTION = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("count", "ask")]

Json = dict[str, Any]


class Server:
    def __init__(self, instructions: str) -> None:
        self.about: Json = {"capabilities": {"tools": {}}}
        if instructions:
            self.about["instructions"] = instructions
        self.calls = 0
        self.waiting: Any = None

    def say(self, message: Json) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def take(self, message: Json) -> None:
        if "method" not in message:
            self.say({"id": self.waiting, "result": text(message.get("result"))})
        elif "id" in message:
            self.answer(message["id"], message["method"], message.get("params", {}))

    def answer(self, frame_id: Any, method: str, params: Json) -> None:
        is_newer = VERSION_KEY in params.get("_meta", {})
        ending = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if is_newer else {}
        if method == "server/discover":
            result = {"supportedVersions": [NEWER], **self.about}
        elif method == "initialize":
            info = {"name": "dual", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "serverInfo": info, **self.about}
        elif method == "tools/list":
            result = {"tools": TOOLS}
        elif method == "tools/call" and params["name"] == "count":
            self.calls += 1
            result = text([self.calls, "newer" if is_newer else "older"])
        elif method == "tools/call":
            if not is_newer:
                self.waiting = frame_id
                self.say({"id": "q", "method": "elicitation/create", "params": QUESTION})
                return
            if "inputResponses" not in params:
                asked = {"u": {"method": "elicitation/create", "params": QUESTION}}
                result = {"resultType": "input_required", "inputRequests": asked}
                self.say({"id": frame_id, "result": result})
                return
            result = text(params["inputResponses"]["u"])
        else:
            error = {"code": -32601, "message": "Method not found"}
            self.say({"id": frame_id, "error": error})
            return
        self.say({"id": frame_id, "result": {**result, **ending}})


def text(value: Any) -> Json:
    return {"content": [{"type": "text", "text": json.dumps(value)}]}


def main() -> None:
    with open(sys.argv[1], "a", encoding="utf-8") as starts:
        starts.write("start\n")
    server = Server(sys.argv[2] if len(sys.argv) > 2 else "")
    for line in sys.stdin:
        server.take(json.loads(line))


if __name__ == "__main__":
    main()
