"""Checkpoints: how far each chain had come, kept outside the store, so that a cut tail shows.

One small file per writer, replaced whole. Each holds the number and mac of the last row and is
sealed with the audit's key. They are worth most on another machine: ``audit export --checkpoints``.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = "audit"


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

    def write(self, checkpoint: Checkpoint) -> None:
        """Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(checkpoint.writer)
        draft = path.with_suffix(".tmp")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(checkpoint) + b"\n")
        draft.replace(path)

    def all(self) -> list[Checkpoint]:
        """By writer. A file that cannot be read is a checkpoint that nothing equals."""
        return [_read(path) for path in sorted(self._folder.glob("*.checkpoint"))]

    def remove(self, writer: str) -> None:
        self._path(writer).unlink(missing_ok=True)

    def _path(self, writer: str) -> Path:
        return self._folder / f"{writer}.checkpoint"


def _read(path: Path) -> Checkpoint:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Checkpoint)
    except (OSError, msgspec.MsgspecError):
        return Checkpoint(path.stem, 0, "", 0.0)


def read_exported(path: Path) -> list[Checkpoint]:
    """Checkpoints as they were exported, one a line. Raises OSError, msgspec.MsgspecError."""
    lines = path.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Checkpoint) for line in lines if line.strip()]
