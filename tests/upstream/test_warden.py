"""The warden refuses what it has no descriptors for, and goes on with the servers that it has."""

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
from contextlib import asynccontextmanager, contextmanager

import pytest
from tests.http.links import Ears

from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import DEFAULTS
from mcp_junction.upstream import headstart, warden
from mcp_junction.upstream.headstart import WardenProcess, head_start, start_warden
from mcp_junction.upstream.stdio import StdioLink
from mcp_junction.upstream.warden import Warden

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")

BOUND = 20.0
FREE = 6
"""The lowest number that is free in a warden: it has three streams, two ends of a pipe, a spare."""
WAIT = "import sys; print(1, flush=True); sys.stdin.read()"
STRAY = """
import os, sys
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    while True:
        __import__("signal").pause()
sys.stdin.read()
"""


def running(key: str, program: str = WAIT) -> ServerDefinition:
    return ServerDefinition(key, "stdio", command=sys.executable, args=("-I", "-S", "-c", program))


@asynccontextmanager
async def opened():
    """A warden, and a limit that can be set on its descriptors."""
    made = Warden()
    try:
        yield made
    finally:
        await made.close()


@contextmanager
def limited(warden: Warden, limit: int):
    assert warden._running is not None
    pid = warden._running.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def read_line(fd: int) -> bytes:
    async with asyncio.timeout(BOUND):
        return await asyncio.to_thread(os.read, fd, 100)


@pytest.mark.parametrize("free", range(5))
async def test_a_start_without_descriptors_is_refused_and_the_rest_goes_on(free):
    """None, one or two of the three pipes arrive; or all, and none is left for its own pipe."""
    before = os.listdir("/proc/self/fd")
    async with opened() as warden, asyncio.timeout(BOUND):
        first, pipes = await warden.start(running("first"), {})
        assert await read_line(pipes.stdout) == b"1\n"
        held = os.listdir("/proc/self/fd")
        with limited(warden, FREE + free):
            for key in ("second", "third"):
                with pytest.raises(OSError, match="too many files are open in the process") as told:
                    await warden.start(running(key), {})
                assert told.value.errno == errno.EMFILE
        assert sorted(os.listdir("/proc/self/fd")) == sorted(held), "what it had opened is closed"
        last, more = await warden.start(running("last"), {})
        assert await read_line(more.stdout) == b"1\n"
        assert not first.exited.done()
        pipes.close()
        more.close()
        assert await first.exited == await last.exited == 0
    assert sorted(os.listdir("/proc/self/fd")) == sorted(before)


async def test_a_server_ends_with_all_that_it_started_while_no_descriptor_is_left():
    async with opened() as warden, asyncio.timeout(BOUND):
        ward, pipes = await warden.start(running("one", STRAY), {})
        assert await read_line(pipes.stdout)
        with limited(warden, FREE):
            ward.kill()
            assert await ward.exited == -signal.SIGKILL
            assert await read_line(pipes.stdout) == b"", "the stray held this pipe, too"
        pipes.close()
        _, more = await warden.start(running("two"), {})
        assert await read_line(more.stdout) == b"1\n"
        more.close()


async def test_a_start_that_the_system_does_not_take_ends_no_other(monkeypatch):
    """The system limits the descriptors that are sent and not received yet."""
    send = WardenProcess.send

    def refuse(self, message, fds=()):
        if fds:
            raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")
        send(self, message, fds)

    async with opened() as warden, asyncio.timeout(BOUND):
        first, pipes = await warden.start(running("first"), {})
        with monkeypatch.context() as broken:
            broken.setattr(WardenProcess, "send", refuse)
            with pytest.raises(OSError, match="Too many references"):
                await warden.start(running("second"), {})
        assert not first.exited.done()
        _, more = await warden.start(running("third"), {})
        assert await read_line(more.stdout) == b"1\n"
        pipes.close()
        more.close()


async def test_a_warden_that_cannot_be_started_leaves_nothing_open(monkeypatch):
    def fail(*args, **more):
        raise OSError(errno.EMFILE, "Too many open files")

    before = os.listdir("/proc/self/fd")
    made = []
    pair = socket.socketpair
    monkeypatch.setattr(socket, "socketpair", lambda: made.append(pair()) or made[-1])
    monkeypatch.setattr(headstart.subprocess, "Popen", fail)
    with pytest.raises(OSError, match="Too many open files"):
        await warden.Warden().start(running("one"), {})
    assert sorted(os.listdir("/proc/self/fd")) == sorted(before)


async def test_a_head_start_without_descriptors_is_made_up_for_later(monkeypatch):
    def exhausted():
        raise OSError(errno.EMFILE, "Too many open files")

    process = start_warden()
    with monkeypatch.context() as broken:
        broken.setattr(os, "pipe", exhausted)
        config = Config("x", (running("one"),), DEFAULTS, "identity", {})
        made = Warden(head_start(config, {}, process))
    try:
        _, pipes = await made.start(running("one"), {})
        assert await read_line(pipes.stdout) == b"1\n"
        pipes.close()
    finally:
        await made.close()


async def test_a_warden_that_does_not_take_its_orders_is_dismissed(monkeypatch):
    """It may have half of an order, and would take the next one for the rest of that."""
    before = os.listdir("/proc/self/fd")
    process, count = start_warden(), iter(range(3))
    send = WardenProcess.send

    def stall(self, message, fds=()):
        if next(count):
            raise TimeoutError("timed out")
        send(self, message, fds)

    with monkeypatch.context() as broken:
        broken.setattr(WardenProcess, "send", stall)
        servers = tuple(map(running, ("one", "two", "three")))
        assert head_start(Config("x", servers, DEFAULTS, "identity", {}), {}, process) is None
    assert next(count) == 2
    assert process.process.returncode is not None
    assert sorted(os.listdir("/proc/self/fd")) == sorted(before)
    async with opened() as warden, asyncio.timeout(BOUND):
        _, pipes = await warden.start(running("one"), {})
        assert await read_line(pipes.stdout) == b"1\n"
        pipes.close()


@pytest.mark.parametrize("taken", range(3))
async def test_a_start_that_is_cancelled_while_its_pipes_are_taken_closes_them(taken, monkeypatch):
    loop = asyncio.get_running_loop()
    count = iter(range(3))

    def cancelling(connect):
        def instead(*given):
            if next(count) == taken:
                starting.cancel()
            return connect(*given)

        return instead

    async with opened() as warden, asyncio.timeout(BOUND):
        _, pipes = await warden.start(running("first"), {})
        before = os.listdir("/proc/self/fd")
        link = StdioLink(running("second"), Ears(), 1000)
        with monkeypatch.context() as broken:
            for name in ("connect_write_pipe", "connect_read_pipe"):
                broken.setattr(loop, name, cancelling(getattr(loop, name)))
            starting = asyncio.ensure_future(link.start({}, warden))
            await asyncio.wait({starting})
        assert starting.cancelled()
        for _ in range(3):  # transports close their files in one of the next turns
            await asyncio.sleep(0)
        assert sorted(os.listdir("/proc/self/fd")) == sorted(before)
        pipes.close()
