"""S-10: the vault's key is replaced while services run, and nothing fails."""

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial

import pytest
from tests.api.test_revoking import answers_to, send_ask
from tests.plugin_rest import serve_api, stdio_config
from tests.plugin_store import Opener
from tests.registry.toolbox import BOUND, until

from mcp_junction.audit.checkpoints import CheckpointDirectory
from mcp_junction.audit.verify import verify
from mcp_junction.cli.serve import REQUEST_STATE, _follow_vault
from mcp_junction.cli.storage import Storage
from mcp_junction.cli.vault import Rotation
from mcp_junction.errors import StoreUnavailable, UsageError
from mcp_junction.store.store import open_store
from mcp_junction.vault.key_file import KeyFile
from mcp_junction.vault.vault import Vault

MCP = "/api/v1/mcp"
CANARY = "canary-secret-81d2"


class Process:
    """A service with a vault of its own, as another process has it."""

    def __init__(self, served, storage):
        self.served = served
        self.storage = storage


@pytest.fixture
async def processes(store_url, tmp_path):
    """Two services on PostgreSQL, one on SQLite, which lets only one serve."""
    async with AsyncExitStack() as stack:
        made = []
        for number in range(2 if store_url.startswith("postgres") else 1):
            made.append(await _serve(stack, store_url, tmp_path, number))
        yield made


async def _serve(stack, url, folder, number) -> Process:
    file = KeyFile({}, folder)
    keys = file.read()
    vault = Vault(keys.active, keys.retired, file)
    opener = Opener(stack, url, vault, folder / "data")
    state_keys = partial(vault.derive_keys, REQUEST_STATE)
    served = await serve_api(stack, opener, state_keys=state_keys)
    if number == 0:
        config = stdio_config() | {"env": {"API_TOKEN": CANARY}}
        await served.register("peer", connection_config=config)
    else:
        await until(lambda: served.junction.servers.get("peer") is not None)
        await served.until("peer", "CONNECTED")
    storage = Storage(served.context.store, vault, folder, file)
    await storage.store.vault_users.report(served.audit.writer, vault.key_ids)
    _follow_vault(storage, served.audit, served.junction)
    return Process(served, storage)


@pytest.mark.req("S-10", "NFR-SEC1")
async def test_a_rotation_under_load_fails_nothing(processes, store_url, tmp_path, dump):
    stop, failures, calls = asyncio.Event(), [], [0]

    async def call(process: Process, number: int) -> None:
        client, done = process.served.client("agent"), 0
        while not stop.is_set():
            body = {"server_id": "peer", "tool_name": "echo", "params": {"n": done}}
            body["idempotency_key"] = f"{number}-{id(process)}-{done // 2}"
            body["params"] = {"n": done // 2, "secret": CANARY}
            answer = await client.post(f"{MCP}/invoke", json=body)
            if answer.status_code != 200 or not answer.json()["success"]:
                failures.append(answer.text)
            done += 1
            calls[0] += 1

    async def govern(process: Process) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            body = {"agent_id": f"bot{number % 7}", "server_id": "peer", "tool_name": "echo"}
            given = await process.served.client().post(f"{MCP}/policies/grant", json=body)
            if given.status_code != 201:
                failures.append(given.text)
                continue
            gone = await process.served.client().delete(f"{MCP}/policies/{given.json()['id']}")
            if gone.status_code != 204:
                failures.append(gone.text)

    parked = [(one, (await send_ask(one.served))["result"]) for one in processes]
    before = processes[0].storage.vault.key_id
    async with asyncio.timeout(BOUND * 3):
        load = [asyncio.create_task(call(one, n)) for one in processes for n in range(4)]
        load.append(asyncio.create_task(govern(processes[0])))
        await until(lambda: calls[0] > 20)
        done = await _rotate(store_url, tmp_path)
        counted = calls[0]
        await until(lambda: calls[0] > counted + 20)
        stop.set()
        await asyncio.gather(*load)
        assert failures == []
        for process, state in parked:
            answer = await send_ask(process.served, **answers_to(state))
            assert "accept" in json.dumps(answer["result"]), answer
    assert done["from"] == before
    assert {one.storage.vault.key_id for one in processes} == {done["to"]}
    assert {len(one.storage.vault.key_ids) for one in processes} == {1}
    (new,) = KeyFile({}, tmp_path).read().active
    async with await open_store(store_url, Vault([new])) as after:
        found = await after.protected.count()
        assert [one.table for one in found if one.stale or one.invalid] == []
        assert (await after.servers.get("peer")).connection_config["env"]["API_TOKEN"] == CANARY
        assert len(await after.keys.all()) == 4 * len(processes)
    assert CANARY.encode() not in await dump()


async def _rotate(url: str, folder) -> dict:
    """Rotate as the command does, with a vault and a store of its own."""
    file = KeyFile({}, folder)
    keys = file.read()
    vault = Vault(keys.active, keys.retired, file)
    async with AsyncExitStack() as stack:
        opener = Opener(stack, url, vault, folder / "data")
        store = await opener()
        storage = Storage(store, vault, folder / "data", file)
        return await Rotation(storage, await opener.log(store), quiet=True).run()


@pytest.mark.req("S-10")
async def test_the_audit_is_whole_after_rotations_and_names_them(processes, store_url, tmp_path):
    await _rotate(store_url, tmp_path)
    await _rotate(store_url, tmp_path)
    storage = processes[0].storage
    await processes[0].served.audit.flush()
    points = CheckpointDirectory(tmp_path / "data").all()
    verdict = await verify(storage.store.audit, storage.vault.derive_keys("audit"), points)
    assert not verdict.findings, verdict
    assert len(storage.vault.retired_ids) == 2
    rows = (await processes[0].served.client().get(f"{MCP}/audit?limit=200")).text
    assert "vault.rotated" in rows


@pytest.mark.req("S-10")
async def test_a_service_that_does_not_get_the_key_stops_the_rotation_before_anything_is_lost(
    processes, store_url, tmp_path, monkeypatch
):
    monkeypatch.setattr("mcp_junction.cli.vault.WAIT", 0.1)
    stranger = processes[-1]
    stranger.storage.key_file.path = tmp_path / "elsewhere" / "credential.key"
    stranger.storage.key_file._seen = None
    with pytest.raises(UsageError, match="have not taken the new key"):
        await _rotate(store_url, tmp_path)
    body = {"server_id": "peer", "tool_name": "echo", "params": {}}
    answer = await stranger.served.client("agent").post(f"{MCP}/invoke", json=body)
    assert answer.json()["success"], answer.text
    stranger.storage.key_file.path = tmp_path / "credential.key"
    monkeypatch.undo()
    await _rotate(store_url, tmp_path)  # finishes the earlier one first
    assert len(KeyFile({}, tmp_path).read().active) == 1


@pytest.mark.req("S-10")
async def test_a_service_that_could_not_report_its_new_key_reports_it_later(
    processes, store_url, tmp_path, monkeypatch
):
    users = processes[0].storage.store.vault_users
    report, failures = users.report, [StoreUnavailable("away")]

    async def fail_once(writer, keys):
        if failures:
            raise failures.pop()
        await report(writer, keys)

    monkeypatch.setattr(users, "report", fail_once)
    await asyncio.wait_for(_rotate(store_url, tmp_path), BOUND)
    assert failures == []
