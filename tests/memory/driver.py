"""Clients of every front, in a process of their own, so that nothing of theirs is in the gateway's.

    python driver.py PORT KEY HANGING STDIO_FDS

Takes one job a line on stdin, as JSON (front, server, kind, times), does it with blocking sockets
and says "done", or what went wrong. HANGING is where the server says that a call hangs; STDIO_FDS
are the pipes of the stdio fronts: read and write of the older era's, then of the newer's.
"""

import http.client
import itertools
import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

SIZE = 256 * 1024
BOUND = 30.0
OLD, NEW = "2025-11-25", "2026-07-28"
CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": NEW,
    "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
    "io.modelcontextprotocol/clientInfo": {"name": "driver", "version": "1"},
}
HELLO = {
    "protocolVersion": OLD,
    "capabilities": CAPABILITIES,
    "clientInfo": {"name": "driver", "version": "1"},
}
ANSWER = {"action": "accept", "content": {"name": "Ann"}}
TOOL = {
    "answer": "blob", "error": "fail", "cancel": "hang", "timeout": "wait", "lost": "die",
    "question": "ask", "progress": "progress",
}  # fmt: skip

Message = dict[str, Any]
_ids = itertools.count(1)


class Front:
    """A client: ``call`` yields what comes back for one call, and ``cancel`` gives it up."""

    era = "old"

    def params(self, server: str, kind: str, **more: Any) -> Message:
        given: Message = {"name": f"{server}__{TOOL[kind]}", "arguments": {}, **more}
        if self.era == "new":
            given["_meta"] = dict(ENVELOPE)
        if kind == "progress":
            given.setdefault("_meta", {})["progressToken"] = f"token-{next(_ids)}"
        return given

    def call(self, params: Message) -> Iterator[Message]:
        raise NotImplementedError

    def cancel(self, params: Message) -> None:
        raise NotImplementedError

    def respond(self, question: Message) -> None:
        raise NotImplementedError

    def do(self, server: str, kind: str) -> None:
        params = self.params(server, kind)
        if kind == "cancel":
            self.cancel(params)
            return
        steps = asked = 0
        for message in self.call(params):
            if message.get("method") == "notifications/progress":
                steps += 1
            elif message.get("method") == "elicitation/create":
                asked += 1
                self.respond(message)
            else:
                self.check(server, kind, message, steps, asked)

    def check(self, server: str, kind: str, answer: Message, steps: int, asked: int) -> None:
        if kind in ("error", "timeout", "lost"):
            assert "error" in answer, answer
            return
        assert "result" in answer, answer
        result = answer["result"]
        if kind == "question" and self.era == "new":
            assert result["resultType"] == "input_required", result
            responses = dict.fromkeys(result["inputRequests"], ANSWER)
            again = {"inputResponses": responses, "requestState": result["requestState"]}
            (answer,) = self.call(self.params(server, kind, **again))
            assert "result" in answer, answer
            result = answer["result"]
        elif kind == "question":
            assert asked == 1
        words = result["content"][0]["text"]
        assert words == "asked" if kind == "question" else len(words) == SIZE, words[:100]
        assert kind != "progress" or steps


class HttpFront(Front):
    path = "/mcp"

    def __init__(self, port: int, key: str, hanging: socket.socket) -> None:
        self.port, self.hanging = port, hanging
        self.headers = {
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        self.kept = self.connect()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)

    def send(
        self, connection: http.client.HTTPConnection, body: Message, **more: str
    ) -> http.client.HTTPResponse:
        self.begin(connection, body, more)
        return connection.getresponse()

    def begin(
        self, connection: http.client.HTTPConnection, body: Message, more: dict[str, str]
    ) -> None:
        headers = {**self.headers, **{name.replace("_", "-"): more[name] for name in more}}
        connection.request("POST", self.path, json.dumps(body), headers)

    def said(self, method: str, params: Message) -> tuple[Message, dict[str, str]]:
        body = {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": params}
        return body, {}

    def call(self, params: Message) -> Iterator[Message]:
        body, headers = self.said("tools/call", params)
        response = self.send(self.kept, body, **headers)
        if not response.getheader("content-type", "").startswith("text/event-stream"):
            yield json.loads(response.read())
            return
        while line := response.readline():
            if line.startswith(b"data:") and line[5:].strip():
                yield json.loads(line[5:])

    def begin_hanging(self, params: Message) -> tuple[http.client.HTTPConnection, Message]:
        connection = self.connect()
        body, headers = self.said("tools/call", params)
        self.begin(connection, body, headers)
        self.hanging.recv(1)
        return connection, body

    def cancel(self, params: Message) -> None:
        self.begin_hanging(params)[0].close()


class OldHttp(HttpFront):
    def __init__(self, port: int, key: str, hanging: socket.socket) -> None:
        super().__init__(port, key, hanging)
        body, _ = self.said("initialize", HELLO)
        response = self.send(self.kept, body)
        self.headers["mcp-session-id"] = response.getheader("mcp-session-id") or ""
        self.headers["mcp-protocol-version"] = OLD
        response.read()
        self.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def tell(self, body: Message) -> None:
        connection = self.connect()
        response = self.send(connection, body)
        assert response.status == 202, response.read()
        connection.close()

    def respond(self, question: Message) -> None:
        self.tell({"jsonrpc": "2.0", "id": question["id"], "result": ANSWER})

    def cancel(self, params: Message) -> None:
        connection, body = self.begin_hanging(params)
        gone = {"requestId": body["id"], "reason": "enough"}
        self.tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gone})
        connection.getresponse().read()
        connection.close()


