"""Writes stderr in a thread, so that a slow reader holds nobody up; and logs without secrets.

Everything that is printed to ``sys.stderr`` or logged goes the same way, so that it stays in order.
What waits has a limit; what comes beyond it is dropped and counted, and the count is written in its
place. At the end, what waits is written for as long as somebody reads.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from queue import SimpleQueue

    from _typeshed import ReadableBuffer

LIMIT: Final = 1024 * 1024
PATIENCE: Final = 0.3
"""Seconds that the end of the program waits for a reader who takes nothing."""
LONGEST: Final = 5.0
"""Seconds that it waits for one who does."""
_PIECE: Final = 4096  # what a pipe takes at once: a slow reader is seen to read


class StderrThread(io.RawIOBase):
    """A file that is written behind the back of who writes to it. Does not close what it is on."""

    def __init__(self, fd: int, limit: int = LIMIT) -> None:
        self._fd = fd
        self._limit = limit
        self._lock = threading.RLock()  # a finalizer may complain in the middle of a complaint
        self._waiting: SimpleQueue[bytes | None] | None = None
        self._thread: threading.Thread | None = None
        self._put = 0
        self._written = 0  # by the thread alone
        self._missing = 0
        self._is_over = False

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def fileno(self) -> int:
        return self._fd

    def write(self, data: ReadableBuffer) -> int:
        """Have it written; never waits."""
        octets = bytes(data)
        with self._lock:
            if self._is_over:
                self._write_now(octets)
            else:
                self._queue(octets)
        return len(octets)

    def finish(self, patience: float = PATIENCE, longest: float = LONGEST) -> None:
        """The end: wait until everything is written, or nobody takes it."""
        with self._lock:
            thread = self._thread
            if thread is None or self._is_over:
                return
            self._is_over = True
            self._tell_missing()
            self._waiting.put(None)  # type: ignore[union-attr] # there is one for the thread
        for _ in range(int(longest / patience)):
            before = self._written
            thread.join(patience)
            if not thread.is_alive() or self._written == before:
                break

    def _queue(self, data: bytes) -> None:
        waiting = self._put - self._written
        if waiting and waiting + len(data) > self._limit:
            self._missing += 1
            return
        if self._thread is None:
            self._begin()
        self._tell_missing()
        self._send(data)

    def _begin(self) -> None:
        # Imported where it is used: most runs have nothing to say.
        from queue import SimpleQueue

        self._waiting = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()
        atexit.register(self.finish)

    def _send(self, data: bytes) -> None:
        assert self._waiting is not None
        self._put += len(data)
        self._waiting.put(data)

    def _tell_missing(self) -> None:
        if self._missing:
            self._send(b"mcp-junction: %d messages are missing here: nobody read\n" % self._missing)
            self._missing = 0

    def _run(self) -> None:
        assert self._waiting is not None
        while (data := self._waiting.get()) is not None:
            for start in range(0, len(data), _PIECE):
                piece = data[start : start + _PIECE]
                _write_all(self._fd, piece)
                self._written += len(piece)

    def _write_now(self, data: bytes) -> None:
        """What is said after the end is written at once, unless that would wait for somebody."""
        if self._thread is None or not self._thread.is_alive():
            _write_all(self._fd, data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # it is the file of somebody who does not want to wait
            import select

            select.select([], [fd], [], 1.0)
        except OSError:
            return  # nobody can be told


def take_stderr() -> None:
    """From now on nobody who writes to ``sys.stderr`` waits for who reads it."""
    before = sys.stderr
    before.flush()
    sys.stderr = io.TextIOWrapper(
        StderrThread(before.fileno()),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=True,
    )


class RedactingFormatter(logging.Formatter):
    """Formats records as usual, then hides every secret that this process knows."""

    def format(self, record: logging.LogRecord) -> str:
        # Imported where it is used: in stdio mode the servers are started before anything is said.
        from mcp_junction.redaction.known import KNOWN

        return KNOWN.redact(super().format(record))
