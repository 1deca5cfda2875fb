"""Starts stray processes as real servers leave them behind, then becomes the server.

    python -m tests.fakes.stray_processes --pids FILE --spawn KIND [...] -- COMMAND ...

Each KIND starts one process that sleeps, ignores SIGTERM and SIGHUP and adds a line ``KIND PID`` to
FILE. It imitates ``npx`` and the like, and knows nothing of MCP.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would double the time this takes to start
    from typing import NoReturn

KINDS = {
    "child": "stays in the session and holds the pipes of the server",
    "setsid": "leaves the session and holds the pipes of the server",
    "daemon": "leaves the session, the pipes and its parent",
    "bare": "a daemon that also drops its environment, so that no mark is left on it",
}
_SLEEPER = ("sleep", "600")


def spawn(kind: str, pids: int) -> None:
    """Start one process and wait until it runs."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        _become(kind, pids)
    os.close(writable)
    if kind in ("daemon", "bare"):
        os.waitpid(child, 0)
    os.read(readable, 1)  # ends when the last copy of the other end is closed, by exec
    os.close(readable)


def _become(kind: str, pids: int) -> NoReturn:
    """Become a process of this kind, in a fork, and sleep."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if kind != "child":
        os.setsid()
    if kind in ("daemon", "bare"):
        if os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
    os.write(pids, f"{kind} {os.getpid()}\n".encode())
    environment = {"PATH": os.defpath} if kind == "bare" else dict(os.environ)
    os.execvpe(_SLEEPER[0], _SLEEPER, environment)


def main(argv: list[str] | None = None) -> int:
    words = argparse.ArgumentParser(
        prog="stray_processes", description="Start strays, then a server."
    )
    words.add_argument("--pids", required=True, help="the file that is told who was started")
    words.add_argument("--spawn", action="append", choices=KINDS, default=[], help="start this")
    words.add_argument("command", nargs="+", help="what to become then")
    given = words.parse_args(argv)
    pids = os.open(given.pids, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for kind in given.spawn:
        spawn(kind, pids)
    os.execvp(given.command[0], given.command)


if __name__ == "__main__":
    sys.exit(main())
