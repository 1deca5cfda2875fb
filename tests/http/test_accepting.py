"""Ending while connections come in: each that was accepted is known, and told to leave."""

import asyncio
import gc
import socket
from contextlib import AsyncExitStack

import pytest
import uvloop
from tests.http.wire import BOUND

from mcp_junction.app import Junction
from mcp_junction.config.load import without_file
from mcp_junction.errors import JunctionError
from mcp_junction.identity.keys import KeyRing
from mcp_junction.listener.http.server import HttpServer, protocol_for, stop_accepting
from mcp_junction.service import Service
from mcp_junction.store.store import default_url, open_store
from mcp_junction.tasks import TaskScope
from mcp_junction.vault.vault import Vault

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
            client.settimeout(30)
            await asyncio.to_thread(ends, client)

    run(loop, main())


@pytest.mark.parametrize("count", TURNS)
@pytest.mark.parametrize("loop", LOOPS)
def test_nobody_is_left_behind_when_the_service_ends(loop, count):
    async def app(scope, receive, send) -> None:
        raise AssertionError("nothing was asked")

    async def main() -> None:
        tasks = TaskScope("test")
        server = HttpServer(app, "127.0.0.1", 0, protocol_for(tasks, 1000))
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        with socket.create_connection(server.servers[0].sockets[0].getsockname()) as client:
            await turns(count)
            await server.shutdown()
            assert not server.server_state.connections
            client.settimeout(30)
            await asyncio.to_thread(ends, client)
        await tasks.close()

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_the_server_ends_when_its_responses_are_sent(loop):
    """One is not made yet when it is told to end, and its client takes it slowly."""
    body = b"x" * (32 << 20)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send) -> None:
        begun.set()
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def main() -> None:
        tasks = TaskScope("test")
        server = HttpServer(app, "127.0.0.1", 0, protocol_for(tasks, 1000))
        serving = asyncio.ensure_future(server.serve())
        _, port = await server.wait_until_started(serving)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await begun.wait()
        server.stop()
        for _ in range(2):
            await asyncio.sleep(0.05)
            assert not serving.done()
            goes_on.set()
        async with asyncio.timeout(BOUND):
            assert body in await reader.read()
            await serving
        writer.close()
        await tasks.close()

    run(loop, main())


def ends(client: socket.socket) -> None:
    """Wait until the other side has closed the connection, if there ever was one."""
    try:
        assert client.recv(1) == b""
    except ConnectionResetError:
        pass


@pytest.mark.req("R-SUPERVISE")
async def test_a_service_whose_http_server_ends_by_itself_ends_with_an_error(tmp_path, monkeypatch):
    over = asyncio.Event()

    async def main_loop(self):
        await over.wait()

    monkeypatch.setattr("mcp_junction.listener.http.server.HttpServer.main_loop", main_loop)
    async with AsyncExitStack() as stack:
        junction = await stack.enter_async_context(Junction(without_file({}, {})))
        store = await open_store(default_url(tmp_path), Vault.from_environment({}, tmp_path))
        stack.push_async_callback(store.close)
        listening = asyncio.Event()
        keys, heard = await KeyRing.open(store), lambda _: listening.set()
        service = Service(junction, keys, "127.0.0.1", on_listening=heard)
        serving = asyncio.ensure_future(service.serve("127.0.0.1", 0, asyncio.Event()))
        await asyncio.wait_for(listening.wait(), BOUND)
        over.set()
        with pytest.raises(JunctionError, match="ended by itself"):
            await asyncio.wait_for(serving, BOUND)
