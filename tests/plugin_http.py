"""Fixtures of the HTTP tests: gateways in this process or as a process, and peers behind them.

`serving` puts a gateway with an HTTP front on a port of its own, `piped` one with a stdio front;
both run on the test's loop, as the program composes them. `serve` starts the program itself.
`upstream` gives config entries for the peer, over any transport.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.http.fronts import HttpFront, PipeFront
from tests.http.peer_http import HttpPeer, SsePeer
from tests.http.wire import BOUND, Wire
from tests.made_stores import make_tables

from mcp_junction.app import Junction
from mcp_junction.config.load import Config, load
from mcp_junction.identity.keys import KeyRing
from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.listener.stdio import StdioListener
from mcp_junction.protocol.names import PLATFORM
from mcp_junction.resilience.clock import Clock
from mcp_junction.service import Service
from mcp_junction.store.store import default_url, open_store
from mcp_junction.tasks import TaskScope
from mcp_junction.vault.vault import Vault

PROGRAM = Path(sys.executable).with_name("mcp-junction")
PEER = Path(__file__).parent / "http" / "peer.py"

Entry = dict[str, Any]


def stdio_entry(**options: Any) -> Entry:
    """A config entry for the peer on stdio; -S because it starts faster."""
    return {"command": sys.executable, "args": ["-E", "-S", str(PEER), json.dumps(options)]}


def write_config(folder: Path, servers: dict[str, Entry], settings: dict[str, Any]) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers, "junction": settings}), "utf-8")
    return path


class Said(logging.Handler):
    """Hears where the service listens."""

    def __init__(self) -> None:
        super().__init__()
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("listening on") and not self.port.done():
            self.port.set_result(record.args[-1])


class Gateway:
    """A gateway with an HTTP front, in this process."""

    def __init__(self, junction: Junction, service: Service, data_dir: Path, port: int) -> None:
        self.junction = junction
        self.service = service
        self.data_dir = data_dir
        self.port = port
        self._fronts: list[HttpFront] = []
        self._wires: list[Wire] = []

    async def front(self, path: str = "/mcp", key: str | None = None, **how: Any) -> HttpFront:
        """A client that has introduced itself and listens."""
        front = await HttpFront.open(self.port, path, key, **how)
        self._fronts.append(front)
        return front

    async def wire(self) -> Wire:
        """A bare connection."""
        wire = await Wire.open(self.port)
        self._wires.append(wire)
        return wire

    async def settled(self) -> None:
        """Wait until every server is up or has failed."""
        async with asyncio.timeout(BOUND):
            for server in list(self.junction.servers.values()):
                await server.settled.wait()  # the junction itself waits only for its lists

    async def leave(self) -> None:
        for front in self._fronts:
            await front.close()
        for wire in self._wires:
            wire.reset()


async def run_service(
    stack: AsyncExitStack,
    config: Config,
    data_dir: Path,
    clock: Clock | None,
    host: str = "127.0.0.1",
    **options: Any,
) -> Gateway:
    """Compose a gateway as `mcp-junction serve` does; it ends with the stack."""
    junction = Junction(config, canonical=PLATFORM, supervised=True, clock=clock)
    await stack.enter_async_context(junction)
    url = make_tables(default_url(data_dir))
    store = await open_store(url, Vault.from_environment({}, data_dir))
    stack.push_async_callback(store.close)
    service = Service(junction, await KeyRing.open(store), host, **options)
    junction.greet()
    stop = asyncio.Event()
    said = Said()
    logging.getLogger("mcp_junction.service").addHandler(said)
    task = asyncio.create_task(service.serve(host, 0, stop))
    try:
        await asyncio.wait({task, said.port}, return_when=asyncio.FIRST_COMPLETED, timeout=BOUND)
    finally:
        logging.getLogger("mcp_junction.service").removeHandler(said)
    if not said.port.done():
        await task
    gateway = Gateway(junction, service, data_dir, said.port.result())

    async def end() -> None:
        await gateway.leave()
        stop.set()
        await asyncio.wait_for(task, BOUND)

    stack.push_async_callback(end)
    return gateway


Serving = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    """Put a gateway with an HTTP front before these servers."""
    async with AsyncExitStack() as stack:

        async def start(
            servers: dict[str, Entry],
            *,
            environ: dict[str, str] | None = None,
            clock: Clock | None = None,
            host: str = "127.0.0.1",
            owner_without_key: bool = False,
            **settings: Any,
        ) -> Gateway:
            config = load(str(write_config(tmp_path, servers, settings)), environ or {}, {})
            options = {"host": host, "owner_without_key": owner_without_key}
            return await run_service(stack, config, tmp_path / "data", clock, **options)

        yield start


Piped = Callable[..., Awaitable[PipeFront]]


@pytest.fixture
async def piped(tmp_path: Path) -> AsyncIterator[Piped]:
    """Put a gateway with a stdio front before these servers; the client on its pipes."""
    async with AsyncExitStack() as stack:

        async def start(
            servers: dict[str, Entry], *, settings: dict[str, Any] | None = None, **how: Any
        ) -> PipeFront:
            config = load(str(write_config(tmp_path, servers, settings or {})), {}, {})
            junction = await stack.enter_async_context(Junction(config))
            calls = TaskScope("calls")
            limit = config.settings.max_line_bytes
            listener = StdioListener(Dispatcher(junction, calls), limit, calls)
            listener.session = junction.open_session(listener.send, listener.offer)
            to_us, theirs = os.pipe()
            from_us, ours = os.pipe()
            await listener.open(to_us, ours)
            front = await PipeFront.open(theirs, from_us, **how)

            async def end() -> None:
                await front.close()
                await asyncio.wait_for(listener.serve(), BOUND)
                await calls.close()
                await listener.close()

            stack.push_async_callback(end)
            return front

        yield start


Upstreams = Callable[..., Awaitable[Entry]]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstreams]:
    """A config entry for the peer over a transport: stdio, http or sse."""
    async with AsyncExitStack() as stack:

        async def start(transport: str, **options: Any) -> Entry:
            if transport == "stdio":
                return stdio_entry(**options)
            kind = HttpPeer if transport == "http" else SsePeer
            peer = await stack.enter_async_context(kind(**options))
            return {"type": transport, "url": peer.url}

        yield start


class Program:
    """`mcp-junction serve`, as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.errors = ""
        self.port = 0
        self.is_killed = False
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self._fronts: list[HttpFront] = []
        self._wires: list[Wire] = []

    async def _read(self) -> None:
        while self.process.stderr and (line := await self.process.stderr.readline()):
            self.errors += line.decode("utf-8", "replace")
            self._news.set()
        self._news.set()

    async def said(self, words: str) -> str:
        """Wait until stderr holds these words; the line that does."""
        async with asyncio.timeout(BOUND):
            while words not in self.errors:
                assert not self._reading.done(), f"it has ended:\n{self.errors}"
                self._news.clear()
                await self._news.wait()
        return next(line for line in self.errors.splitlines() if words in line)

    async def front(self, path: str = "/mcp", key: str | None = None, **how: Any) -> HttpFront:
        front = await HttpFront.open(self.port, path, key, **how)
        self._fronts.append(front)
        return front

    async def wire(self) -> Wire:
        wire = await Wire.open(self.port)
        self._wires.append(wire)
        return wire

    async def get(self, path: str, **headers: str) -> Any:
        """A GET on a connection of its own."""
        wire = await self.wire()
        wire.request("GET", path, **headers)
        return await wire.response()

    async def ready(self) -> None:
        """Ask until it says that it is."""
        async with asyncio.timeout(BOUND):
            while (await self.get("/readyz")).status != 200:  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.05)

    async def ended(self) -> int:
        """Wait for its end; the exit status."""
        async with asyncio.timeout(BOUND):
            await self._reading
            return await self.process.wait()

    async def kill(self) -> None:
        """End it without a word."""
        self.is_killed = True
        self.process.kill()
        await self.ended()
        await self._leave()

    async def _leave(self) -> None:
        for front in self._fronts:
            await front.close()
        for wire in self._wires:
            wire.reset()

    async def stop(self) -> int:
        await self._leave()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return await self.ended()
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()


