"""The stdio link: a server as a child process, one line a frame on its pipes.

It starts the process (through the warden), reads and writes its pipes, keeps the tail of its stderr
and ends it. When to start, what an exit means and whether to try again is the Upstream's to decide.
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

from msgspec import Raw

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import GENEROUS
from mcp_junction.errors import Phase, ServerError
from mcp_junction.outbox import Outbox
from mcp_junction.protocol.lines import LineReader, Overlong
from mcp_junction.protocol.versions import Era, era_of
from mcp_junction.redaction.texts import cut_tail, redact_lines
from mcp_junction.resilience.stalls import StallSweep
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.child_env import explain_start_failure
from mcp_junction.upstream.failure_causes import find_cause
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.link import LinkEnd, LinkListener
from mcp_junction.upstream.multiplexer import Multiplexer
from mcp_junction.upstream.read_budget import LONG, ReadBudget
from mcp_junction.upstream.warden import Ward, Warden

if sys.platform == "linux":
    import fcntl

_PIPE_BYTES = 256 * 1024
_STDERR_TAIL = 8 * 1024
_STDERR_KEPT = 32 * 1024  # to see whole what the tail begins within
_FEW = 8
_WORTH_COUNTING = 0.0002
_DRAIN = 1.0
_KILL_WAIT = 5.0


class StdioLink:
    """One connection to one child process."""

    def __init__(
        self, server: str, ear: LinkListener, line_limit: int, turns: ReadBudget | None = None
    ) -> None:
        self.server = server
        self._turns = turns or ReadBudget()
        self.era = Era.HANDSHAKE
        self.refuses_credentials = False
        self.exchange = Multiplexer(server, self._write, ear)
        self.users = self.exchange.users
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = LineReader(line_limit)
        self._stderr = deque[bytes]()
        self._stderr_size = 0
        self._stderr_ended = asyncio.Event()
        self._stdin: Outbox | None = None
        self._stdout: asyncio.ReadTransport | None = None
        self._backlog: Iterator[bytes | Overlong] = iter(())
        self._pipes: list[asyncio.BaseTransport] = []
        self._ward: Ward | None = None
        self._definition = ServerDefinition(server, "stdio")
        self._limits = GENEROUS
        self.stalls: StallSweep | None = None
        """Watches whether it reads its input."""
        self.on_stalled: Callable[[str], None] | None = None
        """Told why when it does not."""

    # -- life

    async def start(
        self, definition: ServerDefinition, env: dict[str, str], warden: Warden
    ) -> None:
        """Start the process and take its pipes. Raises ServerError."""
        self._definition = definition
        self._limits = definition.limits
        try:
            self._ward, pipes = await warden.start(definition, env)
        except OSError as error:
            message = explain_start_failure(definition, error)
            raise ServerError(self.server, Phase.STARTUP, message) from None
        for fd in (pipes.stdin, pipes.stdout):
            _widen(fd)
        await self._take_pipes(*pipes)

    async def _take_pipes(self, stdin: int, stdout: int, stderr: int) -> None:
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(stdin, "wb", 0))
        self._stdin = Outbox(pipe)
        if self.stalls is not None:
            self.stalls.watch(self)
        self._stdout, _ = await loop.connect_read_pipe(
            lambda: _Pipe(self._stdout_data, self._stdout_end), os.fdopen(stdout, "rb", 0)
        )
        err, _ = await loop.connect_read_pipe(
            lambda: _Pipe(self._stderr_data, self._stderr_ended.set), os.fdopen(stderr, "rb", 0)
        )
        self._pipes = [pipe, self._stdout, err]

    async def end(self, grace: float) -> None:
        """Close its stdin, then ask it to go, then make it go; returns when it is gone."""
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

    def unreachable(self, why: str) -> None:
        self._stdout_end()

    async def release(self, why: str) -> None:
        """Let go of the pipes and end every flight."""
        if self.stalls is not None:
            self.stalls.forget(self)
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        self._stdin = None
        self._stdout_end()  # an answer that has come is still an answer
        self._stdout = None  # it holds methods of ours: a cycle for the collector
        await self.exchange.close(why)

    async def describe_end(self) -> LinkEnd:
        """How it ended, once its stderr is read too."""
        if self._ward is None or not await _within(self._ward.exited, _DRAIN):
            return LinkEnd("closed its output")
        try:
            await asyncio.wait_for(self._stderr_ended.wait(), _DRAIN)
        except TimeoutError:
            pass  # something it started still holds it
        code = self._ward.exited.result()
        cause = find_cause(self.stderr_tail) if code else ""
        what = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
        return LinkEnd(what, code, cause)

    async def opened(self, protocol_version: str) -> None:
        self.era = self.exchange.era = era_of(protocol_version)
        self.notify("notifications/initialized")

    async def gone(self) -> None:
        """Wait until its stdout has ended, or it has exited and what it wrote has been read."""
        assert self._ward is not None
        either: set[asyncio.Future[Any]] = {self.closed, self._ward.exited}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        await _within(self.closed, _DRAIN)

    @property
    def speaks_older(self) -> bool:
        return False

    @property
    def is_busy(self) -> bool:
        return len(self.exchange) > 0

    @property
    def calls(self) -> int:
        return self.exchange.calls

    @property
    def stray(self) -> str:
        return self.exchange.stray.decode("utf-8", "replace").strip()

    @property
    def stderr_tail(self) -> str:
        tail = cut_tail(b"".join(self._stderr), _STDERR_TAIL, self._definition)
        return redact_lines(tail, self._definition)

    @property
    def _hears(self) -> bool:
        """Whether what is written to it has a chance to be read."""
        return (
            self._stdin is not None
            and not self._stdin.is_closing
            and not self.closed.done()
            and not (self._ward is not None and self._ward.exited.done())
        )

    # -- the Link protocol

    def send(self, flight: Flight) -> None:
        stdin, exchange = self._stdin, self.exchange
        if stdin is None or not self._hears:
            flight.end(outcomes.unavailable(self.server, "it no longer reads its input"))
        elif stdin.unsent > self._limits.bytes:
            flight.end(outcomes.unavailable(self.server, "it does not read its input"))
        elif len(exchange.flights) >= self._limits.calls and flight.passenger is not None:
            flight.end(outcomes.overloaded(self.server, len(exchange)))
        else:
            flight.link = self
            stdin.send(exchange.taken(flight))

    def cancel(self, flight: Flight, reason: str) -> None:
        self.exchange.cancel(flight, reason)

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        if self.era is Era.HANDSHAKE:
            self.exchange.notify(method, params)

    # -- whether it reads

    @property
    def written(self) -> int:
        return self._stdin.written if self._stdin is not None else 0

    @property
    def unsent(self) -> int:
        return self._stdin.unsent if self._stdin is not None else 0

    def cut_stalled(self, seconds: float) -> None:
        if self.on_stalled is not None:
            self.on_stalled(f"it has read nothing of its input for {seconds:.0f} s")

    # -- the pipes

    def _write(self, frame: bytes) -> None:
        # Calls are refused before it comes to the limit; nothing else that a server does not read
        # is worth memory without end.
        if self._stdin is not None and self._stdin.unsent <= self._limits.bytes:
            self._stdin.send(frame)

    def _stdout_data(self, data: bytes) -> None:
        began = time.monotonic()
        self._backlog = iter(lines := self._reader.feed(data))
        stdout = self._stdout
        if stdout is None or stdout.is_closing():  # it cannot be kept waiting
            self._take()
            return
        has_more = len(lines) > _FEW and self._turns.is_over
        if not has_more:
            has_more = self._take(began + LONG)
            took = time.monotonic() - began
            if took > _WORTH_COUNTING:
                self._turns.spend(took)
                has_more = has_more or took > LONG
        if has_more:
            # Read no more from it until all this is taken; else a flood could fill the loop alone.
            stdout.pause_reading()
            self._turns.wait(self._go_on)

    def _go_on(self, until: float) -> bool:
        """Take the next portion of a flood: between two of them all others have their turn."""
        if self._take(until):
            return True
        if self._stdout is not None and not self._stdout.is_closing():
            self._stdout.resume_reading()
        return False

    def _take(self, until: float = math.inf) -> bool:
        """Take what came, until a moment by the clock; whether there is more."""
        for line in self._backlog:
            self.exchange.receive(line)
            if time.monotonic() > until:
                return True
        return False

    def _stdout_end(self) -> None:
        if not self.closed.done():
            self._take()
            last = self._reader.finish()
            if last is not None:
                self.exchange.receive(last)
            self.closed.set_result(None)

    def _stderr_data(self, data: bytes) -> None:
        self._stderr.append(data[-_STDERR_KEPT:])
        self._stderr_size += len(self._stderr[-1])
        while self._stderr_size - len(self._stderr[0]) >= _STDERR_KEPT:
            self._stderr_size -= len(self._stderr.popleft())


class _Pipe(asyncio.Protocol):
    """Hands what a pipe yields to functions."""

    def __init__(self, data: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self.data_received = data  # type: ignore[method-assign, assignment]
        self._end = end

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()


def _widen(fd: int) -> None:
    """A larger pipe means fewer wake-ups for large frames; a refusal costs nothing."""
    if sys.platform == "linux":
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass


async def _within(future: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a future that someone else owns, at most so long; whether it is done."""
    await asyncio.wait({future}, timeout=seconds)
    return future.done()
