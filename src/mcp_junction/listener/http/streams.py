"""EventStream: sends events to one client as they come, and keeps them for a while.

A stream has at most one reader attached. What it was sent is kept, up to a bound, so that a client
whose connection broke can name the last event it saw and go on from there. An idle stream has no
task: a short one drains it when there is something to send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from mcp_junction.listener.http.host import Send
from mcp_junction.policy.quotas import Closable, QuotaUsage
from mcp_junction.protocol import sse
from mcp_junction.tasks import TaskScope

KEPT_EVENTS: Final = 128
KEPT_BYTES: Final = 1024 * 1024
DROP_ABOVE: Final = 1024 * 1024
BREAK_ABOVE: Final = 64 * 1024 * 1024
RETRY_MS: Final = 1000

_STREAM: Final = b"text/event-stream"
_HEADERS: Final = [
    (b"content-type", _STREAM),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


def accepts_stream(accept: bytes | None) -> bool:
    """Whether a client accepts a stream as the answer, by its Accept header."""
    return not accept or _STREAM in accept or b"*/*" in accept


class EventStream(Closable):
    """One stream of events to one client."""

    __slots__ = (
        "_draining", "_handed", "_held", "_kept", "_next", "_pending", "_pending_bytes",
        "_resumable", "_send", "_tasks", "_usage", "detached", "ended", "is_delivered",
        "kept_bytes", "number",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        tasks: TaskScope,
        usage: QuotaUsage | None = None,
        *,
        resumable: bool = True,
    ) -> None:
        self.number = number
        self._usage = usage or QuotaUsage()
        self._held = 0  # bytes that are counted for its principal
        self._resumable = resumable
        self.ended = False
        self.is_delivered = False
        """Whether the whole stream was written to a reader."""
        self.detached: asyncio.Future[None] | None = None
        self._tasks = tasks
        self._next = 1
        self._handed = 0  # the last event that a reader was given
        self._kept: deque[tuple[int, bytes]] = deque()
        self.kept_bytes = 0
        """Bytes that are kept for a client that comes back."""
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._send: Send | None = None
        self._draining: Send | None = None

    def __del__(self) -> None:
        self._usage.bytes -= self._held  # also if it was never ended

    def _count_bytes(self, size: int) -> None:
        """Count bytes that are kept here; ``size`` is negative when they are released."""
        self._held += size
        self._usage.bytes += size

    @property
    def is_attached(self) -> bool:
        return self._send is not None

    # -- writing

    def send(self, frame: bytes) -> None:
        if self._pending_bytes > BREAK_ABOVE:
            self.detach()  # it does not read; what it missed it may ask for again
        if self._usage.has_room_for(len(frame)) or self._make_room_for(len(frame)):
            self._push(frame)

    def offer(self, frame: bytes) -> None:
        if (
            self._pending_bytes < DROP_ABOVE
            and (self._send is not None or len(self._kept) < 16)
            and self._usage.has_room_for(len(frame))
        ):
            self._push(frame)

    def _make_room_for(self, size: int) -> bool:
        """Drop the kept events, then the reader; return whether that makes room.

        Its principal is at its limit of waiting bytes, here or in other streams.
        """
        self._forget_kept()
        if not self._usage.has_room_for(size):
            self.detach()
        return self._usage.has_room_for(size)

    def _forget_kept(self) -> None:
        self._count_bytes(-self.kept_bytes)
        self._kept.clear()
        self.kept_bytes = 0

    def end(self) -> None:
        """End the stream after what is pending."""
        self.ended = True
        self._drain_soon()

    def _push(self, frame: bytes) -> None:
        number, self._next = self._next, self._next + 1
        if not self._resumable and self._send is not None:
            self._queue(sse.encode_event(frame))
            return
        self._kept.append((number, frame))
        self.kept_bytes += len(frame)
        self._count_bytes(len(frame))
        while len(self._kept) > KEPT_EVENTS or self.kept_bytes > KEPT_BYTES + len(frame):
            size = len(self._kept.popleft()[1])
            self.kept_bytes -= size
            self._count_bytes(-size)
        if self._send is not None:
            self._handed = number
            self._queue(self._event(number, frame))

    def _event(self, number: int, frame: bytes) -> bytes:
        return sse.encode_event(frame, b"%d_%d" % (self.number, number) if self._resumable else b"")

    def _queue(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._count_bytes(len(data))
        self._drain_soon()

    def _drain_soon(self) -> None:
        if self._send is not None and self._draining is not self._send:
            self._draining = self._send
            self._tasks.spawn(self._drain(self._send))

    async def _drain(self, send: Send) -> None:
        try:
            while self._pending and self._send is send:
                data = b"".join(self._pending) if len(self._pending) > 1 else self._pending[0]
                self._clear_pending()
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if self.ended and self._send is send:
                await send({"type": "http.response.body", "body": b""})
                self.is_delivered = self._send is send
                self.detach()
        finally:
            if self._draining is send:
                self._draining = None
                if self._pending:
                    self._drain_soon()

    # -- reading

    async def attach(
        self,
        send: Send,
        *,
        after: int | None,
        prime: bool,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> asyncio.Future[None]:
        """Begin the response and replay the events after ``after``; return the future of its end.

        Without ``after`` it begins with the first event that no reader was given.
        """
        self.cut()
        every = [*_HEADERS, *headers]
        await send({"type": "http.response.start", "status": 200, "headers": every})
        opening = b"id: %d_%d\nretry: %d\ndata: \n\n" % (self.number, after or 0, RETRY_MS)
        first = opening if prime else b": open\n\n"
        await send({"type": "http.response.body", "body": first, "more_body": True})
        self.detached = asyncio.get_running_loop().create_future()
        self._send = send
        self._usage.open_stream(self)
        begin = self._handed if after is None else after
        for number, frame in self._kept:
            if number > begin:
                self._queue(self._event(number, frame))
        self._handed = self._next - 1
        if not self._resumable:
            self._forget_kept()
        self._drain_soon()
        return self.detached

    def release(self, attached: asyncio.Future[None]) -> None:
        """Detach a reader that has gone, unless another has replaced it."""
        if self.detached is attached:
            self.detach()
        else:
            _settle(attached)

    def cut(self) -> None:
        """End the response to the current reader, if there is one."""
        if self._send is not None and self.detached is not None:
            # It may be stuck: nobody waits for it.
            self._tasks.spawn(_end(self._send, self.detached))
            self.detached = None
        self.detach()

    def _clear_pending(self) -> None:
        self._pending.clear()
        self._count_bytes(-self._pending_bytes)
        self._pending_bytes = 0

    def detach(self) -> None:
        """Detach the current reader."""
        self._send = None
        self._usage.streams.discard(self)
        self._clear_pending()
        if self.detached is not None:
            _settle(self.detached)


async def _end(send: Send, detached: asyncio.Future[None]) -> None:
    """End the response to a reader that another one has replaced."""
    await send({"type": "http.response.body", "body": b""})
    _settle(detached)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
