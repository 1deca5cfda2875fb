"""A pytest plugin that keeps the tests on this machine: a test that connects elsewhere fails.

Python tells it what this process does by its sockets, plain or of asyncio, whoever catches the
error. Where the system lets it (`network_watch.py`), it also sees what libraries in C do, and every
program that a test starts.
"""

import errno
import ipaddress
import json
import os
import socket
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests import network_watch

ELSEWHERE: list[str] = []
"""Where the running test wanted to connect to."""
_EVENTS = {"socket.connect", "socket.sendto", "socket.sendmsg"}


def _is_here(made: socket.socket, address: object) -> bool:
    if made.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
        return True
    host = str(address[0]).partition("%")[0].removeprefix("::ffff:")
    try:
        return host == "" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if event in _EVENTS and not _is_here(*args[:2]):
        ELSEWHERE.append(f"{event}: {args[1]}")
        raise PermissionError(errno.EACCES, f"tests do not leave this machine: {args[1]}")


class WatchLog:
    """What the watcher of all processes has told, as far as it concerns this one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size

    def take(self) -> list[str]:
        """Return what is new of this process and what it started, and of those without a parent."""
        if self._path.stat().st_size == self._read:
            return []
        with self._path.open() as log:
            log.seek(self._read)
            lines = [json.loads(line) for line in log]
            self._read = log.tell()
        session = int(os.environ["TESTS_NETWORK_SESSION"])
        return [
            f"{line['by']}: {line['to']}"
            for line in lines
            if os.getpid() in line["pids"] or session not in line["pids"]
        ]


class Watched:
    """Whether all processes are watched, and the log of that."""

    log: WatchLog | None = None


def check() -> None:
    """Fail the running test if it, or a program that it started, wanted to leave the machine."""
    if Watched.log is not None:
        ELSEWHERE.extend(Watched.log.take())
    if ELSEWHERE:
        wanted = ", ".join(ELSEWHERE)
        ELSEWHERE.clear()
        pytest.fail(f"the test left this machine: {wanted}", pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    if network_watch.LOG not in os.environ:  # else a process that we come from has done it
        made = tempfile.NamedTemporaryFile(prefix="jct-network-", delete=False)  # noqa: SIM115
        config.add_cleanup(lambda: os.unlink(made.name))
        os.environ["TESTS_NETWORK_SESSION"] = str(os.getpid())
        os.environ[network_watch.LOG] = made.name if network_watch.install(Path(made.name)) else ""
    if os.environ[network_watch.LOG]:
        Watched.log = WatchLog(Path(os.environ[network_watch.LOG]))
    sys.addaudithook(_watch)


def pytest_report_header() -> str:
    who = "all processes" if Watched.log is not None else "this process alone: see network_watch.py"
    return f"network: no connection off loopback, of {who}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    told = yield
    check()
    return told
