"""The rig of the fault tests: a config of ledger servers, and the real program in front of it.

Each rig marks every process its servers may start with an environment variable of its own. When a
test ends, nothing that carries the mark may be left: that is checked here, for every test. Where a
module is marked `preloaded`, the gateway is forked (`preloaded.py`): none there looks at its pid.
"""

import json
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import mcp_junction.testing
from mcp_junction.testing import processes
from mcp_junction.testing.client import LineClient
from mcp_junction.testing.history import Ledger

ROOM = Path(mcp_junction.testing.__file__).parent
PROGRAM = str(Path(sys.executable).with_name("mcp-junction"))
FIGURES = Path(".reports/faults.jsonl")
MARK = "FAULT_RIG"
KEY = "FAULT_RIG_SERVER"
AFTER_THE_END = 5.0  # seconds for what is ending anyway; how long it may take is a test's own claim


def python(module: str, *args: str) -> list[str]:
    """A program of the testing room, started the fast way."""
    return [sys.executable, "-I", "-S", str(ROOM / f"{module}.py"), *args]


class Rig:
    """One config, its ledgers, and the gateways that serve it."""

    def __init__(self, folder: Path, program: Sequence[str] = (PROGRAM,)) -> None:
        self.folder = folder
        self.program = program
        self.mark = uuid.uuid4().hex
        self.stderr = folder / "stderr"
        self.clients: list[LineClient] = []
        self.entries: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, Any] = {}

    def add(self, key: str = "led", *args: str, wrap: list[str] | None = None, **entry: Any) -> str:
        """A ledger server of this name, perhaps inside another command; its name."""
        argv = [*(wrap or []), *python("ledger", "--file", str(self.file(key)), *args)]
        env = {MARK: self.mark, KEY: key}
        self.entries[key] = {"command": argv[0], "args": argv[1:], "env": env} | entry
        return key

    def add_program(self, key: str, argv: list[str]) -> None:
        """Any other program as a server."""
        env = {MARK: self.mark, KEY: key}
        self.entries[key] = {"command": argv[0], "args": argv[1:], "env": env}

    def file(self, key: str) -> Path:
        return self.folder / f"ledger-{key}"

    def ledger(self, key: str = "led") -> Ledger:
        return Ledger(self.file(key))

    def config(self) -> Path:
        path = self.folder / "config.json"
        path.write_text(json.dumps({"mcpServers": self.entries, "junction": self.settings}))
        return path

    def start(self, *options: str, opened: bool = True, reads: bool = True) -> LineClient:
        """The real program, with a client in front; its servers are up when this returns."""
        argv = [*self.program, "--config", str(self.config()), *options]
        client = LineClient(argv, stderr=self.stderr, reads=reads)
        self.clients.append(client)
        if opened:
            client.open()
            client.tools()
        return client

    def processes(self, key: str | None = None) -> set[int]:
        """What lives of all servers and what they started, or of one."""
        found = set(processes.marked(MARK, self.mark))
        return found if key is None else found & set(processes.marked(KEY, key))

    def server_pid(self, key: str = "led") -> int:
        """The newest process of a ledger server."""
        return int(self.ledger(key).entries("start")[-1]["pid"])

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Signal a process of this rig, which may be gone already."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def tear_down(self) -> set[int]:
        """End what is left; which of the servers' processes outlived their gateways."""
        for client in self.clients:
            client.kill()
        try:
            processes.until(lambda: not self.processes(), AFTER_THE_END, "the servers to be gone")
        except TimeoutError:
            pass
        left = self.processes()
        for pid in left:
            self.kill(pid)
        return left


def warden_of(client: LineClient) -> int:
    """The warden process of a gateway."""
    for process in processes.below(client.pid):
        if b"warden_main" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            return process.pid
    raise LookupError("the gateway has no warden")


@pytest.fixture
def rig(tmp_path: Path, executable: list[str]) -> Iterator[Rig]:
    rig = Rig(tmp_path, executable)
    yield rig
    assert not rig.tear_down(), "processes of servers outlived their gateway"
    for path in tmp_path.glob("ledger-*"):  # those of a long run are large, and pytest keeps three
        path.unlink()
    shutil.rmtree(tmp_path / "work", ignore_errors=True)


Figures = Callable[..., None]


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Write down what was measured: to the test's output, and to a file of the whole run."""

    def write(**measured: Any) -> None:
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in measured.items()}
        line = json.dumps({"test": request.node.name, **rounded, "at": round(time.time())})
        print(line)
        path = request.config.rootpath / FIGURES
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    return write


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    rig = getattr(item, "funcargs", {}).get("rig")
    if report.failed and isinstance(rig, Rig) and rig.stderr.exists():
        tail = rig.stderr.read_bytes()[-4000:].decode("utf-8", "replace")
        report.sections.append(("stderr of the gateway", tail))
    return report
