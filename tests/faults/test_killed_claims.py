"""The service killed with -9 between the claim of an idempotency key and the end of its call."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.inside import until
from tests.faults.killed_service import MCP, KilledService, wait_for_tools
from tests.plugin_faults import Rig

HANGS = {"nonce": "lost", "fault": "hang"}
KEY = "11" * 32
SERVERS = ("led", "safe")
"""The tool of the second is idempotent, by the operator's word."""


class Services:
    """Services over one store."""

    def __init__(self, rig: Rig, store_url: str, folder: Path) -> None:
        self._rig = rig
        self._store_url = store_url
        self._folder = folder
        for server in SERVERS:
            rig.add(server)

    def make(self, name: str) -> KilledService:
        store = ("--store", self._store_url)
        return KilledService(self._rig, self._folder / name, *store, MCP_CREDENTIAL_KEY=KEY)

    def runs(self) -> dict[str, dict[str, int]]:
        """How often each nonce has run, by server."""
        return {server: dict(self._rig.ledger(server).runs()) for server in SERVERS}


async def invoke(client: httpx.AsyncClient, server: str, key: str, **params: Any) -> httpx.Response:
    body = {"server_id": server, "tool_name": "record", "idempotency_key": key, "params": params}
    return await client.post(f"{MCP}/invoke", json=body)


async def begin(services: Services, client: httpx.AsyncClient) -> list[asyncio.Future[Any]]:
    """Keep one answer, and have a call under way at each server."""
    await wait_for_tools(client, len(SERVERS))
    path = f"{MCP}/tools/safe/record"
    assert (await client.patch(path, json={"idempotent": True})).status_code == 200
    assert (await invoke(client, "led", "kept", nonce="kept")).status_code == 200
    running = [asyncio.ensure_future(invoke(client, one, "lost", **HANGS)) for one in SERVERS]
    await until(lambda: services.runs() == LEFT, "the calls to have begun")
    return running


LEFT = {"led": {"kept": 1, "lost": 1}, "safe": {"lost": 1}}


async def check_keys(client: httpx.AsyncClient) -> None:
    """What ran before is answered again; what may have run is unknown, and is not run."""
    kept = await invoke(client, "led", "kept", nonce="kept")
    assert kept.status_code == 200, kept.text
    assert kept.json()["result"]["structuredContent"]["nonce"] == "kept"
    for server in SERVERS:
        again = await asyncio.gather(*(invoke(client, server, "lost", **HANGS) for _ in range(3)))
        for answer in again:
            told = answer.json()
            assert (answer.status_code, told["error"]["type"]) == (500, "ToolInvocationError")
            assert (told["delivery"], "may have run" in told["error"]["message"]) == (
                "unknown",
                True,
            )
        other = await invoke(client, server, "lost", nonce="another")
        assert other.status_code == 409, other.text


@pytest.mark.req("R-IDEMPOTENCY", "REQ-MCP-CALL-003")
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_key_whose_call_was_cut_off_by_a_kill_is_unknown_and_its_call_is_not_run_again(
    rig: Rig, store_url: str, tmp_path: Path
) -> None:
    services = Services(rig, store_url, tmp_path)
    service = services.make("data")
    async with service.run(), service.client() as client:
        running = await begin(services, client)
        service.kill()
        ended = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(one, httpx.HTTPError) for one in ended)
    async with service.run(), service.client() as client:
        await wait_for_tools(client, len(SERVERS))
        await check_keys(client)
        assert services.runs() == LEFT
        assert (await invoke(client, "led", "new", nonce="lost")).status_code == 200


@pytest.mark.req("R-IDEMPOTENCY", "REQ-MCP-CALL-003")
@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_who_waits_for_a_call_of_a_process_that_is_killed_is_told_that_it_is_unknown(
    rig: Rig, store_url: str, tmp_path: Path
) -> None:
    services = Services(rig, store_url, tmp_path)
    killed, other = services.make("one"), services.make("two")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(killed.run())
        first = await stack.enter_async_context(killed.client())
        running = await begin(services, first)
        await stack.enter_async_context(other.run())
        second = await stack.enter_async_context(other.client(killed.admin_key))
        await wait_for_tools(second, len(SERVERS))
        waiting = [asyncio.ensure_future(invoke(second, one, "lost", **HANGS)) for one in SERVERS]
        assert (await invoke(second, "led", "kept", nonce="kept")).status_code == 200
        assert not any(one.done() for one in waiting)
        killed.kill()
        await asyncio.gather(*running, return_exceptions=True)
        for answer in await asyncio.gather(*waiting):
            assert (answer.status_code, answer.json()["delivery"]) == (500, "unknown"), answer.text
        await check_keys(second)
        assert services.runs() == LEFT
