"""The shelf of servers, on every backend."""

import asyncio

import pytest
from msgspec import structs
from tests.store.records import SECRET, server

from mcp_junction.errors import AlreadyExists, NotFound, VaultError, VersionConflict
from mcp_junction.store.database import Dialect
from mcp_junction.store.records import DEFINITION_FIELDS, STATUS_FIELDS, ServerRecord
from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault


async def test_a_server_comes_back_as_it_was_put_in(store):
    given = server(
        description="all of it",
        health_check_url="http://127.0.0.1/health",
        enabled=False,
        isolation="per-session",
        pin="strict",
        trust_annotations=True,
        timeout_ms=1500,
        server_version="1.2",
        capabilities={"tools": {}},
        healthy=False,
        error_rate=0.25,
    )
    added = await store.servers.add(given)
    assert added.registered_at == added.updated_at > 0
    assert await store.servers.get(added.id) == await store.servers.get("files") == added
    fields = ServerRecord.__struct_fields__
    kept = [name for name in fields if name not in ("registered_at", "updated_at")]
    assert [getattr(added, name) for name in kept] == [getattr(given, name) for name in kept]


async def test_an_id_is_looked_for_before_a_name(store):
    one = await store.servers.add(server("one"))
    await store.servers.add(server(one.id))
    assert (await store.servers.get(one.id)).name == "one"


async def test_a_server_that_is_not_there_is_said_to_be_missing(store):
    assert await store.servers.find("nobody") is None
    with pytest.raises(NotFound, match="'nobody'"):
        await store.servers.get("nobody")
    with pytest.raises(NotFound):
        await store.servers.change("nobody", {"description": "x"})
    with pytest.raises(NotFound):
        await store.servers.remove("nobody")


async def test_a_name_is_given_once(store):
    await store.servers.add(server("one"))
    two = await store.servers.add(server("two"))
    with pytest.raises(AlreadyExists, match="'one'"):
        await store.servers.add(server("one"))
    with pytest.raises(AlreadyExists, match="'one'"):
        await store.servers.change(two.id, {"name": "one"})
    assert (await store.servers.get(two.id)).version == 1


async def test_of_many_that_want_a_name_at_once_one_gets_it(store):
    tries = [store.servers.add(server("wanted")) for _ in range(20)]
    ended = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(one, ServerRecord) for one in ended) == 1
    assert sum(isinstance(one, AlreadyExists) for one in ended) == 19


async def test_a_change_counts_the_version_up_and_a_stale_one_is_refused(store):
    first = await store.servers.add(server())
    second = await store.servers.change(first.id, {"description": "new"}, version=1)
    assert (second.version, second.description) == (2, "new")
    assert second.updated_at >= first.updated_at
    assert await store.servers.get(first.id) == second
    with pytest.raises(VersionConflict) as refused:
        await store.servers.change(first.id, {"description": "late"}, version=1)
    assert refused.value.found == 2
    with pytest.raises(VersionConflict):
        await store.servers.remove(first.id, version=1)
    assert await store.servers.get(first.id) == second


async def test_of_many_changes_from_one_version_one_is_made(store):
    one = await store.servers.add(server())
    changes = [store.servers.change(one.id, {"description": str(n)}, version=1) for n in range(20)]
    ended = await asyncio.gather(*changes, return_exceptions=True)
    assert sum(isinstance(end, VersionConflict) for end in ended) == 19
    assert (await store.servers.get(one.id)).version == 2


async def test_a_rename_keeps_the_id_and_all_that_hangs_from_it(store):
    one = await store.servers.add(server("old"))
    renamed = await store.servers.change(one.id, {"name": "new"})
    assert (renamed.id, renamed.name) == (one.id, "new")
    assert await store.servers.find("old") is None
    assert (await store.servers.get("new")).connection_config == one.connection_config


async def test_how_a_server_stands_is_no_new_version(store):
    one = await store.servers.add(server("one"))
    two = await store.servers.add(server("two"))
    await store.servers.set_status(
        {
            one.id: {"status": "CONNECTED", "healthy": True, "connected_at": 5.0},
            two.id: {"status": "ERROR", "error_message": "gone"},
            "unknown": {"status": "ERROR"},
        }
    )
    found = await store.servers.get(one.id)
    assert (found.status, found.healthy, found.connected_at) == ("CONNECTED", True, 5.0)
    assert (found.version, found.reachable) == (1, None)
    assert (await store.servers.get(two.id)).error_message == "gone"
    assert await store.servers.count() == {"CONNECTED": 1, "ERROR": 1}
    assert [s.name for s in await store.servers.all(status="ERROR")] == ["two"]


async def test_only_what_may_change_is_changed(store):
    one = await store.servers.add(server())
    for changes in ({"id": "x"}, {"version": 9}, {"status": "CONNECTED"}, {}):
        with pytest.raises(ValueError, match="not to be changed"):
            await store.servers.change(one.id, changes)
    with pytest.raises(ValueError, match="not to be changed"):
        await store.servers.set_status({one.id: {"name": "x"}})
    # Declared when it is registered, and then what the server says itself.
    both = DEFINITION_FIELDS & STATUS_FIELDS
    assert set(both) == {"server_version"}
    assert set(ServerRecord.__struct_fields__) >= DEFINITION_FIELDS | STATUS_FIELDS


