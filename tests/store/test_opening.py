"""Opening a store: its URL, its schema, its file, and many processes at once."""

import asyncio
import sqlite3
import sys
from typing import ClassVar

import asyncpg
import pytest
from tests.plugin_store import schema_url
from tests.store.records import server

from mcp_junction.errors import AlreadyExists, StoreUnavailable, UsageError, VersionConflict
from mcp_junction.store.database import Dialect, in_dialect, migrations
from mcp_junction.store.store import default_url, open_store

OPEN = """
import asyncio, sys
from mcp_junction.store.store import open_store
from mcp_junction.vault.vault import Vault
from mcp_junction.store.records import NewEvent
async def main():
    async with await open_store(sys.argv[1], Vault([bytes(32)])) as store:
        await store.events.append([NewEvent("started", {})])
asyncio.run(main())
"""


@pytest.fixture
def has_tables() -> bool:
    return False


@pytest.mark.req("J-STORE")
async def test_without_a_url_it_is_sqlite_and_postgres_with_one_and_both_do_the_same(
    tmp_path, vault, postgres
):
    told = []
    url = await schema_url(postgres)
    for given, dialect in (
        (default_url(tmp_path), Dialect.SQLITE),
        (url, Dialect.POSTGRES),
    ):
        async with await open_store(given, vault) as store:
            assert store.dialect is dialect
            added = await store.servers.add(server(id="1", name="one"))
            with pytest.raises(AlreadyExists):
                await store.servers.add(server(id="2", name="one"))
            await store.servers.change("1", {"description": "x"}, version=added.version)
            with pytest.raises(VersionConflict):
                await store.servers.change("1", {"description": "y"}, version=added.version)
            found = await store.servers.get("one")
            told.append((found.description, found.version, await store.servers.count()))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "url", ["", "junction.db", "mysql://x/y", "sqlite://x", "sqlite:///", "sqlite:x"]
)
async def test_a_url_that_names_no_store_is_refused(url, vault):
    with pytest.raises(UsageError, match="sqlite:///PATH"):
        await open_store(url, vault)


async def test_the_file_is_for_its_owner_only(tmp_path, vault):
    path = tmp_path / "deep" / "data"
    async with await open_store(default_url(path), vault) as store:
        await store.servers.add(server())
        assert path.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}
        assert len(list(path.iterdir())) == 3


async def test_a_relative_path_and_odd_characters_work(tmp_path, vault, monkeypatch):
    monkeypatch.chdir(tmp_path)
    await (await open_store("sqlite:///a%20b.db", vault)).close()
    assert (tmp_path / "a b.db").exists()


async def test_a_file_that_is_no_database_is_named(tmp_path, vault):
    (tmp_path / "junction.db").write_bytes(b"not a database, but long enough to look at" * 10)
    with pytest.raises(UsageError, match=r"junction\.db cannot be read"):
        await open_store(default_url(tmp_path), vault)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be opened"):
        await open_store(default_url(tmp_path / "file"), vault)


async def test_a_postgres_that_is_not_there_says_so_without_its_password(vault, postgres):
    with pytest.raises(StoreUnavailable) as refused:
        await open_store("postgresql://u:canary@127.0.0.1:1/x", vault)
    assert "canary" not in str(refused.value)
    with pytest.raises(UsageError, match="refuses"):
        await open_store(postgres.replace("/postgres?", "/nosuch?"), vault)


async def test_migrations_are_numbered_without_gaps_and_applied_once(opener, dump):
    assert [one.number for one in migrations()] == list(range(1, len(migrations()) + 1))
    await opener()
    await opener()
    rows = await dump.run("SELECT number, name FROM migrations ORDER BY number")
    assert [(row[0], row[1]) for row in rows] == [(one.number, one.name) for one in migrations()]


def test_a_line_may_be_for_one_dialect():
    sql = "-- words; more\nCREATE TABLE x (\n  a TEXT -- a word\n)\nSTRICT -- only sqlite\n;\n"
    assert in_dialect(sql, Dialect.SQLITE) == "CREATE TABLE x (\n  a TEXT\n)\nSTRICT\n;\n"
    assert in_dialect(sql, Dialect.POSTGRES) == "CREATE TABLE x (\n  a TEXT\n)\n;\n"


async def test_a_store_from_a_newer_program_is_refused(opener, dump):
    await opener()
    await dump.run("INSERT INTO migrations (number, name, applied_at) VALUES (999, 'x', 0)")
    with pytest.raises(UsageError, match="schema 999"):
        await opener()


@pytest.mark.req("J-STORE")
async def test_many_processes_may_make_one_store_at_once(store_url, vault):
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN, store_url, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(6)
    ]
    ended = [(await one.communicate(), one.returncode) for one in started]
    assert [code for _, code in ended] == [0] * 6, ended
    async with await open_store(store_url, vault) as store:
        assert await store.events.bounds() == (1, 6)


class NoExtensions(asyncpg.Connection):
    """A connection that fails when it is asked which extensions there are."""

    opened: ClassVar[list[asyncpg.Connection]] = []

    async def fetch(self, query, *args, **options):
        if "pg_available_extensions" in query:
            self.opened.append(self)
            raise asyncpg.InternalClientError("asked for extensions")
        return await super().fetch(query, *args, **options)


async def test_a_postgres_that_fails_at_the_last_question_is_left_without_connections(
    vault, postgres
):
    with pytest.raises(StoreUnavailable):
        await open_store(await schema_url(postgres), vault, connection_class=NoExtensions)
    assert NoExtensions.opened
    assert all(connection.is_closed() for connection in NoExtensions.opened)


async def test_a_closed_store_says_so(tmp_path, vault, postgres):
    for url in (default_url(tmp_path), await schema_url(postgres)):
        store = await open_store(url, vault)
        await store.close()
        for attempt in (store.servers.all(), store.servers.add(server())):
            with pytest.raises(StoreUnavailable):
                await attempt


async def test_what_was_asked_before_closing_is_still_written(tmp_path, vault):
    store = await open_store(default_url(tmp_path), vault)
    waiting = [asyncio.ensure_future(store.servers.add(server(f"s{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*waiting)) == 50
    connection = sqlite3.connect(tmp_path / "junction.db")
    assert connection.execute("SELECT count(*) FROM servers").fetchone() == (50,)
    connection.close()
