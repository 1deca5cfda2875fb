"""Checkpoints: how far each chain had come, kept outside the store, so that a cut tail shows.

One small file per writer. A checkpoint holds the number and mac of the last row and is sealed with
the audit's key. A file has two slots that are written in turn, so that a power failure spoils only
the one that was being written. They are worth most on another machine: ``audit export
--checkpoints``.
"""

from __future__ import annotations

import errno
import hmac
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = "audit"
_SLOT_BYTES: Final = 512
"""Bytes for one checkpoint: within one sector of a disk."""
_CLOSE: Final = 1.0
_sync = getattr(os, "fdatasync", os.fsync)


class Checkpoint(msgspec.Struct, frozen=True):
    """Count and head of a chain at a moment."""

    writer: str
    seq: int
    head: str
    at: float
    seal: str = ""

    def sealed(self, key: bytes) -> Checkpoint:
        return msgspec.structs.replace(self, seal=self._seal(key))

    def is_genuine(self, key: bytes) -> bool:
        return hmac.compare_digest(self._seal(key), self.seal)

    def _seal(self, key: bytes) -> str:
        text = f"checkpoint/{self.writer}/{self.seq}/{self.head}/{self.at!r}"
        return hmac.digest(key, text.encode(), "sha256").hex()


class Checkpoints:
    """The checkpoints of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER

    def file_for(self, writer: str) -> CheckpointFile:
        """Return the file for a writer's checkpoints; it is created by the first write."""
        return CheckpointFile(self._path(writer))

    def all(self) -> list[Checkpoint]:
        """By writer. A file that cannot be read is a checkpoint that nothing equals."""
        return [_read(path) for path in sorted(self._folder.glob("*.checkpoint"))]

    def remove(self, writer: str) -> None:
        self._path(writer).unlink(missing_ok=True)

    def _path(self, writer: str) -> Path:
        return self._folder / f"{writer}.checkpoint"


class CheckpointFile:
    """The checkpoints of one writer. ``write`` blocks: it is for a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._slot = 0
        self._lock = threading.Lock()

    def write(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint durably: one write and one sync of the file. Raises OSError."""
        line = msgspec.json.encode(checkpoint).ljust(_SLOT_BYTES - 1) + b"\n"
        with self._lock:
            descriptor = self._ensure_open()
            if os.pwrite(descriptor, line, self._slot * _SLOT_BYTES) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _sync(descriptor)
            self._slot = 1 - self._slot

    def close(self) -> None:
        """Close the file, unless a write hangs."""
        if self._lock.acquire(timeout=_CLOSE):
            self._drop()
            self._lock.release()

    def _drop(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _ensure_open(self) -> int:
        """Return the open file; a new one when it was removed or replaced."""
        if self._descriptor is not None and _is_at(self._descriptor, self._path):
            return self._descriptor
        self._drop()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name of the file, too, is to outlast a power failure
        finally:
            os.close(folder)
        return self._descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there, ours = path.stat(), os.fstat(descriptor)
    except OSError:
        return False
    return (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)


def _read(path: Path) -> Checkpoint:
    """Read the newest checkpoint of a file; a slot that was not written to its end is skipped."""
    found = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        lines = []
    for line in lines:
        with suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=Checkpoint))
    return max(found, key=lambda point: point.seq, default=Checkpoint(path.stem, 0, "", 0.0))


def read_exported(path: Path) -> list[Checkpoint]:
    """Checkpoints as they were exported, one a line. Raises OSError, msgspec.MsgspecError."""
    lines = path.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Checkpoint) for line in lines if line.strip()]
