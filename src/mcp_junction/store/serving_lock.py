"""ServingLock: lets at most one process serve from a SQLite file. Commands do not take it.

The lock is a file beside the database, locked with flock: the operating system releases it when the
process ends, however it ends. The content of the file only names the holder. PostgreSQL needs no
lock: its replicas learn of each other's changes.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from mcp_junction.errors import UsageError

SUFFIX: Final = ".serving"


class ServingProcess(msgspec.Struct, frozen=True):
    """The process that has the lock."""

    pid: int
    since: str
    """When it took the lock, for a message."""


class ServingLock:
    """The right to serve from one database file. Use it as a context manager."""

    def __init__(self, database: Path) -> None:
        self._database = database
        real = database.resolve()  # links to one file share its lock
        self._path = real.with_name(real.name + SUFFIX)
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock. Raises UsageError when another process has it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            words = f"{self._path} cannot be opened: {error.strerror}; it must be writable"
            raise UsageError(words) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            refusal = self._refusal(descriptor)
            os.close(descriptor)
            raise refusal from None
        me = ServingProcess(os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S %z"))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(me) + b"\n", 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.ftruncate(descriptor, 0)
            os.close(descriptor)  # the file stays: removing it could remove another process's lock

    def _refusal(self, descriptor: int) -> UsageError:
        try:
            holder = msgspec.json.decode(os.pread(descriptor, 1_000, 0), type=ServingProcess)
            who = f"the process {holder.pid}, since {holder.since}"
        except msgspec.MsgspecError:  # the holder has not written its name yet
            who = "another process"
        return UsageError(
            f"{self._database} is being served already, by {who};"
            " stop that one, or give this one another --data-dir or --store"
        )
