"""LineReader: splits a stream of bytes into lines of limited length. No I/O."""

from __future__ import annotations

from io import BytesIO
from typing import Final, NamedTuple

from mcp_junction.protocol.versions import DEFAULT_LIMIT

MERGE_EVERY: Final = 64
"""Parts after which ``merge_small`` is called again."""
_SMALL: Final = 64 * 1024


def merge_small(parts: list[bytes], joint: bytes = b"") -> None:
    """Join the last MERGE_EVERY parts with ``joint`` into one, unless they are large."""
    last = parts[-MERGE_EVERY:]
    if sum(map(len, last)) < _SMALL:
        parts[-MERGE_EVERY:] = [joint.join(last)]


_KEPT: Final = 4096
_LINE_FEED: Final = ord("\n")
BOM: Final = b"\xef\xbb\xbf"


class Overlong(NamedTuple):
    """The ends of a line that was longer than the limit."""

    head: bytes
    tail: bytes
    size: int
    limit: int


class LineReader:
    """Turns chunks into whole lines."""

    __slots__ = ("_begun", "_fresh", "_head", "_limit", "_parts", "_size", "_tail")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head: bytes | None = None  # set while an overlong line is being skipped
        self._tail = b""
        self._fresh = True
        self._begun = b""  # what may be the beginning of a byte order mark

    def feed(self, data: bytes) -> list[bytes | Overlong]:
        """Return the lines that ``data`` completes, without blank ones."""
        if self._fresh:
            data = self._without_bom(data)
        if not data or self._is_blank(data):
            return []
        pieces = BytesIO(data).readlines()  # where lines are many or long, faster than ``split``
        rest = pieces.pop() if data[-1] != _LINE_FEED else b""
        lines: list[bytes | Overlong] = []
        if pieces and self._size:
            self._hold(pieces.pop(0)[:-1])
            lines.append(self._release())
        if rest:
            self._hold(rest)
        if lines or len(data) > self._limit:
            lines += [self._bounded(piece[:-1]) for piece in pieces]
            return [line for line in lines if isinstance(line, Overlong) or line.strip()]
        return [piece[:-1] for piece in pieces if not piece.isspace()]

    def _is_blank(self, data: bytes) -> bool:
        """Whether it is only blank lines, which can come in floods."""
        is_whole = not self._size and data[-1] == _LINE_FEED and len(data) <= self._limit
        return is_whole and data.isspace()

    def finish(self) -> bytes | Overlong | None:
        """Return the last line of the stream, if it has no line feed."""
        if self._begun:
            self._hold(self._begun)
            self._begun = b""
        if not self._size:
            return None
        line = self._release()
        return line if isinstance(line, Overlong) or line.strip() else None

    def _without_bom(self, data: bytes) -> bytes:
        data = self._begun + data
        if len(data) < len(BOM) and BOM.startswith(data):
            self._begun = data
            return b""
        self._fresh = False
        self._begun = b""
        return data.removeprefix(BOM)

    def _bounded(self, line: bytes) -> bytes | Overlong:
        if len(line) <= self._limit:
            return line
        return Overlong(line[:_KEPT], line[-_KEPT:], len(line), self._limit)

    def _hold(self, data: bytes) -> None:
        self._size += len(data)
        if self._head is None:
            self._parts.append(data)
            if self._size > self._limit:
                whole = b"".join(self._parts)
                self._parts = []
                self._head, self._tail = whole[:_KEPT], whole[-_KEPT:]
            elif not len(self._parts) % MERGE_EVERY:
                merge_small(self._parts)
        else:
            self._tail = (self._tail + data[-_KEPT:])[-_KEPT:]

    def _release(self) -> bytes | Overlong:
        line: bytes | Overlong
        if self._head is None:
            line = b"".join(self._parts)
        else:
            line = Overlong(self._head, self._tail, self._size, self._limit)
        self._parts, self._size, self._head, self._tail = [], 0, None, b""
        return line
