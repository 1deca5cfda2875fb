"""F-16: the database is locked, stopped or full. It fails closed, and comes back by itself."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from uuid import uuid4

import asyncpg
import pytest
from tests.plugin_store import schema_url
from tests.postgres_server import Server, open_folder
from tests.store import full_disk
from tests.store.records import server

from mcp_junction.audit.checkpoints import CheckpointDirectory
from mcp_junction.audit.log import AuditLog
from mcp_junction.audit.verify import verify
from mcp_junction.errors import StoreUnavailable
from mcp_junction.identity.keys import KeyRing
from mcp_junction.policy.principal import Role
from mcp_junction.store.audit_records import AuditQuery
from mcp_junction.store.database import Batch
from mcp_junction.store.store import open_store

BOUND = 30
"""Seconds within which it must have recovered: F-16 says so."""


class Lock:
    """Somebody else who has locked the database."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> None:
        if self._url.startswith("sqlite"):
            path = self._url.removeprefix("sqlite:///")
            self._other = sqlite3.connect(path, isolation_level=None)
            self._other.execute("BEGIN EXCLUSIVE")
            return
        self._other = await asyncpg.connect(self._url)
        self._held = self._other.transaction()
        await self._held.start()
        await self._other.execute("LOCK TABLE audit_pages, servers IN EXCLUSIVE MODE")

    async def __aexit__(self, *_: object) -> None:
        ended = self._other.close()
        if ended is not None:
            await ended


async def is_refused(log: AuditLog) -> bool:
    try:
        await log.intent(log.entry("intent", "bot", "tools/call"))
    except StoreUnavailable:
        return True
    return False


async def calls(store) -> int:
    return len(await store.audit.rows(AuditQuery(kind="call", limit=1000)))


@pytest.mark.req("F-16")
async def test_while_it_is_locked_nothing_dangerous_is_done_and_nothing_is_lost(
    store, opener, store_url
):
    log = await opener.log(store)
    await log.flush()
    async with Lock(store_url):
        refused = await asyncio.gather(is_refused(log), is_refused(log))
        assert refused == [True, True]
        assert log.is_failing
        for _ in range(100):
            log.record(log.entry("call", "bot", "tools/call"))
        with pytest.raises(StoreUnavailable):
            await store.servers.add(server())
        assert await store.servers.all() == []  # reading goes on
    async with asyncio.timeout(BOUND):
        await log.flush()
        assert not await is_refused(log)
    await store.servers.add(server())
    assert (await calls(store), log.lost, log.is_failing) == (100, 0, False)
    verdict = await verify(store.audit, opener.vault.derive_keys("audit"), opener.checkpoints.all())
    assert verdict.findings == []


@pytest.mark.req("F-16")
async def test_while_it_is_stopped_nothing_dangerous_is_done_and_nothing_is_lost(
    postgres, vault, tmp_path
):
    machine = Server(open_folder() / f"jct-pg-{uuid4().hex[:8]}")
    machine.make()
    machine.start()
    try:
        store = await open_store(await schema_url(machine.url), vault)
        key, points = vault.derive_keys("audit")[0], CheckpointDirectory(tmp_path)
        async with store, AuditLog(store.audit, key, vault.key_id, points) as log:
            now = 0.0
            ring = KeyRing(store, now=lambda: now)
            await ring.refresh()
            _, text = await ring.create(Role.AGENT, "bot", "test")
            await log.flush()
            machine.stop()
            assert await is_refused(log)
            for _ in range(100):
                log.record(log.entry("call", "bot", "tools/call"))
            await ring.refresh()
            now = 6.0
            assert ring.principal(f"Bearer {text}".encode()) is None
            with pytest.raises(StoreUnavailable):
                await store.servers.all()
            machine.start()
            async with asyncio.timeout(BOUND):
                await log.flush()
                assert not await is_refused(log)
                await ring.refresh()
            assert ring.principal(f"Bearer {text}".encode()) is not None
            assert (await calls(store), log.lost) == (100, 0)
            assert (await verify(store.audit, [key], points.all())).findings == []
    finally:
        machine.remove()


@pytest.mark.req("F-16", "S-15")
async def test_a_server_that_freezes_with_its_connections_open_is_down(postgres, vault, tmp_path):
    machine = Server(open_folder() / f"jct-pg-{uuid4().hex[:8]}")
    machine.make()
    machine.start()
    try:
        url = await schema_url(machine.url)
        store = await open_store(url, vault, patience=1.0)
        key, points = vault.derive_keys("audit")[0], CheckpointDirectory(tmp_path)
        async with store, AuditLog(store.audit, key, vault.key_id, points) as log:
            await log.flush()
            machine.freeze()
            async with asyncio.timeout(BOUND):
                assert await is_refused(log)
                with pytest.raises(StoreUnavailable):
                    await store.servers.all()
            for _ in range(100):
                log.record(log.entry("call", "bot", "tools/call"))
            machine.thaw()
            async with asyncio.timeout(BOUND):
                await log.flush()
                assert not await is_refused(log)
                assert await store.servers.all() == []
            assert (await calls(store), log.lost) == (100, 0)
            assert (await verify(store.audit, [key], points.all())).findings == []
    finally:
        machine.thaw()
        machine.remove()


@pytest.mark.req("F-16")
async def test_a_large_batch_is_given_up_when_the_server_takes_no_more_of_it(postgres, vault):
    url = await schema_url(postgres)
    other = await asyncpg.connect(url)
    await other.execute("CREATE TABLE slow (text TEXT)")
    words = "CREATE FUNCTION wait(text TEXT) RETURNS TEXT LANGUAGE sql VOLATILE"
    await other.execute(f"{words} AS $$ SELECT text FROM pg_sleep(0.05) $$")
    await other.close()

    def insert():
        rows = [("x" * 1_000,)] * 2_000  # more than fits into the buffers
        yield Batch("INSERT INTO slow (text) VALUES (wait(?))", rows)

    async with await open_store(url, vault, patience=0.5) as store, asyncio.timeout(BOUND):
        with pytest.raises(StoreUnavailable):
            await store.vectors._database.write(insert())
        assert await store.servers.all() == []


@pytest.mark.req("F-16")
async def test_while_the_disk_is_full_nothing_dangerous_is_done_and_nothing_is_lost(tmp_path):
    command = [sys.executable, full_disk.__file__, str(tmp_path)]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["stored"] > 3
    assert "the store cannot be written" in seen["refused"]
    assert seen["failing"]
    assert seen["write_refused"]
    assert seen["readable"] == 1
    assert (seen["lost"], seen["findings"]) == (0, [])
    # The opening, what was stored, the one that was refused, the calls meanwhile, one afterwards.
    assert seen["rows"] == 1 + seen["stored"] + 1 + 10 + 1