class NewHttp(HttpFront):
    era = "new"

    def said(self, method: str, params: Message) -> tuple[Message, dict[str, str]]:
        body, _ = super().said(method, params)
        named = {"mcp_method": method, "mcp_name": params["name"]}
        return body, {"mcp_protocol_version": NEW, **named}


class Rest(HttpFront):
    path = "/api/v1/tools/call"

    def said(self, method: str, params: Message) -> tuple[Message, dict[str, str]]:
        server, _, tool = params["name"].partition("__")
        return {"name": tool, "server_id": server, "arguments": {}}, {}

    def check(self, server: str, kind: str, answer: Message, steps: int, asked: int) -> None:
        if kind in ("error", "timeout", "lost"):
            assert "code" in str(answer), answer
        elif kind == "question":  # there is nobody to ask
            assert "metadata" in answer or "code" in str(answer), answer
        else:
            assert len(answer["content"][0]["text"]) == SIZE, str(answer)[:300]


class Pipe(Front):
    def __init__(self, era: str, reads: int, writes: int, hanging: socket.socket) -> None:
        self.era, self.hanging = era, hanging
        self.output, self.input = os.fdopen(writes, "wb", 0), os.fdopen(reads, "rb")
        if era == "old":
            self.ask("initialize", HELLO)
            self.read()
            self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, message: Message) -> None:
        self.output.write(json.dumps(message).encode() + b"\n")

    def read(self) -> Message:
        found: Message = json.loads(self.input.readline())
        return found

    def ask(self, method: str, params: Message) -> int:
        frame_id = next(_ids)
        self.write({"jsonrpc": "2.0", "id": frame_id, "method": method, "params": params})
        return frame_id

    def call(self, params: Message) -> Iterator[Message]:
        frame_id = self.ask("tools/call", params)
        while True:
            message = self.read()
            if message.get("id") == frame_id or "method" in message:
                yield message
            if message.get("id") == frame_id and "method" not in message:
                return

    def respond(self, question: Message) -> None:
        self.write({"jsonrpc": "2.0", "id": question["id"], "result": ANSWER})

    def cancel(self, params: Message) -> None:
        frame_id = self.ask("tools/call", params)
        self.hanging.recv(1)
        gone = {"requestId": frame_id, "reason": "enough"}
        self.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gone})


def main(port: int, key: str, hanging: str, fds: list[int]) -> None:
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(hanging)
    told.settimeout(BOUND)
    makers = {
        "http-old": lambda: OldHttp(port, key, told),
        "http-new": lambda: NewHttp(port, key, told),
        "rest": lambda: Rest(port, key, told),
        "stdio-old": lambda: Pipe("old", *fds[:2], told),
        "stdio-new": lambda: Pipe("new", *fds[2:], told),
    }
    fronts: dict[str, Front] = {}
    for line in sys.stdin:
        job = json.loads(line)
        try:
            front = fronts.get(job["front"])
            if front is None:
                front = fronts[job["front"]] = makers[job["front"]]()
            for _ in range(job["times"]):
                front.do(job["server"], job["kind"])
            print("done", flush=True)
        except Exception as failure:  # noqa: BLE001 - the test says it
            if not job["front"].startswith("stdio"):
                fronts.pop(job["front"], None)  # what still comes on its connection is no answer
            print(f"{type(failure).__name__}: {failure}"[:500].replace("\n", " "), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
