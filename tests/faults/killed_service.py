"""A service of the real program that is killed with -9, for the tests of what it leaves behind."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
from tests.plugin_faults import Rig
from tests.plugin_journeys import PROGRAM, own_environment

BOUND = 60.0
MCP = "/api/v1/mcp"


class KilledService:
    """A service that can be killed and started again over the same data."""

    def __init__(self, rig: Rig, folder: Path, *options: str, **environ: str) -> None:
        self._argv = [str(PROGRAM), "serve", "--config", str(rig.config()), "--port", "0"]
        self._argv += ["--data-dir", str(folder), *options]
        self._environ = environ
        self._folder = folder
        self.process: Process | None = None
        self.url = ""

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve until the end of the block, and then be killed."""
        process = await asyncio.create_subprocess_exec(
            *self._argv, env=own_environment(self._environ), stderr=PIPE
        )
        self.process = process
        try:
            self.url = await asyncio.wait_for(self._wait_for_address(process), BOUND)
            draining = asyncio.ensure_future(process.communicate())
            yield
        finally:
            self.kill()
            await process.wait()
        await draining

    def kill(self) -> None:
        """Kill it with -9; it may have been killed before."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)

    @staticmethod
    async def _wait_for_address(process: Process) -> str:
        said = ""
        while "/mcp" not in said.partition("listening on ")[2]:
            line = await process.stderr.readline()
            assert line, said
            said += line.decode()
        return said.partition("listening on ")[2].partition("/mcp")[0]

    @property
    def admin_key(self) -> str:
        """The key that the first service of a store has made."""
        return (self._folder / "admin.key").read_text().strip()

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key or self.admin_key}"}
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=BOUND, trust_env=False, verify=False
        )


async def wait_for_tools(client: httpx.AsyncClient, servers: int = 1) -> None:
    """Wait until so many ledger servers have told their tools."""
    async with asyncio.timeout(BOUND):
        while (await client.get(f"{MCP}/tools")).text.count('"record"') < servers:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
