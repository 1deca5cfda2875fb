"""The rig of the fault tests over HTTP: ledger servers of every kind, and the service in front.

It is the rig of `plugin_faults.py` with remote servers and `mcp-junction serve`. Remote servers are
no children of the gateway: the rig ends them itself.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.plugin_faults import PROGRAM, Rig

from mcp_junction.testing import processes
from mcp_junction.testing.processes import until

LISTENS = re.compile(rb"listening on http://\S*?:(\d+)/mcp")
STARTS_WITHIN = 30.0
KINDS = ("stdio", "http", "sse")


class Remote:
    """A ledger server over HTTP; it can be ended and started again on its port."""

    def __init__(self, file: Path, log: Path, args: tuple[str, ...]) -> None:
        self.file = file
        self.log = log
        self.args = args
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "tests.fakes.http_ledger", "--file", str(self.file)]
        argv += ["--port", str(self.port), *self.args]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out)
        self.port = listens(self.log, self.process)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Gateway:
    """A running `mcp-junction serve`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class HttpRig(Rig):
    """One config with servers of every kind, and the services in front of it."""

    def __init__(self, folder: Path, program: Sequence[str] = (PROGRAM,)) -> None:
        super().__init__(folder, program)
        self.remotes: dict[str, Remote] = {}
        self.gateways: list[Gateway] = []

    def add_remote(
        self, key: str = "led", *args: str, kind: str = "http", port: int = 0, **entry: Any
    ) -> Remote:
        """A ledger server over HTTP, perhaps reached by way of another port."""
        remote = Remote(self.file(key), self.folder / f"remote-{key}", args)
        self.remotes[key] = remote
        path = "sse" if kind == "sse" else "mcp"
        url = f"http://127.0.0.1:{port or remote.port}/{path}"
        self.entries[key] = {"type": kind, "url": url} | entry
        return remote

    def add_any(self, kind: str, key: str = "led", *args: str, **entry: Any) -> None:
        """A ledger server of some kind."""
        if kind == "stdio":
            self.add(key, *args, **entry)
        else:
            self.add_remote(key, *args, kind=kind, **entry)

    def serve(self, *options: str) -> Gateway:
        """The real service on a free port; its servers are up when `/readyz` says so."""
        log = self.folder / f"stderr-{len(self.gateways)}"
        self.stderr = log
        argv = [*self.program, "serve", "--config", str(self.config()), "--port", "0"]
        argv += ["--data-dir", str(self.folder / "data"), *options]
        with log.open("wb") as err:
            # Its model comes at a moment of its own, and many tests here measure memory.
            env = {**os.environ, "JUNCTION_CLASSIFIER": "off"}
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=err, env=env)
        self.gateways.append(gateway := Gateway(process, 0))
        gateway.port = listens(log, process)
        return gateway

    def tear_down(self) -> set[int]:
        for gateway in self.gateways:
            gateway.kill()
        for remote in self.remotes.values():
            remote.kill()
        return super().tear_down()


def listens(log: Path, process: subprocess.Popen[bytes]) -> int:
    """Wait until a program has said where it listens; the port."""

    def said() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        return LISTENS.search(log.read_bytes()) is not None

    until(said, STARTS_WITHIN, "a program to listen")
    match = LISTENS.search(log.read_bytes())
    assert match is not None
    return int(match[1])


@pytest.fixture
def http_rig(tmp_path: Path, executable: list[str]) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path, executable)
    yield rig
    for remote in rig.remotes.values():  # what was stopped can be ended only by a signal
        if remote.process is not None:
            remote.signal(signal.SIGCONT)
    assert not rig.tear_down(), "processes of servers outlived their gateway"
    for path in tmp_path.glob("ledger-*"):
        path.unlink()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    rig = getattr(item, "funcargs", {}).get("http_rig")
    if report.failed and isinstance(rig, HttpRig) and rig.stderr.exists():
        tail = rig.stderr.read_bytes()[-4000:].decode("utf-8", "replace")
        report.sections.append(("stderr of the gateway", tail))
    return report


__all__ = ["Gateway", "HttpRig", "Remote", "processes"]
