"""Our end of the warden: start programs through it, signal them, learn how they ended.

The warden process itself is ``warden_main.py``. What is promised, on Linux:

- While it lives, whatever a server started goes with the server or with us, also what has left its
  session, lost its parent or (with us, not with the server) dropped its environment.
- When it is killed, the servers go by their parent-death signal, which is reported as their exit;
  what they had started is swept up from here, all but what has dropped its environment. The next
  start gets a new warden.
- When it is killed together with us, the servers themselves go, and what reads their pipes sees an
  end. A grandchild that does not read is left: nobody is there to end it.
"""

from __future__ import annotations

import array
import asyncio
import errno
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

_PROGRAM = str(Path(__file__).with_name("warden_main.py"))
_SEND_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Orders:
    """What to start, and on which file descriptors."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None
    stdin: int
    stdout: int
    stderr: int


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
        self._warden.tell({"do": "signal", "child": self._number, "signal": number})

    def kill(self) -> None:
        """End it and everything it started."""
        self._warden.tell({"do": "kill", "child": self._number})


class Warden:
    """Starts the warden process when it is first needed, and talks to it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._wards: dict[int, Ward] = {}
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._token = ""
        self._buffer = b""

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self, orders: Orders) -> Ward:
        """Start a program. Raises OSError."""
        self._ensure()
        number = next(self._numbers)
        ward = self._wards[number] = Ward(self, number)
        message = {
            "do": "start",
            "child": number,
            "argv": list(orders.argv),
            "env": dict(orders.env),
            "cwd": orders.cwd,
        }
        self.tell(message, (orders.stdin, orders.stdout, orders.stderr))
        await ward.pid
        return ward

    def tell(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        if self._sock is None:
            return
        data = msgspec.json.encode(message)
        data = struct.pack("!I", len(data)) + data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._sock.sendmsg([data], rights)
            self._sock.sendall(data[sent:])
        except OSError:
            self._lost()

    async def close(self) -> None:
        """End all wards and the warden, and wait for it."""
        process = self._process
        if process is None:
            return
        self._disconnect()
        for _ in range(700):  # it needs a moment of grace for the wards, then it goes by itself
            if process.poll() is not None:
                break
            await asyncio.sleep(0.01)
        else:
            process.kill()
            process.wait()
        self._lost()

    def _ensure(self) -> None:
        if self._sock is not None:
            return
        ours, theirs = socket.socketpair()
        self._token = os.urandom(8).hex()
        argv = [sys.executable, "-I", "-S", _PROGRAM, str(theirs.fileno()), self._token]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env={"PATH": os.defpath},
        )
        theirs.close()
        ours.settimeout(_SEND_TIMEOUT)
        self._sock = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._readable)

    def _readable(self) -> None:
        assert self._sock is not None
        try:
            data = self._sock.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack("!I", self._buffer[:4])
            if len(self._buffer) < 4 + size:
                break
            message = msgspec.json.decode(self._buffer[4 : 4 + size])
            self._buffer = self._buffer[4 + size :]
            self._told(message)

    def _told(self, message: dict[str, Any]) -> None:
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
            if not ward.exited.done():
                ward.exited.set_result(message["exit"])

    def _disconnect(self) -> None:
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
        self._buffer = b""

    def _lost(self) -> None:
        """The warden is gone, and so are its wards."""
        self._disconnect()
        wards, self._wards = self._wards, {}
        for ward in wards.values():
            if not ward.pid.done():
                ward.pid.set_exception(OSError(errno.ECHILD, "the warden process has ended"))
            if not ward.exited.done():
                ward.exited.set_result(-signal.SIGKILL)
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.kill()  # it has let go of its socket, or does not read it: no use as it is
                process.wait()
            if process.returncode != 0:
                from mcp_junction.upstream.warden_main import sweep  # else only the warden needs it

                sweep(self._token)
