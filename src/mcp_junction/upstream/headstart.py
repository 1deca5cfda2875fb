"""Headstart: the warden and the servers, started before there is an event loop.

What a server needs to start is known once the config is read; what we need to serve takes longer
to import than that. So the programs are started first, on pipes that the links take over later, and
the warden before them, so that it is ready when the config is. Neither this nor what reads a config
may import asyncio or msgspec, or the head start would be gone: a test says so.
"""

from __future__ import annotations

import array
import marshal
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_junction.errors import ServerError

if TYPE_CHECKING:
    from mcp_junction.config.load import Config
    from mcp_junction.config.servers import ServerDefinition

# Imported, not run as a script: a script is compiled anew each time.
_PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); import warden_main; warden_main.main()"
_HERE = os.path.dirname(__file__)
_SEND_TIMEOUT = 5.0
_DUMPABLE = "JUNCTION_DUMPABLE"


class StartOrder(NamedTuple):
    """What to start, and on which file descriptors."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None
    stdin: int
    stdout: int
    stderr: int

    def message(self, number: int) -> dict[str, Any]:
        return {
            "do": "start",
            "child": number,
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
        }

    @property
    def fds(self) -> tuple[int, int, int]:
        return self.stdin, self.stdout, self.stderr


class Pipes(NamedTuple):
    """Our ends of a program's three pipes."""

    stdin: int
    stdout: int
    stderr: int

    def close(self) -> None:
        for fd in self:
            os.close(fd)


class WardenProcess(NamedTuple):
    """A warden that runs, and how to talk to it."""

    sock: socket.socket
    process: subprocess.Popen[bytes]
    token: str

    def tell(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Raises OSError when it does not listen any more."""
        data = marshal.dumps(message)
        data = struct.pack("!I", len(data)) + data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.sock.sendmsg([data], rights)
        self.sock.sendall(data[sent:])

    def dismiss(self) -> None:
        """End it when it has nothing to look after; nobody has to wait until it hears of it."""
        self.sock.close()
        self.process.kill()
        self.process.wait()


class Headstart(NamedTuple):
    """A warden, and the programs it was told to start: their numbers and our ends of the pipes."""

    warden: WardenProcess
    started: dict[str, tuple[int, Pipes]]


def start_warden() -> WardenProcess:
    ours, theirs = socket.socketpair()
    token = os.urandom(8).hex()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, _HERE, str(theirs.fileno()), token],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
        env={"PATH": os.defpath, _DUMPABLE: os.environ.get(_DUMPABLE, "")},
    )
    theirs.close()
    ours.settimeout(_SEND_TIMEOUT)
    return WardenProcess(ours, process, token)


def prepare_start(definition: ServerDefinition, env: Mapping[str, str]) -> tuple[StartOrder, Pipes]:
    """The orders to start a server, and our ends of its pipes. Raises ServerError."""
    from mcp_junction.upstream.child_env import find_command  # as below

    argv = (find_command(definition, env), *definition.args)
    child_in, our_in = os.pipe()
    our_out, child_out = os.pipe()
    our_err, child_err = os.pipe()
    orders = StartOrder(argv, env, definition.cwd, child_in, child_out, child_err)
    return orders, Pipes(our_in, our_out, our_err)


def head_start(
    config: Config, environ: Mapping[str, str], warden: WardenProcess
) -> Headstart | None:
    """Start every stdio server of a config; one that cannot be found is left for its own report.

    A warden that has nothing to do is dismissed.
    """
    # Not above: the warden is started first, and what reads a config is imported while it starts.
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
            orders, pipes = prepare_start(definition, env)
        except ServerError:
            continue
        warden.tell(orders.message(number), orders.fds)
        for fd in orders.fds:
            os.close(fd)
        started[definition.key] = (number, pipes)
    return Headstart(warden, started)
