"""Writes stderr in a thread, so that a slow reader blocks nothing; and redacts log records.

Everything that is printed to ``sys.stderr`` or logged goes through one queue, so that it stays in
order. The queue is bounded: what exceeds it is dropped, and the number of dropped messages is
written instead. At exit, the queue is written for as long as the reader reads.
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
"""Seconds that the exit waits for a reader that reads nothing."""
LONGEST: Final = 5.0
"""Seconds that the exit waits at most."""
_PIECE: Final = 4096  # what a pipe takes at once: a slow reader is seen to read


class StderrThread(io.RawIOBase):
    """A file whose writes never block: a thread writes them. Does not close its descriptor."""

    def __init__(self, fd: int, limit: int = LIMIT) -> None:
        self._fd = fd
        self._limit = limit
        self._lock = threading.RLock()  # a finalizer may print while we write
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
        """Queue data to be written; never blocks."""
        octets = bytes(data)
        with self._lock:
            if self._is_over:
                self._write_now(octets)
            else:
                self._queue(octets)
        return len(octets)

    def finish(self, patience: float = PATIENCE, longest: float = LONGEST) -> None:
        """Wait at exit until everything is written, or the reader stops reading."""
        with self._lock:
            thread = self._thread
            if thread is None or self._is_over:
                return
            self._is_over = True
            self._report_missing()
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
        self._report_missing()
        self._send(data)

    def _begin(self) -> None:
        # Imported late: most runs print nothing.
        from queue import SimpleQueue

        self._waiting = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()
        atexit.register(self.finish)

    def _send(self, data: bytes) -> None:
        assert self._waiting is not None
        self._put += len(data)
        self._waiting.put(data)

    def _report_missing(self) -> None:
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
        """Write after ``finish``, unless the thread is still blocked."""
        if self._thread is None or not self._thread.is_alive():
            _write_all(self._fd, data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # the descriptor is non-blocking
            import select

            select.select([], [fd], [], 1.0)
        except OSError:
            return  # nobody can be told


def take_stderr() -> None:
    """Replace ``sys.stderr`` by one whose writes never block."""
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
        from mcp_junction.redaction.texts import KNOWN

        return KNOWN.redact(super().format(record))
