"""Ending while connections come in: each that was accepted is known, and told to leave."""

import asyncio
import gc
import socket

import pytest
import uvloop

from mcp_junction.listener.http.accepting import stop_accepting
from mcp_junction.listener.http.protocol import protocol_for
from mcp_junction.service import _server
from mcp_junction.tasks import TaskScope

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
TURNS = range(8)


class Visitor(asyncio.Protocol):
    """A connection that tells of itself."""

    def __init__(self, known: list[asyncio.BaseTransport]) -> None:
        self._known = known

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._known.append(transport)


def run(loop: str, main) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main)
    gc.collect()  # what was lost without being closed is told, and is an error


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", TURNS)
@pytest.mark.parametrize("loop", LOOPS)
def test_what_was_accepted_is_known(loop, count):
    async def main() -> None:
        known: list[asyncio.BaseTransport] = []
        running = asyncio.get_running_loop()
        server = await running.create_server(lambda: Visitor(known), "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        with socket.create_connection(address) as client:
            await turns(count)
            await stop_accepting([server])
            before = list(known)
            await asyncio.sleep(0.01)
            assert known == before
            for transport in known:
                transport.close()
            client.settimeout(5)
            await asyncio.to_thread(ends, client)

    run(loop, main())


@pytest.mark.parametrize("count", TURNS)
@pytest.mark.parametrize("loop", LOOPS)
def test_nobody_is_left_behind_when_the_service_ends(loop, count):
    async def app(scope, receive, send) -> None:
        raise AssertionError("nothing was asked")

    async def main() -> None:
        tasks = TaskScope("test")
        server = _server(app, "127.0.0.1", 0, protocol_for(tasks, 1000))
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        with socket.create_connection(server.servers[0].sockets[0].getsockname()) as client:
            await turns(count)
            await server.shutdown()
            assert not server.server_state.connections
            client.settimeout(5)
            await asyncio.to_thread(ends, client)
        await tasks.close()

    run(loop, main())


def ends(client: socket.socket) -> None:
    """Wait until the other side has closed the connection, if there ever was one."""
    try:
        assert client.recv(1) == b""
    except ConnectionResetError:
        pass
