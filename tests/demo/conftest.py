"""A client for the demo servers, as small as a client can be: JSON lines to a real process.

Every wait has a bound and every server that a test started must end by itself, with status 0 and
nothing on standard error, when its input ends.
"""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests import preloaded

BOUND = 30.0  # seconds; a wait this long has failed


class Peer:
    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self.closed = False
        self._last_id = 0
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._inbox.put(json.loads(line))
        self._inbox.put(None)

    def send_line(self, line: bytes) -> None:
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, message: Any) -> None:
        self.send_line(json.dumps(message).encode())

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params or {}})

    def ask(self, method: str, params: dict[str, Any] | None = None) -> int:
        """Send a request without waiting; the id it went with."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method}
        self.send(message if params is None else message | {"params": params})
        return self._last_id

    def receive(self) -> dict[str, Any]:
        message = self._inbox.get(timeout=BOUND)
        assert message is not None, "the server has ended"
        return message

    def receive_until(self, id: int) -> list[dict[str, Any]]:
        """Everything up to the answer with this id; the answer is the last."""
        messages = [self.receive()]
        while messages[-1].get("id") != id:
            messages.append(self.receive())
        return messages

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The next message, which must be the answer."""
        id = self.ask(method, params)
        answer = self.receive()
        assert answer.get("id") == id, answer
        return answer

    def result(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.request(method, params)["result"]

    def error(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.request(method, params)["error"]

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of a tool, once nothing came before it but notifications."""
        id = self.ask("tools/call", {"name": tool, "arguments": arguments})
        return self.receive_until(id)[-1]["result"]

    def told(self, tool: str, **arguments: Any) -> str:
        """The words of a tool that succeeded."""
        result = self.call(tool, **arguments)
        assert "isError" not in result, result
        return result["content"][0]["text"]

    def complaint(self, tool: str, **arguments: Any) -> str:
        """The words of a tool that did not."""
        result = self.call(tool, **arguments)
        assert result.get("isError") is True, result
        return result["content"][0]["text"]

    def end(self) -> tuple[int, str]:
        """Close the server's input and wait for it: exit status, and what it said on stderr."""
        self.closed = True
        self.process.stdin.close()
        with self.process.stderr as stderr:
            said = stderr.read().decode()
        status = self.process.wait(BOUND)
        self._reader.join(BOUND)
        self.process.stdout.close()
        return status, said


Start = Callable[..., Peer]


@pytest.fixture(autouse=True, scope="module")
def followed(traced):
    """These servers are only ever run as programs: coverage follows them there."""
    return traced


@contextmanager
def starting() -> Iterator[Start]:
    """What starts servers; when it is over they must all end well."""
    peers: list[Peer] = []

    def start_one(name: str = "", *args: str, program: str = "") -> Peer:
        if program:
            peers.append(Peer([sys.executable, "-c", program]))
        else:
            peers.append(Peer([*preloaded.command(), "-m", f"mcp_junction.demo.{name}", *args]))
        return peers[-1]

    yield start_one
    endings = []
    for peer in peers:
        watchdog = threading.Timer(BOUND, peer.process.kill)
        watchdog.start()
        if not peer.closed:
            endings.append(peer.end())
        watchdog.cancel()
    assert all(ending == (0, "") for ending in endings), endings


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a demo server by name, or any program by ``program=``."""
    with starting() as start_one:
        yield start_one


@pytest.fixture(scope="module")
def arithmetic(followed) -> Iterator[Peer]:
    """One for all questions to it: it remembers nothing, so each is answered as if it were new."""
    with starting() as start_one:
        yield start_one("arithmetic")


@pytest.fixture(scope="module")
def clock(followed) -> Iterator[Peer]:
    """One for all questions to it that are answered at once."""
    with starting() as start_one:
        yield start_one("clock")
