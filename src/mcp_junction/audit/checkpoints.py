"""Checkpoints and Seals: what shows that stored pages of the audit were changed or removed.

Checkpoints are files with the length and last MAC of each chain, outside the store: they reveal a
cut tail. Seals makes and checks the MACs of pages and the tags of their rows, which reveal all
else.

A page is what one flush stores, a row per line. A row has a tag: 16 bytes of keyed BLAKE2b over its
line and all lines before it in the page. The page's MAC is HMAC-SHA-256 over the MAC of the page
before it, its place and its last tag; the first page follows the *genesis* of its writer. So an
edit shows in the tag of its row; a deletion or a reordering shows in the page after.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Final

import msgspec

from mcp_junction.store.audit_records import AuditPage, is_whole_row

FOLDER: Final = "audit"
_SLOT_BYTES: Final = 512
"""Bytes for one checkpoint: within one sector of a disk."""
_CLOSE: Final = 1.0
WITHIN: Final = 0.5
"""Seconds after a row is stored within which a checkpoint is begun."""
log = logging.getLogger("mcp_junction.audit")
_sync = getattr(os, "fdatasync", os.fsync)


class Checkpoint(msgspec.Struct, frozen=True):
    """The number of rows of a chain and its last MAC at one time, signed."""

    writer: str
    seq: int
    head: str
    at: float
    seal: str = ""

    def sign(self, key: bytes) -> Checkpoint:
        return msgspec.structs.replace(self, seal=self._seal(key))

    def is_genuine(self, key: bytes) -> bool:
        return hmac.compare_digest(self._seal(key), self.seal)

    def _seal(self, key: bytes) -> str:
        text = f"checkpoint/{self.writer}/{self.seq}/{self.head}/{self.at!r}"
        return hmac.digest(key, text.encode(), "sha256").hex()


class CheckpointDirectory:
    """The checkpoints of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER

    def path(self, writer: str) -> Path:
        """Return the file of a writer's checkpoints."""
        return self._folder / f"{writer}.checkpoint"

    def all(self) -> list[Checkpoint]:
        """Read all checkpoints, by writer. A damaged file gives one that matches no chain."""
        return [_read(path) for path in sorted(self._folder.glob("*.checkpoint"))]

    def remove(self, writer: str) -> None:
        """Remove the checkpoints of a writer."""
        self.path(writer).unlink(missing_ok=True)


