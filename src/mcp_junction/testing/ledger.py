"""The ledger server: an MCP server on stdio that records each call in a file before it answers.

    python -m mcp_junction.testing.ledger --file FILE [--lines] [--fault FAULT] [...]

Each call is appended to FILE, one JSON object a line, by one ``write``, before anything is
answered: whatever happens to this process or to the gateway then, the file shows what ran.
Cancellations are recorded too, and with ``--lines`` every line of input.

Tools: ``record`` runs once per call and may not be repeated; ``say`` writes the caller's own bytes
to stdout; ``echo`` only reads. A call's arguments choose its fault: see ``FAULTS``.

On the standard library alone, and one file, so that ``python -I -S`` can start it at once.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would double the time this takes to start
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

CRASH_CODE = 70
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
FAULTS = {
    "before_execute": "exit before the call is written down",
    "after_execute_before_answer": "exit after it was written down, without an answer",
    "half_answer": "write half of the answer, then exit",
    "hang": "never answer",
    "mute": "close stdout and live on, without an answer",
    "flood": "write `text` to stdout without end, and never answer",
    "huge": "answer with `amount` bytes in one line, the id at its end if `id_last`",
    "deaf": "answer, and read no more input from then on",
    "stderr": "write `amount` bytes to stderr, then answer",
    "noise": "write `amount` lines that are no frames, then answer",
    "crlf": "end the answer with CR LF",
    "bom": "put a byte order mark before the answer",
    "split": "write the answer byte by byte",
    "join": "hold the answer back and write it in one piece with the next one",
    "pings": "send `amount` pings, then answer, and read no more input",
    "progress": "send `amount` progress notifications, then answer",
    "logs": "send `amount` log messages of `size` bytes, then answer",
}
_NOISE = (
    b"Debugger listening on ws://127.0.0.1:9229",
    b"{not json",
    b'{"jsonrpc":"2.0"}',
    b'{"level":"info","id":1,"msg":"started"}',
    b"[1,2,3]",
    b"null",
    b"\xff\xfe\x00 \xc3\x28",
    b"",
    b"\t",
)
_PADDING = "ä€𝄞 "
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 20


class LedgerFile:
    """The file of a ledger server."""

    def __init__(self, path: str, *, fsync: bool = False) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._fsync = fsync

    def record(self, **entry: Any) -> None:
        """Append an entry."""
        os.write(self._file, json.dumps({**entry, "at": time.monotonic()}).encode() + b"\n")
        if self._fsync:
            os.fsync(self._file)

    def record_run(self, frame_id: Any, tool: str, nonce: Any, fault: str | None) -> None:
        """Record that a tool runs; exit before or after it if the fault says so."""
        if fault == "before_execute":
            os._exit(CRASH_CODE)
        if tool != "echo":
            self.record(event="run", tool=tool, nonce=nonce, id=frame_id, pid=os.getpid())
        if fault == "after_execute_before_answer":
            os._exit(CRASH_CODE)


class LedgerServer:
    """Answers requests on stdin and stdout."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.ledger = LedgerFile(given.file, fsync=given.fsync)
        self.due: list[tuple[float, int, bytes]] = []  # answers that are delayed
        self.order = 0
        self.cancelled: set[int] = set()
        self.ids: dict[str, int] = {}  # id as JSON -> order of the delayed answer
        self.held = b""
        self.reads = True
        self.fresh = given.bom
        self.ledger.record(event="start", pid=os.getpid(), argv=sys.argv)

    # -- the pipes

    def run(self) -> None:
        begun: list[bytes] = []  # of a line that has not ended
        while True:
            self.send_due_answers()
            wait = max(0.0, self.due[0][0] - time.monotonic()) if self.due else None
            ready = select.select([0] if self.reads else [], [], [], wait)[0]
            if not ready:
                continue
            data = os.read(0, 1 << 20)
            if not data:
                return
            *lines, rest = data.split(b"\n")
            if lines:
                lines[0] = b"".join([*begun, lines[0]])
                begun = []
            begun.append(rest)
            for line in lines:
                self.take(line)

    def emit(self, data: bytes) -> None:
        if self.fresh:
            data, self.fresh = _BOM + data, False
        if self.held:
            data, self.held = self.held + data, b""
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    def emit_all(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.emit(line)

    def send_due_answers(self) -> None:
        while self.due and self.due[0][0] <= time.monotonic():
            _, order, line = heapq.heappop(self.due)
            if order in self.cancelled:
                self.cancelled.discard(order)
            else:
                self.emit(line)

    # -- frames

    def take(self, line: bytes) -> None:
        if self.given.lines:
            self.ledger.record(event="line", size=len(line), text=line[:4096].decode("latin-1"))
        try:
            frame = json.loads(line)
        except ValueError:
            self.ledger.record(event="garbage", text=line[:4096].decode("latin-1"))
            return
        method, params = frame.get("method"), frame.get("params") or {}
        if "id" not in frame:
            self.handle_notification(method, params)
        elif method == "tools/call":
            self.call_tool(frame["id"], params)
        elif method is not None:
            self.emit(encode_line({"id": frame["id"], **answer_request(method, params)}))

    def handle_notification(self, method: str | None, params: dict[str, Any]) -> None:
        if method != "notifications/cancelled":
            self.ledger.record(event="notification", method=method)
            return
        frame_id = params.get("requestId")
        self.ledger.record(event="cancel", id=frame_id, reason=params.get("reason"))
        if not self.given.ignore_cancel:
            order = self.ids.get(json.dumps(frame_id))
            if order is not None:
                self.cancelled.add(order)

    # -- calls

    def call_tool(self, frame_id: Any, params: dict[str, Any]) -> None:
        arguments = params.get("arguments") or {}
        tool, fault = params.get("name"), arguments.get("fault") or self.given.fault
        self.ledger.record_run(frame_id, str(tool), arguments.get("nonce"), fault)
        token = (params.get("_meta") or {}).get("progressToken")
        if tool == "say":
            self.emit(verbatim(arguments, frame_id, token))
            if not arguments.get("answer"):
                return
        self.end_call(frame_id, token, fault, arguments)

    def end_call(
        self, frame_id: Any, token: Any, fault: str | None, arguments: dict[str, Any]
    ) -> None:
        if fault in PREFACES:
            PREFACES[fault](self, arguments, token)
        if fault == "huge":
            send_huge(self, frame_id, arguments)
        elif fault == "mute":
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        elif fault != "hang":
            size = 0 if fault == "logs" else arguments.get("size", 0)
            line = answer_line(frame_id, arguments, size)
            if fault in WRITERS:
                WRITERS[fault](self, line)
            else:
                self.answer(frame_id, line, arguments.get("delay_ms", 0) / 1000)
        self.reads = self.reads and fault not in ("deaf", "pings")

    def answer(self, frame_id: Any, line: bytes, delay: float) -> None:
        if delay <= 0:
            self.emit(line)
            return
        self.order += 1
        self.ids[json.dumps(frame_id)] = self.order
        heapq.heappush(self.due, (time.monotonic() + delay, self.order, line))


# -- faults before an answer


def flood_stderr(_: LedgerServer, arguments: dict[str, Any], _token: Any) -> None:
    view = memoryview(b"e" * arguments.get("amount", 1) + b"\n")
    while view:
        view = view[os.write(2, view) :]


def make_noise(server: LedgerServer, arguments: dict[str, Any], _token: Any) -> None:
    for number in range(arguments.get("amount", 1)):
        server.emit(_NOISE[number % len(_NOISE)] + b"\n")


def flood(server: LedgerServer, arguments: dict[str, Any], _token: Any) -> None:
    text = str(arguments.get("text", "x\n")).encode()
    block = text * (_CHUNK // len(text))
    while True:
        server.emit(block)


def send_pings(server: LedgerServer, arguments: dict[str, Any], _token: Any) -> None:
    for number in range(arguments.get("amount", 1)):
        server.emit(b'{"jsonrpc":"2.0","id":"ping-%d","method":"ping"}\n' % number)


def send_huge(server: LedgerServer, frame_id: Any, arguments: dict[str, Any]) -> None:
    """Send one long line in chunks, so that a gigabyte needs no gigabyte of memory."""
    named = b'"id":%b' % json.dumps(frame_id).encode()
    head = b'{"result":{"structuredContent":{"id":1},"content":[{"type":"text","text":"'
    tail = b'"}]},"jsonrpc":"2.0",' + named + b"}\n"
    if not arguments.get("id_last"):
        head, tail = b"{" + named + b"," + head[1:], b'"}]},"jsonrpc":"2.0"}\n'
    missing = arguments.get("amount", 0) - len(head) - len(tail) + 1
    server.emit(head)
    while missing > 0:
        server.emit(b"x" * min(missing, _CHUNK))
        missing -= _CHUNK
    server.emit(tail)


PREFACES: dict[str, Callable[[LedgerServer, dict[str, Any], Any], None]] = {
    "stderr": flood_stderr,
    "noise": make_noise,
    "flood": flood,
    "pings": send_pings,
    "progress": lambda server, arguments, token: server.emit_all(progress_lines(arguments, token)),
    "logs": lambda server, arguments, _token: server.emit_all(log_lines(arguments)),
}


# -- faults in how an answer is written


def half(server: LedgerServer, line: bytes) -> None:
    server.emit(line[: len(line) // 2])
    os._exit(CRASH_CODE)


def byte_by_byte(server: LedgerServer, line: bytes) -> None:
    for index in range(len(line)):
        server.emit(line[index : index + 1])


def hold_back(server: LedgerServer, line: bytes) -> None:
    server.held += line


WRITERS: dict[str, Callable[[LedgerServer, bytes], None]] = {
    "half_answer": half,
    "split": byte_by_byte,
    "join": hold_back,
    "crlf": lambda server, line: server.emit(line[:-1] + b"\r\n"),
    "bom": lambda server, line: server.emit(_BOM + line),
}


# -- frames, also of the ledger server over HTTP


def answer_request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Answer any request but a call."""
    if method == "initialize":
        wanted = params.get("protocolVersion")
        return {
            "result": {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[-1],
                "capabilities": {"tools": {"listChanged": True}, "logging": {}},
                "serverInfo": {"name": "ledger", "version": "1"},
            }
        }
    if method == "tools/list":
        return {"result": {"tools": TOOLS}}
    if method in ("ping", "logging/setLevel"):
        return {"result": {}}
    return {"error": {"code": -32601, "message": f"no method {method}"}}


def progress_lines(arguments: dict[str, Any], token: Any) -> Iterator[bytes]:
    """Make the progress notifications that a call asks for, if its client wants any."""
    for number in range(arguments.get("amount", 1) if token is not None else 0):
        progress = {"progressToken": token, "progress": number + 1}
        params = progress | {"message": arguments.get("nonce")}
        yield encode_line({"method": "notifications/progress", "params": params})


def log_lines(arguments: dict[str, Any]) -> Iterator[bytes]:
    """Make the log messages that a call asks for."""
    params = {"level": "warning", "data": "l" * arguments.get("size", 0)}
    for _ in range(arguments.get("amount", 1)):
        yield encode_line({"method": "notifications/message", "params": params})


def verbatim(arguments: dict[str, Any], frame_id: Any, token: Any) -> bytes:
    """Return the bytes that a caller chose, with @ID@ and @TOKEN@ replaced."""
    if "hex" in arguments:
        data = bytes.fromhex(arguments["hex"])
    else:
        data = str(arguments.get("text", "")).encode("utf-8", "surrogatepass")
    data = data.replace(b"@ID@", json.dumps(frame_id).encode())
    return data.replace(b"@TOKEN@", json.dumps(token).encode())


def answer_line(frame_id: Any, arguments: dict[str, Any], size: int) -> bytes:
    """Make an answer with the nonce, padded so that the line is ``size`` bytes long."""
    text = {"type": "text", "text": str(arguments.get("nonce"))}
    result = {"content": [text], "structuredContent": {"nonce": arguments.get("nonce")}}
    if arguments.get("wide"):
        text["text"] += _PADDING
    line = encode_line({"id": frame_id, "result": result})
    missing = size - (len(line) - 1)
    if missing > 0:
        text["text"] += "x" * missing
        line = encode_line({"id": frame_id, "result": result})
    return line


def encode_line(frame: dict[str, Any]) -> bytes:
    """Encode a frame as one line."""
    return json.dumps({"jsonrpc": "2.0", **frame}, ensure_ascii=False).encode() + b"\n"


_ARGUMENTS = {
    "nonce": {"type": "string"},
    "delay_ms": {"type": "integer"},
    "size": {"type": "integer"},
    "amount": {"type": "integer"},
    "fault": {"type": "string", "enum": list(FAULTS)},
}
TOOLS = [
    {
        "name": name,
        "description": words,
        "inputSchema": {"type": "object", "properties": _ARGUMENTS},
        "annotations": {"readOnlyHint": only_reads, "idempotentHint": only_reads},
    }
    for name, words, only_reads in (
        ("record", "Write a nonce down, once per call.", False),
        ("say", "Write text, as it is, to stdout.", False),
        ("echo", "Answer with the nonce.", True),
    )
]


def main(argv: list[str] | None = None) -> int:
    words = argparse.ArgumentParser(prog="ledger", description="An MCP server that keeps a ledger.")
    words.add_argument("--file", required=True, help="the ledger, appended to")
    words.add_argument("--fsync", action="store_true", help="survive a crash of the machine, too")
    words.add_argument("--lines", action="store_true", help="write down every line that comes in")
    words.add_argument("--fault", choices=FAULTS, help="what every call suffers")
    words.add_argument("--bom", action="store_true", help="begin stdout with a byte order mark")
    words.add_argument("--ignore-cancel", action="store_true", help="answer even what is cancelled")
    LedgerServer(words.parse_args(argv)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
