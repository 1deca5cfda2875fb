"""The serving lock: lets at most one process serve from a SQLite file. Commands do not take it.

The lock is a file beside the database, locked with flock: the operating system releases it when the
process ends, however it ends. The content of the file only names the holder. PostgreSQL needs no
lock: its replicas learn of each other's changes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from mcp_junction.errors import UsageError

SUFFIX: Final = ".serving"


class ServingProcess(msgspec.Struct, frozen=True):
    """The process that has the lock."""

    pid: int
    since: str
    """When it took the lock, for a message."""


@contextmanager
def hold_serving_lock(database: Path) -> Iterator[None]:
    """Hold the right to serve from a file. Raises UsageError when another process has it."""
    real = database.resolve()  # links to one file share its lock
    path = real.with_name(real.name + SUFFIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        words = f"{path} cannot be opened: {error.strerror}; it must be writable"
        raise UsageError(words) from None
    try:
        _lock(descriptor, database)
        me = ServingProcess(os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S %z"))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(me) + b"\n", 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)  # the file stays: removing it could remove another process's lock


def _lock(descriptor: int, database: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UsageError(
            f"{database} is being served already, by {_name_holder(descriptor)};"
            " stop that one, or give this one another --data-dir or --store"
        ) from None


def _name_holder(descriptor: int) -> str:
    try:
        holder = msgspec.json.decode(os.pread(descriptor, 1_000, 0), type=ServingProcess)
    except msgspec.MsgspecError:  # the holder has not written its name yet
        return "another process"
    return f"the process {holder.pid}, since {holder.since}"
