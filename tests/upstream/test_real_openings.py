"""A real server of the handshake era: it is greeted over every transport, whatever is preferred."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator

import pytest
from tests.upstream.test_eras import BOUND, behind, listed

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.protocol.versions import Era
from mcp_junction.upstream.handshake import Hello
from mcp_junction.upstream.state import ServerState

pytestmark = pytest.mark.peers

PROGRAM = "mcp-server-everything"


@contextlib.asynccontextmanager
async def running(peers, transport: str) -> AsyncIterator[ServerDefinition]:
    program, path = str(peers.npm_program(PROGRAM)), peers.path()
    if transport == "stdio":
        yield ServerDefinition("e", "stdio", program, ("stdio",), {"PATH": path})
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        program,
        transport,
        env={**os.environ, "PATH": path, "PORT": str(port)},
        start_new_session=True,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await listening(port)
        where = "sse" if transport == "sse" else "mcp"
        yield ServerDefinition("e", "http", url=f"http://127.0.0.1:{port}/{where}")
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the one that was started only starts another
        await process.wait()


async def listening(port: int) -> None:
    async with asyncio.timeout(BOUND):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                await writer.wait_closed()
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("prefers", list(Era))
@pytest.mark.parametrize("transport", ["stdio", "streamableHttp", "sse"])
async def test_a_server_of_today_is_greeted_whatever_is_preferred(peers, transport, prefers):
    async with running(peers, transport) as entry, behind(entry, Hello(prefers=prefers)) as server:
        assert server.state is ServerState.CONNECTED, server.error
        assert server.link.era is Era.HANDSHAKE
        assert "echo" in await listed(server)
        assert await server.for_era(Era.STATELESS) is None
