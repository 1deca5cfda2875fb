"""A pytest plugin: stores to test with. What asks for `store` runs on SQLite and on PostgreSQL.

They have their tables already (`made_stores.py`), unless a module says that it `has_tables` not.
"""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest
from tests.made_stores import made_schemas, make_tables, schema_url
from tests.postgres_server import NoPostgres, shared

from mcp_junction.audit.checkpoints import CheckpointDirectory
from mcp_junction.audit.log import AuditLog
from mcp_junction.store.store import Store, default_url, open_store
from mcp_junction.vault.vault import Vault

BACKENDS = ("sqlite", "postgres")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """The URL of a PostgreSQL that all of this session share."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    try:
        with shared(folder / "postgres") as url:
            yield url
    except NoPostgres as error:
        pytest.skip(f"NO POSTGRESQL, SO HALF OF THE STORE IS NOT TESTED: {error}")


@pytest.fixture
def has_tables() -> bool:
    """Whether a store has its tables before it is opened."""
    return True


@pytest.fixture(params=BACKENDS)
async def store_url(request, tmp_path, has_tables) -> AsyncIterator[str]:
    """The URL of an empty store."""
    if request.param == "sqlite":
        url = default_url(tmp_path / "store")
        yield make_tables(url) if has_tables else url
        return
    server = request.getfixturevalue("postgres")
    if not has_tables:
        yield await schema_url(server)
        return
    url = await made_schemas(server).take()
    yield url
    await made_schemas(server).give_back(url)


@pytest.fixture
async def another_store_url(request, store_url, tmp_path):
    """Makes further stores of the same kind, empty and with their tables; returns their URLs."""
    async with AsyncExitStack() as stack:

        async def make(folder: str) -> str:
            if store_url.startswith("sqlite"):
                return make_tables(default_url(tmp_path / folder))
            schemas = made_schemas(request.getfixturevalue("postgres"))
            url = await schemas.take()
            stack.push_async_callback(schemas.give_back, url)
            return url

        yield make


@pytest.fixture
def vault() -> Vault:
    return Vault([bytes(range(32))])


class Opener:
    """Opens the test's store, as often as it is asked."""

    def __init__(self, stack: AsyncExitStack, url: str, vault: Vault, folder) -> None:
        self._stack = stack
        self.url = url
        self.vault = vault
        self.checkpoints = CheckpointDirectory(folder)

    async def __call__(self, **options) -> Store:
        store = await open_store(self.url, self.vault, **options)
        self._stack.push_async_callback(store.close)
        return store

    async def log(self, store: Store, **options) -> AuditLog:
        """One more writer of the audit; it is open until the test ends."""
        return await self._stack.enter_async_context(self.new_log(store, **options))

    def new_log(self, store: Store, **options) -> AuditLog:
        key = self.vault.derive_keys("audit")[0]
        return AuditLog(store.audit, key, self.vault.key_id, self.checkpoints, **options)


@pytest.fixture
async def opener(store_url, vault, tmp_path):
    async with AsyncExitStack() as stack:
        yield Opener(stack, store_url, vault, tmp_path / "data")


@pytest.fixture
async def store(opener) -> Store:
    return await opener()


class Dump:
    """The database as somebody sees it who has nothing but the database."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def file(self) -> Path:
        return Path(self._url.removeprefix("sqlite:///"))

    async def __call__(self) -> bytes:
        """All bytes of it."""
        if self._url.startswith("sqlite"):
            return b"".join(path.read_bytes() for path in self.file.parent.glob("junction.db*"))
        rows = []
        names = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        for (table,) in await self.run(names):
            rows += await self.run(f"SELECT * FROM {table}")
        return repr([tuple(row) for row in rows]).encode()

    async def run(self, sql: str) -> list:
        """Tamper with it."""
        if self._url.startswith("sqlite"):
            connection = sqlite3.connect(self.file, isolation_level=None)
            try:
                return connection.execute(sql).fetchall()
            finally:
                connection.close()
        connection = await asyncpg.connect(self._url)
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()


@pytest.fixture
def dump(store_url) -> Dump:
    return Dump(store_url)
