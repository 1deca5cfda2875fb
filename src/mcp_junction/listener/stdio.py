"""StdioListener: serves one client on our own stdin and stdout.

The real stdout is taken aside first, so that a stray ``print`` of anyone in this process lands on
stderr: nothing but frames ever reaches the client. One session, one reader, one writer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import stat
import threading
from collections.abc import Callable

from mcp_junction.errors import FrameError
from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.listener.pipe import PipeClient
from mcp_junction.listener.replies import PipeReplies, refuse_bytes
from mcp_junction.outbox import Outbox
from mcp_junction.protocol import envelope, frames, requests
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.lines import LineReader, Overlong
from mcp_junction.protocol.requests import BatchPart
from mcp_junction.protocol.versions import BATCH_VERSIONS, INVALID_REQUEST, STATELESS_VERSIONS
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope

_DROP_ABOVE = 8 * 1024 * 1024
_PAUSE_ABOVE = 64 * 1024 * 1024
_CHUNK = 1 << 16
_LOOKS_EVERY = 0.5
_STEP = 0.01
_PATIENCE = 5.0
"""Seconds that a client may read nothing after the end of its input, before we give up."""
_HASTE = 1.0
"""The same after ``stop``."""

log = logging.getLogger("mcp_junction.listener")

Stateless = Callable[["StdioListener"], PipeClient]
"""Makes the client of a pipe whose first request is of the stateless era."""


class StdioListener:
    """Reads the client's frames and writes ours. ``serve`` returns when the client is gone."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        line_limit: int,
        tasks: TaskScope,
        stateless: Stateless | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._tasks = tasks
        self._replies = PipeReplies(self)
        self._stateless = stateless
        self._client: PipeClient | None = None
        self._is_decided = stateless is None
        self._reader = LineReader(line_limit)
        self._ended = asyncio.Event()
        self._input: asyncio.ReadTransport | None = None
        self._output: Outbox | None = None
        self._paused = False
        self._patience = _PATIENCE
        self._nobody_reads = False
        self._hangup: Hangup | None = None
        self.session: Session | None = None

    async def open(self, stdin: int, stdout: int) -> None:
        """Take the two pipes."""
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_write_pipe(
            lambda: _Output(self), os.fdopen(_as_pipe(stdout, "out"), "wb", 0)
        )
        pipe.set_write_buffer_limits(high=_PAUSE_ABOVE, low=_DROP_ABOVE)
        self._output = Outbox(pipe)
        reads = _as_pipe(stdin, "in")
        self._input, _ = await loop.connect_read_pipe(
            lambda: _Input(self), os.fdopen(reads, "rb", 0)
        )
        self._hangup = Hangup(reads)

    async def serve(self) -> None:
        """Wait until the client has closed its end, or ``stop`` is called."""
        await self._ended.wait()
        if self._input is not None:
            self._input.close()

    @property
    def is_ended(self) -> bool:
        """Whether no more requests are read."""
        return self._ended.is_set()

    def stop(self) -> None:
        """End: a signal or the parent asks for it."""
        self._ended.set()
        self._patience = _HASTE

    async def close(self) -> None:
        """Write what is left while the client reads, and close the pipes."""
        output = self._output
        if output is None:
            return
        left, idle = output.unsent, 0.0
        while output.unsent and not output.is_closing:
            if idle > self._patience:
                log.warning("%d bytes of answers are lost: the client did not read them", left)
                break
            await asyncio.sleep(_STEP)
            idle = 0.0 if output.unsent < left else idle + _STEP
            left = output.unsent
        output.close()

    # -- out

    def send(self, frame: bytes) -> None:
        if self._output is not None:
            self._output.send(frame)

    def offer(self, frame: bytes) -> None:
        """Send a message that may be dropped when the client does not read."""
        if self._output is not None and self._output.unsent < _DROP_ABOVE:
            self._output.send(frame)

    # -- in

    def data(self, data: bytes) -> None:
        for line in self._reader.feed(data):
            self._line(line)

    def end_of_input(self) -> None:
        last = self._reader.finish()
        if last is not None:
            self._line(last)
        log.debug("the input has ended")
        self._ended.set()

    def client_gone(self) -> None:
        """End at once: the client has closed its input, and reads no answers."""
        self._ended.set()
        self._nobody_reads = True
        self.drop("the client is gone")

    def _line(self, line: bytes | Overlong) -> None:
        assert self.session is not None
        if self._nobody_reads:
            return
        try:
            if isinstance(line, Overlong):
                raise self._too_long(line)
            frame = requests.decode(line)
        except FrameError as error:
            if isinstance(line, bytes) and frames.is_batch(line):
                self._batch(self.session, line, error)
            else:
                self.send(refuse_bytes(error))
            return
        client = self._client if self._is_decided else self._client_of(frame)
        if client is not None:
            client.receive(frame)
            return
        rest = self._dispatcher.receive(self.session, frame, self._replies)
        if rest is not None:
            self._tasks.run_pooled(rest)

    def _client_of(self, frame: Frame) -> PipeClient | None:
        """Return the PipeClient, if the client is stateless.

        The first request that an era can begin with says of which one the client is, for as long as
        it stays. What comes before is answered for what it is.
        """
        if not (frame.method and frame.id) or self._stateless is None:
            return None
        version = None if frame.method == "initialize" else envelope.stated_version(frame)
        client = self._stateless(self) if version is not None else None
        if frame.method == "initialize" or frames.text(version) in STATELESS_VERSIONS:
            self._is_decided, self._client = True, client
        return client

    def drop(self, reason: str) -> None:
        """End running calls; they are answered with ``reason``."""
        if self._client is not None:
            self._client.close(reason)
        elif self.session is not None:
            self.session.close(reason)

    def _batch(self, session: Session, line: bytes, error: FrameError) -> None:
        """Handle a batch in one line, from a client whose version allows batches."""
        try:
            if session.protocol_version not in BATCH_VERSIONS:
                raise error
            parts = requests.split_batch(line)
        except FrameError as refused:
            self.send(refuse_bytes(refused))
        else:
            self._tasks.spawn(self._answer_batch(session, parts))

    async def _answer_batch(self, session: Session, parts: list[BatchPart]) -> None:
        answers = await self._dispatcher.answer_batch(session, parts, self)
        if answers:
            self.send(requests.join_answers(answers))

    def _too_long(self, line: Overlong) -> FrameError:
        message = f"a line of {line.size} bytes is over the limit of {line.limit} (max_line_bytes)"
        return FrameError(INVALID_REQUEST, message, frames.recover_id(line.head + line.tail))

    def pause(self) -> None:
        """Stop reading requests until the client reads its answers."""
        if self._input is not None and not self._input.is_closing():
            self._paused = True
            self._input.pause_reading()
            self._look()

    def _look(self) -> None:
        """Check for the end of the input, which a paused pipe does not report."""
        if self._paused and self._hangup is not None:
            if self._hangup.is_there():
                self.resume()  # what is left fits into a pipe
            else:
                asyncio.get_running_loop().call_later(_LOOKS_EVERY, self._look)

    def resume(self) -> None:
        if self._input is not None and self._paused and not self._input.is_closing():
            self._paused = False
            self._input.resume_reading()


