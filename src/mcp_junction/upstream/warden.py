"""Warden: our end of the warden process: starts and signals programs, and learns how they ended.

The warden process itself is ``warden_main.py``. It guarantees, on Linux:

- While it runs, every process that a server started ends with the server or with us, also one that
  left its session, lost its parent or (with us, not with the server) cleared its environment.
- When it is killed, the servers end by their parent-death signal, which is reported as their exit.
  The processes they had started are killed from here, except those that cleared their environment.
  The next start makes a new warden.
- When it is killed together with us, the servers end, and processes that read their pipes see the
  end of file. A grandchild that does not read remains.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import marshal
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.tasks import resolve
from mcp_junction.upstream.headstart import (
    Headstart,
    Pipes,
    WardenProcess,
    start_program,
    start_warden,
)


class Ward:
    """One program in the warden's care."""

    __slots__ = ("_number", "_warden", "exited", "pid")

    def __init__(self, warden: Warden, number: int) -> None:
        self._warden = warden
        self._number = number
        loop = asyncio.get_running_loop()
        self.pid: asyncio.Future[int] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        self._warden.send({"do": "signal", "child": self._number, "signal": int(number)})

    def kill(self) -> None:
        """End it and everything it started."""
        self._warden.send({"do": "kill", "child": self._number})


class Warden:
    """Starts the warden process when it is first needed, and talks to it."""

    def __init__(self, headstart: Headstart | None = None) -> None:
        self._wards: dict[int, Ward] = {}
        self._running: WardenProcess | None = None
        self._buffer = b""
        self._started: dict[str, tuple[Ward, Pipes]] = {}
        if headstart is not None:
            self._adopt(headstart)
        self._numbers = itertools.count(len(self._started) + 1_000)

    def _adopt(self, headstart: Headstart) -> None:
        """Take over the programs that were started before there was an event loop."""
        for key, (number, pipes) in headstart.started.items():
            ward = self._wards[number] = Ward(self, number)
            self._started[key] = (ward, pipes)
        self._connect(headstart.warden)

    async def start(
        self, definition: ServerDefinition, env: Mapping[str, str]
    ) -> tuple[Ward, Pipes]:
        """Start a server's program, unless it has the head start. Raises OSError, ServerError."""
        if definition.key in self._started:
            ward, pipes = self._started.pop(definition.key)
        else:
            ward, pipes = self._start(definition, env)
        try:
            await ward.pid
        except OSError:
            pipes.close()
            raise
        except asyncio.CancelledError:  # nobody waits for the program any more
            pipes.close()
            ward.kill()
            raise
        return ward, pipes

    def _start(self, definition: ServerDefinition, env: Mapping[str, str]) -> tuple[Ward, Pipes]:
        number = next(self._numbers)
        ward = Ward(self, number)

        def send(order: dict[str, Any], fds: Sequence[int]) -> None:
            if self._running is None:
                self._connect(start_warden())
            self._wards[number] = ward
            try:
                self.send(order, fds)
            except OSError:
                del self._wards[number]
                raise

        return ward, start_program(number, definition, env, send)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message to the warden process, if it runs.

        Raises OSError when the system takes no more descriptors; then nothing was sent.
        """
        if self._running is not None:
            try:
                self._running.send(message, fds)
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # it has not read the orders before
                    raise
                self._on_lost()

    async def close(self) -> None:
        """End all wards and the warden, and wait for it."""
        for _, pipes in self._started.values():
            pipes.close()
        self._started.clear()
        if self._running is None:
            return
        process = self._running.process
        self._disconnect()
        for _ in range(700):  # it gives the wards some time, and then exits by itself
            if process.poll() is not None:
                break
            await asyncio.sleep(0.01)
        else:
            process.kill()
            process.wait()
        self._on_lost()

    def _connect(self, warden: WardenProcess) -> None:
        self._running = warden
        asyncio.get_running_loop().add_reader(warden.sock.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        assert self._running is not None
        try:
            data = self._running.sock.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_lost()
            return
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack("!I", self._buffer[:4])
            if len(self._buffer) < 4 + size:
                break
            message = marshal.loads(self._buffer[4 : 4 + size])
            self._buffer = self._buffer[4 + size :]
            self._handle(message)

    def _handle(self, message: dict[str, Any]) -> None:
        ward = self._wards.get(message["child"])
        if ward is None:
            return
        if "pid" in message and not ward.pid.done():
            ward.pid.set_result(message["pid"])
        elif "error" in message:
            del self._wards[message["child"]]
            if not ward.pid.done():
                ward.pid.set_exception(OSError(message["errno"], message["error"]))
        elif "exit" in message:
            del self._wards[message["child"]]
            resolve(ward.exited, message["exit"])

    def _disconnect(self) -> None:
        if self._running is not None and self._running.sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._running.sock.fileno())
            self._running.sock.close()
        self._buffer = b""

    def _on_lost(self) -> None:
        """Report the end of all wards, because the warden process has ended."""
        self._disconnect()
        wards, self._wards = self._wards, {}
        for ward in wards.values():
            if not ward.pid.done():
                ward.pid.set_exception(OSError(errno.ECHILD, "the warden process has ended"))
            resolve(ward.exited, -signal.SIGKILL)
        running, self._running = self._running, None
        if running is not None:
            process = running.process
            if process.poll() is None:
                process.kill()  # it has closed its socket, or does not read it
                process.wait()
            if process.returncode != 0:
                from mcp_junction.upstream.warden_main import (
                    kill_marked,  # else only the warden needs it
                )

                kill_marked(running.token)