async def test_servers_come_in_pages_by_name(store):
    for name in ("c", "a", "d", "b"):
        await store.servers.add(server(name))
    first = await store.servers.all(limit=3)
    rest = await store.servers.all(after=first[-1].name, limit=3)
    assert [one.name for one in first + rest] == ["a", "b", "c", "d"]


async def test_other_processes_see_what_changed_by_its_generation(opener):
    ours, theirs = await opener(), await opener()
    seen = (await theirs.generations()).get("servers", 0)
    one = await ours.servers.add(server())
    added = (await theirs.generations())["servers"]
    await ours.servers.set_status({one.id: {"status": "CONNECTED"}})
    assert added > seen
    assert (await theirs.generations())["servers"] == added
    await ours.servers.remove(one.id)
    assert (await theirs.generations())["servers"] > added
    assert await theirs.servers.all() == []


async def test_a_secret_is_not_in_the_database_and_opens_only_in_its_row(store, opener, dump):
    one = await store.servers.add(server("one"))
    await store.servers.add(server("two"))
    assert SECRET.encode() not in await dump()
    assert SECRET not in repr(one)
    stranger = await open_store(opener.url, Vault([bytes(32)]))
    with pytest.raises(VaultError, match="a key that is not here"):
        await stranger.servers.get("one")
    await stranger.close()
    await dump.run(
        "UPDATE servers SET connection_config ="
        " (SELECT connection_config FROM servers WHERE name = 'two') WHERE name = 'one'"
    )
    with pytest.raises(VaultError, match="moved from another row"):
        await store.servers.get("one")


async def test_connections_are_sealed_anew_with_a_new_key(store, opener):
    await store.servers.add(server("one"))
    old, new = bytes(range(32)), bytes(range(1, 33))
    async with await open_store(opener.url, Vault([new, old])) as turning:
        assert sum(table.renewed for table in await turning.protected.renew()) == 1
    async with await open_store(opener.url, Vault([new])) as turned:
        assert (await turned.servers.get("one")).connection_config["env"]["API_KEY"] == SECRET


HEALTH = f"https://me:{SECRET}@host.example/health"


@pytest.mark.req("S-14")
async def test_a_health_url_is_sealed_for_its_row(store, dump):
    one = await store.servers.add(structs.replace(server("one"), health_check_url=HEALTH))
    await store.servers.add(server("two"))
    assert SECRET.encode() not in await dump()
    assert (await store.servers.get("one")).health_check_url == HEALTH
    other = HEALTH.replace("host", "other")
    await store.servers.change(one.id, {"health_check_url": other})
    assert SECRET.encode() not in await dump()
    assert (await store.servers.get("one")).health_check_url == other
    await dump.run(
        "UPDATE servers SET health_check_url ="
        " (SELECT health_check_url FROM servers WHERE name = 'one') WHERE name = 'two'"
    )
    with pytest.raises(VaultError, match="moved from another row"):
        await store.servers.get("two")
    await store.servers.change(one.id, {"health_check_url": None})
    assert (await store.servers.get("one")).health_check_url is None


async def test_a_health_url_of_an_older_version_is_sealed_once(store, dump):
    await store.servers.add(server("one"))
    await dump.run(f"UPDATE servers SET health_check_url = '{HEALTH}' WHERE name = 'one'")
    assert (await store.servers.get("one")).health_check_url == HEALTH
    assert [await store.servers.seal_urls() for _ in range(2)] == [1, 0]
    found = await dump.run("SELECT health_check_url FROM servers WHERE name = 'one'")
    assert SECRET not in str([tuple(row) for row in found])
    assert (await store.servers.get("one")).health_check_url == HEALTH


@pytest.mark.req("S-15")
async def test_a_health_url_that_is_no_text_keeps_no_other_from_being_sealed(store, dump):
    if store.dialect is not Dialect.SQLITE:
        pytest.skip("PostgreSQL keeps nothing else in such a column")
    for name in ("one", "two"):
        await store.servers.add(server(name))
    await dump.run("UPDATE servers SET health_check_url = X'FF00' WHERE name = 'one'")
    await dump.run(f"UPDATE servers SET health_check_url = '{HEALTH}' WHERE name = 'two'")
    assert await store.servers.seal_urls() == 1
    assert (await store.servers.get("two")).health_check_url == HEALTH


async def test_a_health_url_is_sealed_anew_with_a_new_key(store, opener):
    await store.servers.add(structs.replace(server("one"), health_check_url=HEALTH))
    old, new = bytes(range(32)), bytes(range(1, 33))
    async with await open_store(opener.url, Vault([new, old])) as turning:
        assert sum(table.renewed for table in await turning.protected.renew()) == 1
    async with await open_store(opener.url, Vault([new])) as turned:
        assert (await turned.servers.get("one")).health_check_url == HEALTH
