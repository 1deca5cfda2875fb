"""Headstart: starts the warden and the servers' programs before there is an event loop.

Importing what we need to serve takes longer than reading the config. So the programs are started
first, on pipes that the links take over later, and the warden before them, while the config is
read. Neither this module nor what reads the config may import asyncio or msgspec, which would cost
the head start; a test checks that.
"""

from __future__ import annotations

import array
import errno
import marshal
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_junction.errors import ServerError

if TYPE_CHECKING:
    from mcp_junction.config.load import Config
    from mcp_junction.config.servers import ServerDefinition

# Imported, not run as a script: a script is compiled anew each time.
_PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); import warden_main; warden_main.main()"
_HERE = os.path.dirname(__file__)
_SEND_TIMEOUT = 5.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)
"""What the system reports for want of descriptors: nothing was sent then."""
_DUMPABLE = "JUNCTION_DUMPABLE"


class Pipes(NamedTuple):
    """Our ends of a program's three pipes."""

    stdin: int
    stdout: int
    stderr: int

    def close(self) -> None:
        for fd in self:
            os.close(fd)


class WardenProcess(NamedTuple):
    """A running warden and the socket to it."""

    sock: socket.socket
    process: subprocess.Popen[bytes]
    token: str

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message with file descriptors. Raises OSError when the warden has ended."""
        data = marshal.dumps(message)
        data = struct.pack("!I", len(data)) + data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.sock.sendmsg([data], rights)
        self.sock.sendall(data[sent:])

    def dismiss(self) -> None:
        """End a warden, and what it has started, which ends with it."""
        self.sock.close()
        self.process.kill()
        self.process.wait()


Send = Callable[[dict[str, Any], Sequence[int]], None]


class Headstart(NamedTuple):
    """A warden, and the programs that it starts, by server: their numbers and our ends of pipes."""

    warden: WardenProcess
    started: dict[str, tuple[int, Pipes]]


def start_warden() -> WardenProcess:
    """Start a warden process. Raises OSError."""
    ours, theirs = socket.socketpair()
    token = os.urandom(8).hex()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, _HERE, str(theirs.fileno()), token],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env={"PATH": os.defpath, _DUMPABLE: os.environ.get(_DUMPABLE, "")},
        )
    except OSError:  # too many files are open, say
        ours.close()
        raise
    finally:
        theirs.close()
    ours.settimeout(_SEND_TIMEOUT)
    return WardenProcess(ours, process, token)


def start_program(
    number: int, definition: ServerDefinition, env: Mapping[str, str], send: Send
) -> Pipes:
    """Send the order to start a server's program, and return our ends of its pipes.

    Raises ServerError when the program cannot be found.
    """
    from mcp_junction.upstream.child_env import find_command  # as below

    argv = [find_command(definition, env), *definition.args]
    order = {"do": "start", "child": number, "argv": argv, "env": dict(env), "cwd": definition.cwd}
    ends: list[int] = []
    try:
        for _ in range(3):
            ends += os.pipe()
        child_in, our_in, our_out, child_out, our_err, child_err = ends
        send(order, (child_in, child_out, child_err))
    except OSError:  # too many files are open, say
        for fd in ends:
            os.close(fd)
        raise
    for fd in (child_in, child_out, child_err):
        os.close(fd)
    return Pipes(our_in, our_out, our_err)


def head_start(
    config: Config, environ: Mapping[str, str], warden: WardenProcess
) -> Headstart | None:
    """Start every stdio server of a config; one that cannot be started is tried again later.

    The error is reported then. A warden that has nothing to do, or that does not take its orders,
    is dismissed.
    """
    # Not imported above, so that the warden starts before the modules for configs are imported.
    from mcp_junction.upstream.child_env import child_env

    servers = [
        server for server in config.servers if server.transport == "stdio" and not server.fault
    ]
    if not servers:
        warden.dismiss()
        return None
    started: dict[str, tuple[int, Pipes]] = {}
    for number, definition in enumerate(servers, 1):
        inherit = config.settings.inherit_env
        env = child_env(definition, environ, config.identity, inherit=inherit)
        try:
            pipes = start_program(number, definition, env, warden.send)
        except ServerError:
            continue
        except OSError as error:
            if error.errno in _EXHAUSTED:
                continue
            for _, others in started.values():
                others.close()
            warden.dismiss()  # it has ended, or may have half of an order
            return None
        started[definition.key] = (number, pipes)
    return Headstart(warden, started)