Serve = Callable[..., Awaitable[Program]]


@pytest.fixture
async def serve(tmp_path: Path, executable: list[str]) -> AsyncIterator[Serve]:
    """Start `mcp-junction serve` on these servers; it must end well when it is told to."""
    running: list[Program] = []

    async def start(
        servers: dict[str, Entry] | None,
        *options: str,
        listens: bool = True,
        env: dict[str, str] | None = None,
        stderr: int = asyncio.subprocess.PIPE,
        **settings: Any,
    ) -> Program:
        file = []
        if servers is not None:
            file = ["--config", str(write_config(tmp_path, servers, settings))]
        data = ["--data-dir", str(tmp_path / "data")]
        given = {
            key: value
            for key, value in os.environ.items()
            if "JUNCTION_" not in key or key == "JUNCTION_DUMPABLE"
        }
        process = await asyncio.create_subprocess_exec(
            *[*executable, "serve", *file, "--port", "0", *data, *options],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=stderr,
            env=given | (env or {}),
        )
        program = Program(process)
        if listens:
            running.append(program)
            line = await program.said("listening on")
            program.port = int(line.rpartition(":")[2].partition("/")[0])
        return program

    yield start
    for program in running:
        if program.is_killed:
            continue
        status = await program.stop()
        assert status == 0, program.errors
        assert "Traceback" not in program.errors, program.errors