class CheckpointFile:
    """The file with one writer's checkpoints. ``write`` blocks: call it in a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._slot = 0
        self._lock = threading.Lock()

    def write(self, checkpoint: Checkpoint, *, durable: bool = True) -> None:
        """Write a checkpoint, so that it survives this process. Raises OSError.

        ``durable``: it, and those before it, survive a power failure, too.
        """
        line = msgspec.json.encode(checkpoint).ljust(_SLOT_BYTES - 1) + b"\n"
        with self._lock:
            descriptor = self._ensure_open()
            if os.pwrite(descriptor, line, self._slot * _SLOT_BYTES) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                _sync(descriptor)
            self._slot = 1 - self._slot

    def sync(self) -> bool:
        """Sync what was written; return whether it is still there. Raises OSError."""
        with self._lock:
            if self._descriptor is None or not _is_at(self._descriptor, self._path):
                return False
            _sync(self._descriptor)
            return True

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
            os.fsync(folder)  # so that the file itself survives a power failure
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
    """Read exported checkpoints, one per line. Raises OSError, msgspec.MsgspecError."""
    lines = path.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Checkpoint) for line in lines if line.strip()]


class CheckpointSchedule:
    """Writes the checkpoint of one chain when it is due.

    That of an intent is written at once, and synced with the next one that is due: a program that
    is killed leaves it behind, and an intent does not wait for a second sync.
    """

    def __init__(self, path: Path, key: bytes, writer: str) -> None:
        self._file = CheckpointFile(path)
        self._key = key
        self._writer = writer
        self._stored: tuple[int, bytes] = (0, b"")
        self._written_seq = 0
        self._synced_seq = 0
        self._tried_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._has_timer_fired = False
        self._is_failing = False

    @property
    def is_behind(self) -> bool:
        """Whether rows were stored since the last checkpoint that is on the disk."""
        return self._synced_seq != self._stored[0]

    @property
    def is_written(self) -> bool:
        """Whether all stored rows have a checkpoint that survives this process."""
        return self._written_seq == self._stored[0]

    @property
    def is_due(self) -> bool:
        elapsed = time.monotonic() - self._tried_at
        return self.is_behind and (self._has_timer_fired or elapsed >= WITHIN)

    def advance(self, seq: int, mac: bytes, wake: Callable[[], None]) -> None:
        """Note that the chain is stored up to ``seq``; ``wake`` is called when a write is due."""
        self._stored = seq, mac
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WITHIN, self._on_timer, wake)

    def _on_timer(self, wake: Callable[[], None]) -> None:
        self._timer = None
        self._has_timer_fired = True
        wake()

    async def write(self, at: float) -> bool:
        """Write and sync a checkpoint of how far the chain is stored; return whether it worked."""
        self._tried_at, self._has_timer_fired = time.monotonic(), False
        return await asyncio.to_thread(self.write_now, *self._stored, at, durable=True)

    def write_now(self, seq: int, mac: bytes, at: float, *, durable: bool) -> bool:
        """Write a checkpoint of a place that the chain is stored up to. Blocks."""
        try:
            if not (durable and seq == self._written_seq and self._file.sync()):
                point = Checkpoint(self._writer, seq, mac.hex(), at).sign(self._key)
                self._file.write(point, durable=durable)
        except OSError as error:
            if not self._is_failing:
                words = "the audit's checkpoint cannot be written: %s; check the data directory"
                log.error(words, error.strerror)
            self._is_failing = True
            return False
        self._is_failing = False
        self._written_seq = seq
        if durable:
            self._synced_seq = seq
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._file.close()


# -- MACs of pages and tags of rows

TAG: Final = 16
_encode = msgspec.json.Encoder().encode


class Seals:
    """Makes and checks the MACs of pages and the tags of rows with one key."""

    __slots__ = ("_mac", "_tag")

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, digestmod="sha256")
        self._tag = blake2b(key=key, digest_size=TAG, person=b"junction row")

    def digest(self, *parts: bytes) -> bytes:
        mac = self._mac.copy()
        for part in parts:
            mac.update(part)
        return mac.digest()

    def genesis(self, writer: str) -> bytes:
        """Return the MAC that the first page of a writer follows."""
        return self.digest(b"genesis/" + writer.encode())

    def mac(self, before: bytes, page: AuditPage) -> bytes:
        place = (page.writer, page.first_seq, page.last_seq, page.first_at, page.last_at)
        return self.digest(before, _encode(place), page.tags[-TAG:])

    def new_tag_hash(self) -> blake2b:
        """Return the hash from which the tags of a page's rows are taken, before its first row."""
        return self._tag.copy()

    def tags(self, lines: Sequence[bytes]) -> bytes:
        """Make the tags of a page's rows: each covers its line and all lines before it."""
        state = self.new_tag_hash()
        tags = []
        for line in lines:
            state.update(line)
            tags.append(state.digest())
        return b"".join(tags)

    def is_next(self, before: bytes, page: AuditPage) -> bool:
        """Whether a page is unchanged and follows the one with the MAC ``before``."""
        if not compare_digest(self.mac(before, page), page.mac):
            return False
        return compare_digest(self.tags(page.lines), page.tags)

    def is_intact(self, page: AuditPage) -> bool:
        """Whether the rows of a page are unchanged since they were written with this key."""
        return self.first_bad_row(page) is None

    def first_bad_row(self, page: AuditPage) -> int | None:
        """Find the first row of a page that was changed, moved or removed."""
        lines = page.lines
        tags = self.tags(lines)
        for index, seq in enumerate(range(page.first_seq, page.last_seq + 1)):
            here = slice(index * TAG, (index + 1) * TAG)
            if index >= len(lines) or not compare_digest(tags[here], page.tags[here]):
                return seq
            line = lines[index]
            if is_whole_row(line) and msgspec.json.decode(line)[:2] != [page.writer, seq]:
                return seq
        return None if len(tags) == len(page.tags) else page.last_seq + 1
