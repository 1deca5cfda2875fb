"""StdioLink: a server as a child process, with one frame per line on its pipes.

It starts the process (through the warden), reads and writes its pipes, keeps the tail of its stderr
and ends it. When to start, what an exit means and whether to try again is decided by the Upstream.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import Phase, ServerError
from mcp_junction.outbox import Outbox
from mcp_junction.protocol.lines import LineReader, Overlong
from mcp_junction.protocol.versions import STATELESS, era_of
from mcp_junction.redaction.texts import keep_tail, redact_lines
from mcp_junction.resilience.read_budget import TURN_LIMIT, ReadBudget
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.tasks import wait_for_any, wait_until_set
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.child_env import explain_start_failure
from mcp_junction.upstream.flight import WRITTEN, Flight
from mcp_junction.upstream.headstart import Pipes
from mcp_junction.upstream.link import LinkEnd, LinkListener, find_cause
from mcp_junction.upstream.multiplexer import MultiplexedLink
from mcp_junction.upstream.outcome import LINK_FAILED
from mcp_junction.upstream.warden import Ward, Warden

if sys.platform == "linux":
    import fcntl

_PIPE_BYTES = 256 * 1024
_STDERR_TAIL = 8 * 1024
_STDERR_KEPT = 32 * 1024  # more than the tail, so that a secret at its beginning is seen whole
_FEW = 8
_MEASURABLE = 0.0002
_DRAIN = 1.0
_KILL_WAIT = 5.0


class StdioLink(MultiplexedLink):
    """One connection to one child process."""

    def __init__(
        self,
        definition: ServerDefinition,
        listener: LinkListener,
        line_limit: int,
        read_budget: ReadBudget | None = None,
        stalls: StallSweep | None = None,
        on_stalled: Callable[[str], None] | None = None,
    ) -> None:
        """``on_stalled`` is called when ``stalls`` finds that the process reads no input."""
        super().__init__(definition.key, listener, definition.limits)
        self._definition = definition
        self._read_budget = read_budget or ReadBudget()
        self._stalls = stalls
        self._on_stalled = on_stalled
        self._reader = LineReader(line_limit)
        self._stderr = deque[bytes]()
        self._stderr_size = 0
        self._stderr_ended = asyncio.Event()
        self._stdin: Outbox | None = None
        self._stdout: asyncio.ReadTransport | None = None
        self._backlog: Iterator[bytes | Overlong] = iter(())
        self._pipes: list[asyncio.BaseTransport] = []
        self._ward: Ward | None = None

    # -- life

    async def start(self, env: dict[str, str], warden: Warden) -> None:
        """Start the process and take its pipes. Raises ServerError."""
        try:
            self._ward, pipes = await warden.start(self._definition, env)
        except OSError as error:
            message = explain_start_failure(self._definition, error)
            raise ServerError(self.server, Phase.STARTUP, message) from None
        for fd in (pipes.stdin, pipes.stdout):
            _enlarge_pipe(fd)
        try:
            await self._connect_pipes(pipes)
        except BaseException:  # nobody else knows of the process yet
            self._ward.kill()
            self._close_pipes()
            raise

    async def _connect_pipes(self, pipes: Pipes) -> None:
        loop = asyncio.get_running_loop()
        modes = ("wb", "rb", "rb")
        files = [os.fdopen(fd, mode, 0) for fd, mode in zip(pipes, modes, strict=True)]
        try:
            pipe, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, files.pop(0))
            self._pipes.append(pipe)
            self._stdin = Outbox(pipe)
            if self._stalls is not None:
                self._stalls.watch(self)
            self._stdout, _ = await loop.connect_read_pipe(
                lambda: _Pipe(self._on_stdout, self._on_stdout_end), files.pop(0)
            )
            self._pipes.append(self._stdout)
            err, _ = await loop.connect_read_pipe(
                lambda: _Pipe(self._on_stderr, self._stderr_ended.set), files.pop(0)
            )
            self._pipes.append(err)
        finally:
            for file in files:  # those that nothing reads: an earlier one could not be taken
                file.close()

    async def end(self, grace: float) -> None:
        """Close its stdin, then send SIGTERM, then kill it; returns when it has exited."""
        ward = self._ward
        if ward is None:
            return
        if self._stdin is not None:
            self._stdin.close()
        if not await _within(ward.exited, grace):
            ward.signal(signal.SIGTERM)
        if not await _within(ward.exited, grace):
            ward.kill()
            await _within(ward.exited, _KILL_WAIT)
        await self.release("it was stopped")

    def mark_lost(self, why: str) -> None:
        self._on_stdout_end()

    async def release(self, why: str) -> None:
        """Close the pipes and end every flight."""
        self._close_pipes()
        self._on_stdout_end()  # an answer that has come is still an answer
        self._stdout = None  # it holds our methods: a reference cycle
        await self.multiplexer.close(why)

    def _close_pipes(self) -> None:
        if self._stalls is not None:
            self._stalls.forget(self)
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        self._stdin = None

    async def describe_end(self) -> LinkEnd:
        """How it ended, once its stderr is read too."""
        if self._ward is None or not await _within(self._ward.exited, _DRAIN):
            return LinkEnd("closed its output")
        await wait_until_set(self._stderr_ended, _DRAIN)  # what it started may still hold it
        code = self._ward.exited.result()
        cause = find_cause(self.stderr_tail) if code else ""
        what = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
        return LinkEnd(what, code, cause)

    async def begin_session(self, protocol_version: str) -> None:
        self.era = era_of(protocol_version)
        self.multiplexer.is_stateless = self.era is STATELESS
        self.notify("notifications/initialized")

    async def wait_closed(self) -> None:
        """Wait until its stdout has ended, or it has exited and what it wrote has been read."""
        assert self._ward is not None
        await wait_for_any(self.closed, self._ward.exited)
        await _within(self.closed, _DRAIN)

    @property
    def stray_output(self) -> str:
        return self.multiplexer.stray.decode("utf-8", "replace").strip()

    @property
    def stderr_tail(self) -> str:
        tail = keep_tail(b"".join(self._stderr), _STDERR_TAIL, self._definition)
        return redact_lines(tail, self._definition)

    # -- the Link protocol

    def send(self, flight: Flight) -> None:
        stdin, multiplexer, ward = self._stdin, self.multiplexer, self._ward
        if (
            stdin is None
            or stdin.transport.is_closing()
            or self.closed.done()
            or (ward is not None and ward.exited.done())
        ):
            why = "it no longer reads its input"
            flight.end(outcomes.unavailable(self.server, why, LINK_FAILED))
        elif stdin.size + stdin.transport.get_write_buffer_size() > self._limits.bytes:
            flight.end(outcomes.unavailable(self.server, "it does not read its input"))
        elif len(multiplexer.flights) >= self._limits.calls and flight.caller is not None:
            flight.end(outcomes.overloaded(self.server, len(multiplexer)))
        else:
            flight.link = self
            flight.state = WRITTEN
            stdin.send(multiplexer.encode_request(flight))

    # -- a Writer for StallSweep

    @property
    def written(self) -> int:
        return self._stdin.written if self._stdin is not None else 0

    @property
    def unsent(self) -> int:
        return self._stdin.unsent if self._stdin is not None else 0

    def cut_stalled(self, seconds: float) -> None:
        if self._on_stalled is not None:
            self._on_stalled(f"it has read nothing of its input for {seconds:.0f} s")

    # -- the pipes

    def _write(self, frame: bytes) -> None:
        # Calls are refused at the limit; other frames that the server does not read are dropped,
        # so that memory stays bounded.
        if self._stdin is not None and self._stdin.unsent <= self._limits.bytes:
            self._stdin.send(frame)

    def _on_stdout(self, data: bytes) -> None:
        began = time.monotonic()
        self._backlog = iter(lines := self._reader.feed(data))
        stdout = self._stdout
        if stdout is None or stdout.is_closing():  # reading cannot be paused any more
            self._process_lines()
            return
        has_more = len(lines) > _FEW and self._read_budget.is_spent
        if not has_more:
            has_more = self._process_lines(began + TURN_LIMIT)
            took = time.monotonic() - began
            if took > _MEASURABLE:
                self._read_budget.spend(took)
                has_more = has_more or took > TURN_LIMIT
        if has_more:
            # Pause reading until the backlog is processed: a flood must not occupy the loop.
            stdout.pause_reading()
            self._read_budget.wait(self._process_backlog)

    def _process_backlog(self, until: float) -> bool:
        """Process the next portion of a flood, until ``until``; whether there is more."""
        if self._process_lines(until):
            return True
        if self._stdout is not None and not self._stdout.is_closing():
            self._stdout.resume_reading()
        return False

    def _process_lines(self, until: float = math.inf) -> bool:
        """Process the lines that have arrived, until ``until``; whether there are more."""
        for line in self._backlog:
            self.multiplexer.receive(line)
            if time.monotonic() > until:
                return True
        return False

    def _on_stdout_end(self) -> None:
        if not self.closed.done():
            self._process_lines()
            last = self._reader.finish()
            if last is not None:
                self.multiplexer.receive(last)
            self.closed.set_result(None)

    def _on_stderr(self, data: bytes) -> None:
        self._stderr.append(data[-_STDERR_KEPT:])
        self._stderr_size += len(self._stderr[-1])
        while self._stderr_size - len(self._stderr[0]) >= _STDERR_KEPT:
            self._stderr_size -= len(self._stderr.popleft())


class _Pipe(asyncio.Protocol):
    """Calls functions with what a pipe yields and at its end."""

    def __init__(self, data: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self.data_received = data  # type: ignore[method-assign, assignment]
        self._end = end

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()


def _enlarge_pipe(fd: int) -> None:
    """Enlarge a pipe, so that large frames cause fewer wake-ups; not being allowed to is fine."""
    if sys.platform == "linux":
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass


async def _within(future: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a future without cancelling it, for a limited time; whether it is done."""
    await asyncio.wait({future}, timeout=seconds)
    return future.done()
