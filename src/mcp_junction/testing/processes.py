"""Reads the process tree, memory and descriptors from /proc. Linux only.

Processes are found by an environment variable that a test gave their server: their children inherit
it, whichever session or parent they move to. Nothing here sends a signal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_KIB: Final = 1024
_GONE = ("Z", "X")
_PAUSE: Final = 0.005


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table."""

    pid: int
    name: str
    state: str
    parent: int
    session: int

    @property
    def is_alive(self) -> bool:
        return self.state not in _GONE


def until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait for a condition; return how long it took. Raises TimeoutError."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(_PAUSE)
    return time.monotonic() - began


def table() -> dict[int, Process]:
    """Read all visible processes, zombies included."""
    found = {}
    for name in os.listdir(_PROC):
        if name.isdigit() and (process := look(int(name))) is not None:
            found[process.pid] = process
    return found


def look(pid: int) -> Process | None:
    """Read one process; None when there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    return Process(pid, head.partition("(")[2], fields[0], int(fields[1]), int(fields[3]))


def is_alive(pid: int) -> bool:
    process = look(pid)
    return process is not None and process.is_alive


def below(root: int) -> list[Process]:
    """Return all descendants of a process, zombies included."""
    everyone = table()
    found: list[Process] = []
    todo = [root]
    while todo:
        parent = todo.pop()
        children = [process for process in everyone.values() if process.parent == parent]
        found += children
        todo += [child.pid for child in children]
    return found


def zombies(root: int) -> list[Process]:
    """Return descendants that have ended and were not waited for."""
    return [process for process in below(root) if not process.is_alive]


def marked(name: str, value: str) -> dict[int, Process]:
    """Return all living processes whose environment has ``name=value``."""
    text = f"{name}={value}".encode()
    return {
        pid: process for pid, process in table().items() if process.is_alive and _has(pid, text)
    }


def _has(pid: int, text: bytes) -> bool:
    try:
        return text in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def descriptors(pid: int) -> dict[int, str]:
    """Return the open file descriptors of a process, and their targets."""
    found = {}
    for name in os.listdir(_PROC / str(pid) / "fd"):
        try:
            found[int(name)] = os.readlink(_PROC / str(pid) / "fd" / name)
        except OSError:
            continue  # closed meanwhile
    return found


def memory(pid: int) -> int:
    """Return the resident memory in bytes."""
    return _status(pid, "VmRSS")


def peak_memory(pid: int) -> int:
    """Return the peak of resident memory, since ``forget_peak``, in bytes."""
    return _status(pid, "VmHWM")


def forget_peak(pid: int) -> None:
    """Reset the peak of resident memory."""
    (_PROC / str(pid) / "clear_refs").write_text("5")


def _status(pid: int, field: str) -> int:
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * _KIB
    return 0
