"""LineClient: starts a program and exchanges raw JSON-RPC lines with it over its pipes.

A thread reads; the test sends what it likes, valid or not, and waits with a bound. Everything
received is kept: answers by id (``1`` and ``"1"`` are two ids), other frames in order, lines that
are not JSON as ``garbage``, and lines with a CR inside as ``broken``. Not an MCP client: it never
answers anything by itself.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_junction.testing.history import Json

PATIENCE = 30.0
VERSION = "2025-11-25"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, the time of its arrival, and the length of its line."""

    frame: Json
    at: float
    size: int


class LineClient:
    """A running program, and the client's ends of its pipes."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stderr: Path | None = None,
        reads: bool = True,
    ) -> None:
        self.asked: dict[str, float] = {}
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        self.others: list[Json] = []
        self.garbage: list[bytes] = []
        self.broken: list[bytes] = []
        self._ids = itertools.count(1)
        self._news = threading.Condition()
        self._sending = threading.Lock()
        self._ended = False
        self._dropped = False
        with open(stderr or os.devnull, "ab") as errors:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=None if env is None else dict(env),
            )
        self._stop_reader, self._stop = os.pipe()
        self._begun: list[bytes] = []  # of a line that has not ended
        self._reader: threading.Thread | None = None
        if reads:
            self.start_reading()

    @property
    def pid(self) -> int:
        return self.process.pid

    # -- out

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        assert self.process.stdin is not None
        with self._sending:
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def request(self, method: str, params: Json | None = None, frame_id: Any = None) -> Any:
        """Send a request without waiting, and return its id."""
        if frame_id is None:
            frame_id = next(self._ids)
        frame = {"jsonrpc": "2.0", "id": frame_id, "method": method}
        self.asked[key(frame_id)] = time.monotonic()
        self.send(_line(frame if params is None else frame | {"params": params}))
        return frame_id

    def notify(self, method: str, params: Json | None = None) -> None:
        self.send(_line({"jsonrpc": "2.0", "method": method, "params": params or {}}))

    def call(self, tool: str, frame_id: Any = None, meta: Json | None = None, **what: Any) -> Any:
        """Call a tool without waiting, and return the id of the request."""
        params: Json = {"name": tool, "arguments": what}
        if meta is not None:
            params["_meta"] = meta
        return self.request("tools/call", params, frame_id)

    def cancel(self, frame_id: Any, reason: str = "no longer wanted") -> None:
        self.notify("notifications/cancelled", {"requestId": frame_id, "reason": reason})

    # -- in

    def answer(self, frame_id: Any, seconds: float = PATIENCE) -> Json:
        """Wait for the first answer to a request."""
        name = key(frame_id)
        self.wait(lambda: bool(self.answers[name]), seconds, f"an answer to {name}")
        return self.answers[name][0].frame

    def ask(self, method: str, params: Json | None = None, seconds: float = PATIENCE) -> Json:
        """Send a request and wait for its answer."""
        return self.answer(self.request(method, params), seconds)

    def result(self, tool: str, seconds: float = PATIENCE, **what: Any) -> Json:
        """Call a tool that must succeed, and return its result."""
        answer = self.answer(self.call(tool, **what), seconds)
        assert "result" in answer, answer
        found: Json = answer["result"]
        return found

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until a condition is true; it is checked after every line."""
        with self._news:
            if not self._news.wait_for(lambda: condition() or self._ended, seconds):
                raise TimeoutError(f"waited {seconds:g} s for {what}")
            if not condition():
                raise EOFError(f"the program ended; waited for {what}")

    def open(self, name: str = "line-client", capabilities: Json | None = None) -> Json:
        """Do the initialize handshake, and return its result."""
        info = {"name": name, "version": "0"}
        params = {
            "protocolVersion": VERSION,
            "capabilities": capabilities or {},
            "clientInfo": info,
        }
        answer = self.ask("initialize", params)
        self.notify("notifications/initialized")
        greeting: Json = answer["result"]
        return greeting

    def tools(self) -> list[str]:
        """List the names of the tools; this also waits until the servers are up."""
        listed = self.ask("tools/list", seconds=2 * PATIENCE)["result"]["tools"]
        return [tool["name"] for tool in listed]

    def start_reading(self) -> None:
        """Start or resume reading."""
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop_reading(self) -> None:
        """Stop reading: output stays in the pipe."""
        if self._reader is not None:
            os.write(self._stop, b".")
            self._reader.join(PATIENCE)
            os.read(self._stop_reader, 1)

    def _read(self) -> None:
        assert self.process.stdout is not None
        stdout = self.process.stdout.fileno()
        while stdout in select.select([stdout, self._stop_reader], [], [])[0]:
            data = os.read(stdout, _CHUNK)
            if not data:
                break
            at = time.monotonic()
            *lines, rest = data.split(b"\n")
            if lines:
                lines[0] = b"".join([*self._begun, lines[0]])
                self._begun = []
            self._begun.append(rest)
            with self._news:
                for line in lines:
                    self._take(line, at)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _take(self, line: bytes, at: float) -> None:
        if b"\r" in line:
            self.broken.append(line)
        try:
            frame = json.loads(line)
        except ValueError:
            frame = None
        if not isinstance(frame, dict):
            self.garbage.append(line)
        elif "id" in frame and "method" not in frame:
            self.answers[key(frame["id"])].append(Answer(frame, at, len(line)))
        else:
            self.others.append(frame)

    # -- the end

    def close_input(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

    def hang_up(self) -> None:
        """Close both pipes, as a client that dies."""
        self.stop_reading()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.close_input()

    def end(self, seconds: float = PATIENCE) -> int:
        """Close the input, wait for the program, and return its exit code."""
        self.close_input()
        return self.wait_ended(seconds)

    def wait_ended(self, seconds: float = PATIENCE) -> int:
        """Wait until the program ends by itself, and return its exit code."""
        code = self.process.wait(seconds)
        self._drop()
        return code

    def kill(self) -> None:
        """Kill the program."""
        self.process.kill()
        self.process.wait()
        self._drop()

    def _drop(self) -> None:
        if self._dropped:
            return
        if self._reader is not None:
            self._reader.join(PATIENCE)
        self.close_input()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for fd in (self._stop_reader, self._stop):
            os.close(fd)
        self._dropped = True


def key(frame_id: Any) -> str:
    """Return an id as a dict key: JSON tells 1 from "1"."""
    return json.dumps(frame_id)


def _line(frame: Json) -> bytes:
    return json.dumps(frame, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