class Hangup:
    """Tells whether the other end of a pipe was closed, without reading from it."""

    def __init__(self, fd: int) -> None:
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(fd, getattr(select, "POLLRDHUP", 0))

    def is_there(self) -> bool:
        return self._poll is not None and bool(self._poll.poll(0))


class _Input(asyncio.Protocol):
    def __init__(self, listener: StdioListener) -> None:
        self.data_received = listener.data  # type: ignore[method-assign]
        self._listener = listener

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.end_of_input()


class _Output(asyncio.Protocol):
    def __init__(self, listener: StdioListener) -> None:
        self._listener = listener

    def pause_writing(self) -> None:
        self._listener.pause()

    def resume_writing(self) -> None:
        self._listener.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.client_gone()


def _as_pipe(fd: int, direction: str) -> int:
    """``fd``, or a pipe pumped by a thread when it is a file or a device such as /dev/null.

    Event loops take pipes and sockets only: epoll refuses the rest, and libuv aborts on that.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return fd
    readable, writable = os.pipe()
    source, target = (fd, writable) if direction == "in" else (readable, fd)
    threading.Thread(target=_pump, args=(source, target), daemon=direction == "in").start()
    return readable if direction == "in" else writable


def _pump(source: int, target: int) -> None:
    try:
        while data := os.read(source, _CHUNK):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    except OSError:
        pass  # the other end is gone
    finally:
        os.close(target)
