"""Outbox: joins the frames written to a transport in one turn of the event loop into one write.

A write is a system call, which the frames of a turn share. A frame is delayed until the end of the
turn, never longer.
"""

from __future__ import annotations

import asyncio


class Outbox:
    """The frames that wait to be written to one transport."""

    __slots__ = ("_flushed", "_frames", "_loop", "size", "transport")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self.size = 0
        """Bytes that were not given to the transport yet."""
        self._flushed = 0

    @property
    def is_closing(self) -> bool:
        return self.transport.is_closing()

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not read yet."""
        return self.size + self.transport.get_write_buffer_size()

    @property
    def written(self) -> int:
        """Bytes given to it in all, written or not."""
        return self._flushed + self.size

    def send(self, frame: bytes) -> None:
        """Write a frame at the end of this turn."""
        if not self._frames:
            self._loop.call_soon(self.flush)
        self._frames.append(frame)
        self.size += len(frame)

    def flush(self) -> None:
        """Write everything now."""
        self._flushed += self.size
        frames, self._frames, self.size = self._frames, [], 0
        if frames and not self.transport.is_closing():
            self.transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def close(self) -> None:
        self.flush()
        self.transport.close()
