"""Fixtures of the black-box tests: the real program as a process, and servers that do as told.

`junction` starts the program on stdin and stdout; when the test is over its input is closed, and it
must end with status 0, must have written nothing but frames, and no traceback. `program` runs it to
its end. Where a module is marked `preloaded`, both fork it (`preloaded.py`) instead of starting it
anew. `scripted` gives config entries for the server in `journeys/servers/scripted.py`.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import preloaded
from tests.journeys.client import BOUND, Client

PROGRAM = Path(sys.executable).with_name("mcp-junction")
SERVERS = Path(__file__).parent / "journeys" / "servers"

Entry = dict[str, Any]


def python_server(name: str, *args: str) -> Entry:
    """A config entry for a script in `journeys/servers`; -S because it starts faster."""
    script = str(SERVERS / f"{name}.py")
    return {"command": sys.executable, "args": ["-E", "-S", script, *args]}


def scripted(*tools: str, **options: Any) -> Entry:
    """A config entry for the scripted server; without names it lists every behaviour it has."""
    chosen = {"tools": list(tools), **options} if tools else options
    # A dollar would be taken for a variable.
    return python_server("scripted", json.dumps(chosen).replace("$", "$$"))


def own_environment(extra: Mapping[str, str | None] = {}) -> dict[str, str]:
    """Our environment without settings of Junction's, and with ``extra``; None takes one away."""
    ours = ("JUNCTION_", "MCP_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    env.update((key, value) for key, value in extra.items() if value is not None)
    return {key: value for key, value in env.items() if extra.get(key, value) is not None}


class Configs:
    """Writes config files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, servers: Any, name: str = "mcp.json", **settings: Any) -> Path:
        """The path of a file with these servers, and these settings of Junction's own."""
        document = {"mcpServers": servers}
        if settings:
            document["junction"] = settings
        return self.text(json.dumps(document, ensure_ascii=False), name)

    def text(self, text: str, name: str = "mcp.json") -> Path:
        path = self.folder / name
        path.write_text(text, "utf-8")
        return path


@pytest.fixture
def config(tmp_path: Path) -> Configs:
    """Write a config file."""
    return Configs(tmp_path)


@pytest.fixture
def executable(request: pytest.FixtureRequest) -> list[str]:
    """The words that start the program."""
    if request.node.get_closest_marker("preloaded") is not None:
        return preloaded.program()
    return [str(PROGRAM)]


class Runs:
    """Runs the program to its end."""

    def __init__(self, executable: list[str]) -> None:
        self.executable = executable

    def __call__(
        self,
        *arguments: str | Path,
        stdin: str = "",
        env: Mapping[str, str | None] = {},
    ) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [*self.executable, *map(str, arguments)],
            input=stdin,
            env=own_environment(env),
            capture_output=True,
            encoding="utf-8",
            timeout=BOUND,
        )
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended

    def refused(self, *arguments: str | Path, **how: Any) -> str:
        """What it complains about when it is called wrongly, on stderr and nowhere else."""
        ended = self(*arguments, **how)
        assert (ended.returncode, ended.stdout) == (2, ""), ended
        return ended.stderr


@pytest.fixture
def program(executable: list[str]) -> Runs:
    """Run the program with these arguments until it ends."""
    return Runs(executable)


Start = Callable[..., Awaitable[Client]]


@pytest.fixture
async def launch(config: Configs, executable: list[str]) -> AsyncIterator[Start]:
    """Start the program on a config file, or on servers, without a word to it.

    ``exit`` is the status it must end with, once its input is closed.
    """
    running: list[tuple[Client, int]] = []

    async def start(
        servers: dict[str, Entry] | Path,
        *options: str | Path,
        env: Mapping[str, str | None] = {},
        exit: int = 0,
        command: tuple[str, ...] = (),
        **settings: Any,
    ) -> Client:
        path = servers if isinstance(servers, Path) else config(servers, **settings)
        words = [*executable, *command, "--config", str(path), *map(str, options)]
        client = await Client.start(words, own_environment(env))
        running.append((client, exit))
        return client

    yield start
    try:
        for client, _ in running:
            client.close_stdin()
        statuses = await asyncio.gather(*(client.ended() for client, _ in running))
    finally:
        for client, _ in running:
            await client.kill()
    for (client, expected), status in zip(running, statuses, strict=True):
        assert status == expected, client.errors
        assert client.strays == []
        assert "Traceback" not in client.errors, client.errors


@pytest.fixture
def junction(launch: Start) -> Start:
    """Start the program and introduce a client to it."""

    async def start(
        servers: dict[str, Entry] | Path,
        *options: str | Path,
        client: str = "a-test",
        capabilities: dict[str, Any] | None = None,
        **how: Any,
    ) -> Client:
        started = await launch(servers, *options, **how)
        await started.introduce(client, capabilities)
        return started

    return start


class Gate:
    """A FIFO a scripted server waits at until the test opens it, once and for all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None
        os.mkfifo(path)

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> None:
        if self._held is None:
            self._held = os.open(self.path, os.O_RDWR)

    async def said(self) -> str:
        """What somebody writes to it, once they do."""
        self.open()
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(self._held, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait_for(ready, BOUND)
            return os.read(self._held, 4096).decode()
        finally:
            loop.remove_reader(self._held)

    def close(self) -> None:
        if self._held is not None:
            os.close(self._held)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Something for a server to wait at."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()
