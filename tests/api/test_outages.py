"""A server or the store is away: what waits, waits no longer than it may, and says why."""

import asyncio
import os
from contextlib import AsyncExitStack

import pytest
from tests.plugin_rest import CALL, SERVERS, registration, serve_api
from tests.plugin_store import Opener, schema_url
from tests.postgres_server import NoPostgres, Server, open_folder
from tests.registry.toolbox import Toolbox, until

QUICK = 300
"""Milliseconds that a call may take."""


@pytest.fixture
def calls_wait(monkeypatch) -> None:
    """Calls wait for their server for longer than a test may take, unless something ends that."""
    monkeypatch.setattr("mcp_junction.upstream.connecting.RECONNECT_WINDOW", 3600.0)


async def lost(served, server) -> None:
    """A server that was there goes away, and somebody has noticed."""
    await served.register("box", transport_type="HTTP", connection_config={"url": server.url})
    await server.stop()
    await served.call("box.echo")
    await served.until("box", "ERROR")


@pytest.mark.req("R-ANSWER")
@pytest.mark.usefixtures("calls_wait")
async def test_a_call_that_waits_for_its_server_ends_with_the_time_it_is_given(gateway):
    served = await gateway(invocation_timeout_ms=QUICK)
    async with Toolbox() as server:
        await lost(served, server)
        answer = await served.call("box.echo")
        told = answer.json()
        assert (answer.status_code, told["error_code"]) == (503, "SERVER_CONNECTION_FAILED")
        assert told["context"]["delivery"] == "not_sent"


@pytest.mark.req("R-ANSWER")
@pytest.mark.usefixtures("calls_wait")
async def test_a_call_waits_for_a_first_connection_no_longer_than_it_may(gateway):
    served = await gateway(invocation_timeout_ms=QUICK)
    async with Toolbox() as server:
        server.answers.clear()
        body = registration("box", transport_type="HTTP", connection_config={"url": server.url})
        await served.client().post(SERVERS, json=body)
        for how in ({"name": "box.echo"}, {"name": "echo", "server_id": "box"}):
            answer = await served.client().post(CALL, json=how)
            told = answer.json()
            assert (answer.status_code, told["error_code"]) == (503, "SERVER_UNAVAILABLE")
            assert told["context"]["server"]["name"] == "box"
            assert told["context"]["delivery"] == "not_sent"


@pytest.mark.usefixtures("calls_wait")
async def test_a_client_that_leaves_frees_the_place_of_its_waiting_call(gateway):
    served = await gateway(retry_max_attempts=1)
    async with Toolbox() as server:
        await lost(served, server)
        upstream = served.junction.servers["box"]
        waiting = [asyncio.create_task(served.call("box.echo")) for _ in range(3)]
        await until(lambda: upstream.calls == 3)
        for call in waiting:
            call.cancel()
        await until(lambda: not upstream.calls)
        assert len(served.context.calling) == 0


async def test_a_key_that_is_revoked_while_its_call_waits_calls_nothing(gateway):
    served = await gateway()
    async with Toolbox() as server:
        server.answers.clear()
        body = registration("box", transport_type="HTTP", connection_config={"url": server.url})
        await served.client().post(SERVERS, json=body)
        waiting = asyncio.create_task(served.call("box.echo", role="agent"))
        await until(lambda: served.context.calling._sessions)  # it is known who calls, not yet what
        await served.ring.revoke(served.keys["agent"].split("_")[1], "test")
        server.answers.set()
        answer = await waiting
        assert (answer.status_code, answer.json()["error_code"]) == (401, "UNAUTHENTICATED")
        assert server.calls == 0


async def _accepted(client, method: str, path: str, **more) -> None:
    """Ask until it is done."""
    while (await client.request(method, path, **more)).status_code != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


@pytest.fixture
async def own_postgres():
    """A PostgreSQL for one test alone, to be stopped and started."""
    server = Server(open_folder() / f"jct-own-{os.getpid()}")
    try:
        await asyncio.to_thread(server.make)
        await asyncio.to_thread(server.start)
    except NoPostgres as error:
        pytest.skip(f"NO POSTGRESQL: {error}")
    yield server
    await asyncio.to_thread(server.remove)


@pytest.mark.req("F-16")
async def test_while_postgres_is_stopped_keys_are_doubted_and_then_all_is_as_before(
    own_postgres, vault, tmp_path, monkeypatch
):
    async with AsyncExitStack() as stack:
        url = await schema_url(own_postgres.url)
        served = await serve_api(stack, Opener(stack, url, vault, tmp_path / "data"))
        await served.register()
        monkeypatch.setattr("mcp_junction.identity.keys.BLIND_AFTER", 1.0)
        await asyncio.to_thread(own_postgres.stop)
        answer = await served.client().patch(f"{SERVERS}/peer", json={"description": "x"})
        assert (answer.status_code, answer.json()["error_code"]) == (503, "STORE_UNAVAILABLE")
        await until(lambda: served.ring.is_blind)
        for method, path in (("GET", SERVERS), ("POST", CALL)):
            answer = await served.client().request(method, path)
            assert (answer.status_code, answer.json()["error_code"]) == (503, "STORE_UNAVAILABLE")
            assert answer.headers["retry-after"]
        assert (await served.client(None).get(SERVERS)).status_code == 401, "as ever"
        await asyncio.to_thread(own_postgres.start)
        await asyncio.wait_for(_accepted(served.client(), "GET", SERVERS), 30)
        monkeypatch.undo()
        assert (await served.call("peer.echo")).status_code == 200
        change = {"json": {"description": "x"}}
        await asyncio.wait_for(_accepted(served.client(), "PATCH", f"{SERVERS}/peer", **change), 30)
        await asyncio.wait_for(served.registry._context.audit.flush(), 30)
        assert served.registry._context.audit.lost == 0
        assert served.bus.lost == 0
