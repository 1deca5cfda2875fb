"""Server-sent events: EventReader decodes a stream of limited events; ``encode_event`` writes one.

A frame is one line by construction (``encode.py``), so an event of ours has one ``data:`` line.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mcp_junction.errors import FrameError
from mcp_junction.protocol.lines import MERGE_EVERY, merge_small
from mcp_junction.protocol.versions import DEFAULT_LIMIT, INVALID_REQUEST

LEAST_RETRY: Final = 1.0
"""Seconds to wait before a stream is opened again, even if its server asks for less."""

_BREAK = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event of a stream."""

    data: bytes
    name: bytes = b""
    id: bytes | None = None
    retry: int | None = None


class EventReader:
    """Turns chunks into whole events. Raises FrameError for one over the limit."""

    __slots__ = ("_after_cr", "_data", "_id", "_limit", "_name", "_partial", "_retry", "_size")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._partial: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._data: list[bytes] = []
        self._name = b""
        self._id: bytes | None = None
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that ``chunk`` completes."""
        if not chunk:
            return []
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]  # the rest of a CRLF that was cut in two
        self._after_cr = chunk[-1:] == b"\r"
        if b"\n" not in chunk and not self._after_cr and b"\r" not in chunk:
            self._hold(chunk)
            return []
        first, *lines, rest = _BREAK.split(chunk)
        events = []
        for line in (self._whole(first), *lines):
            if line:
                self._field(line)
            elif (event := self._finish()) is not None:
                events.append(event)
        self._hold(rest)
        return events

    def _hold(self, part: bytes) -> None:
        """Keep the beginning of a line, or more of it."""
        if part:
            self._partial.append(part)
            if not len(self._partial) % MERGE_EVERY:
                merge_small(self._partial)
            self._grow(len(part))

    def _whole(self, end: bytes) -> bytes:
        """Complete the line that ``end`` ends."""
        if not self._partial:
            return end
        line = b"".join((*self._partial, end))
        self._partial = []
        self._size += len(end) - len(line)
        return line

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise FrameError(INVALID_REQUEST, f"an event is over the limit of {self._limit} bytes")

    def _field(self, line: bytes) -> None:
        name, _, value = line.removeprefix(_BOM).partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            if not len(self._data) % MERGE_EVERY:
                merge_small(self._data, b"\n")
            self._grow(len(value) + 1)  # an empty line of data costs something, too
        elif name == b"event":
            self._name = value
        elif name == b"id" and b"\0" not in value:
            self._id = value
        elif name == b"retry" and value.isdigit():
            self._retry = int(value[:9])

    def _finish(self) -> Event | None:
        event = Event(b"\n".join(self._data), self._name, self._id, self._retry)
        empty = not self._data and self._id is None and self._retry is None
        self._data, self._size, self._name, self._id, self._retry = [], 0, b"", None, None
        return None if empty else event


def reconnect_delay(retry: int | None) -> float:
    """Seconds to wait before a stream is opened again whose server sent ``retry``, in ms."""
    return LEAST_RETRY if retry is None else max(retry / 1000, LEAST_RETRY)


def encode_event(frame: bytes, event_id: bytes = b"") -> bytes:
    """Encode an event that carries one frame, which ends with its line feed."""
    if event_id:
        return b"id: %b\nevent: message\ndata: %b\n" % (event_id, frame)
    return b"event: message\ndata: %b\n" % frame
