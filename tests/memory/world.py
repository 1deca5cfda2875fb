"""A gateway with every front before servers of every kind, on a loop of its own, to be looked into.

Clients and servers are other processes: whatever is left in this one is the gateway's.
"""

import asyncio
import gc
import json
import os
import sys
import tracemalloc
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import CoroutineType, FrameType, FunctionType
from typing import Any

from tests.plugin_rest import _SqliteOpener, serve_api

from mcp_junction.app import Junction
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.config.load import Config, load
from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.listener.pipe import PipeClient
from mcp_junction.listener.stateless import StatelessDispatcher
from mcp_junction.listener.stdio import StdioListener
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.upstream import Upstream
from mcp_junction.vault.vault import Vault

HERE = Path(__file__).parent
BOUND = 20.0
FRONTS = ("http-old", "http-new", "stdio-old", "stdio-new", "rest")
UPSTREAMS = (
    "stdio-old", "stdio-new", "json-old", "json-new", "events-old", "events-new", "older",
)  # fmt: skip
KINDS = ("answer", "error", "cancel", "timeout", "lost", "question", "progress")
LARGE = 4 * 1024
"""Bytes from which on a piece of memory may be a part of a result."""
LATE_MS = 100
"""How long the calls may last that are to time out; those have servers of their own."""

Entry = dict[str, Any]


class Left:
    """What calls have left behind: what only the collector finds, and how much is held."""

    def __init__(self, garbage: list[Any], held: tracemalloc.Snapshot) -> None:
        self.kinds = Counter(_name(found) for found in _of_calls(garbage))
        held = held.filter_traces([tracemalloc.Filter(False, "*importlib*")])
        self.large = [trace for trace in held.traces if trace.size >= LARGE]
        self.held = sum(trace.size for trace in self.large)


def _of_calls(garbage: list[Any]) -> list[Any]:
    """Garbage without the servers that were left: a life of a server is no call, and holds none.

    They are made of parts that know each other; what they hold besides is measured by its size.
    """
    known = {id(found): found for found in garbage}
    todo = [found for found in garbage if isinstance(found, Upstream)]
    while todo:
        todo = [r for r in gc.get_referents(*todo) if known.pop(id(r), None) is not None]
    return [found for found in known.values() if not isinstance(found, Upstream)]


def _name(found: Any) -> str:
    """A word for one piece of garbage that says where it was made."""
    if isinstance(found, FrameType):
        return f"frame of {found.f_code.co_qualname} ({found.f_code.co_filename[-40:]})"
    if isinstance(found, CoroutineType | FunctionType):
        return f"{type(found).__name__} {found.__qualname__}"
    kind = type(found)
    return f"{kind.__module__}.{kind.__qualname__}"


def entries(http: int, hanging: Path) -> dict[str, Entry]:
    """Every kind of server, and each once more for calls that are to time out."""
    found: dict[str, Entry] = {}
    for kind in UPSTREAMS:
        way, _, era = kind.partition("-")
        if way == "stdio":
            args = ["-S", str(HERE / "upstream.py"), "stdio", era]
            entry = {"command": sys.executable, "args": args, "env": {"HANGING": str(hanging)}}
        elif way == "older":
            entry = {"type": "sse", "url": f"http://127.0.0.1:{http}/older"}
        else:
            entry = {"type": "http", "url": f"http://127.0.0.1:{http}/{era}/{way}"}
        found[kind] = entry
        found[f"{kind}-late"] = {**entry, "timeout": LATE_MS}
    return found


class World:
    """Everything under test, started once for all of its cells."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self._warm: set[tuple[str, str, str]] = set()

    async def open(self) -> None:
        hanging = self._folder / "hanging"
        python, server = sys.executable, str(HERE / "upstream.py")
        env = {**os.environ, "HANGING": str(hanging)}
        _, port = await self._start([python, "-S", server, "http"], env)
        config = self._config(entries(int(port), hanging))
        opener = _SqliteOpener(self._stack, self._folder / "data", Vault([bytes(range(32))]))
        self.served = await serve_api(self._stack, opener, config, ("admin",))
        fds = [*await self._piped(config), *await self._piped(config)]
        await asyncio.wait_for(self.served.junction.wait_until_settled(), BOUND)
        given = [str(self.served.port), self.served.keys["admin"], str(hanging), json.dumps(fds)]
        driver = [python, "-S", str(HERE / "driver.py"), *given]
        self._driver, _ = await self._start(driver, dict(os.environ), fds, says=False)
        for fd in fds:
            os.close(fd)
        for front in FRONTS:  # what is imported late is imported now
            await self.call(front, "stdio-old", "answer", 1)

    async def _start(
        self, argv: list[str], env: dict[str, str], fds: list[int] | None = None, says: bool = True
    ) -> tuple[asyncio.subprocess.Process, str]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, env=env, pass_fds=fds or ()
        )

        async def end() -> None:
            process.kill()
            await process.wait()

        self._stack.push_async_callback(end)
        assert process.stdout is not None
        first = await asyncio.wait_for(process.stdout.readline(), BOUND) if says else b""
        return process, first.decode().strip()

    def _config(self, servers: dict[str, Entry]) -> Config:
        path = self._folder / "mcp.json"
        path.write_text(
            json.dumps({"mcpServers": servers, "junction": {"classifier": "off"}}), "utf-8"
        )
        return load(str(path), {}, {})

    async def _piped(self, config: Config) -> tuple[int, int]:
        """A gateway with a stdio front; the client's ends of its pipes."""
        junction = await self._stack.enter_async_context(Junction(config, supervised=True))
        calls = TaskScope("calls")
        self._stack.push_async_callback(calls.close)
        stateless = StatelessDispatcher(junction)
        listener = StdioListener(
            Dispatcher(junction, calls),
            config.settings.max_line_bytes,
            calls,
            lambda wire: PipeClient(stateless, LOCAL_OWNER, EVERYTHING, wire, calls),
        )
        listener.session = junction.open_session(listener.send, listener.offer)
        to_us, theirs = os.pipe()
        from_us, ours = os.pipe()
        await listener.open(to_us, ours)
        self._stack.push_async_callback(listener.close)
        return from_us, theirs

    async def close(self) -> None:
        gc.unfreeze()
        await self._stack.aclose()

    # -- calls

    async def call(self, front: str, upstream: str, kind: str, times: int) -> None:
        """Have so many calls made, one after the other; each must end as its kind should."""
        server = f"{upstream}-late" if kind == "timeout" else upstream
        job = {"front": front, "server": server, "kind": kind, "times": times}
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps(job).encode() + b"\n")
        said = await asyncio.wait_for(self._driver.stdout.readline(), BOUND)
        assert said == b"done\n", said.decode()
        await self._settle()

    async def _settle(self) -> None:
        """Let what has ended go: tasks take a turn, the audit a flush."""
        await self.served.audit.flush()
        for _ in range(2):  # what a client may yet ask for again is kept from one sweep to the next
            self.served.service._registry.sweep()
        for _ in range(20):
            await asyncio.sleep(0)

    async def left_by(self, front: str, upstream: str, kind: str, times: int) -> Left:
        """What is left by so many calls that nobody has collected."""
        await self.call(front, upstream, kind, 1)  # links are made, caches filled
        gc.collect()
        gc.freeze()  # what is there now is not looked through again
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        tracemalloc.start(4)
        try:
            await self.call(front, upstream, kind, times)
            gc.collect()
            return Left(gc.garbage, tracemalloc.take_snapshot())
        finally:
            tracemalloc.stop()
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
