"""Stores that have their tables before a test opens them: making all takes longer than most tests.

A SQLite file is copied from one that has them. A schema of PostgreSQL is emptied after a test and
used again by the same worker.
"""

import asyncio
import atexit
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from uuid import uuid4

import asyncpg

from mcp_junction.store.store import default_url, open_store
from mcp_junction.vault.vault import Vault


async def schema_url(server: str) -> str:
    """The URL of an empty schema on a server."""
    name = f"t{uuid4().hex}"
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"CREATE SCHEMA {name}")
    finally:
        await connection.close()
    return f"{server}&search_path={name}"


class MadeSchemas:
    """Schemas of a server that have all tables, and that no test uses now."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._free: list[str] = []
        self._shape = ""

    async def take(self) -> str:
        """The URL of one that is empty."""
        if not self._free:
            url = await schema_url(self._server)
            name = url.rpartition("=")[2]
            url += f"&application_name={name}"
            await (await open_store(url, Vault([bytes(32)]))).close()
            self._shape = self._shape or await self._run(self._shape_of, name)
            return url
        return self._free.pop()

    async def give_back(self, url: str) -> None:
        """Empty it for the next test, unless a test has changed the tables themselves."""
        name = url.rpartition("=")[2]
        await self._run(self._disconnect, name)
        if await self._run(self._shape_of, name) == self._shape:
            await self._run(self._empty, name)
            self._free.append(url)

    async def _run(self, act, name: str):
        connection = await asyncpg.connect(self._server)
        try:
            return await act(connection, name)
        finally:
            await connection.close()

    async def _disconnect(self, connection, name: str) -> None:
        """End the connections of what the test has left behind."""
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"
        await connection.fetch(sql, name)

    async def _shape_of(self, connection, name: str) -> str:
        return await connection.fetchval(SHAPE, name) + repr(
            await connection.fetch(f"SELECT number FROM {name}.migrations ORDER BY number")
        )

    async def _empty(self, connection, name: str) -> None:
        tables = await connection.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = $1", name
        )
        deletes = [f"DELETE FROM {name}.{row[0]}" for row in tables if row[0] != "migrations"]
        await connection.execute(
            "; ".join(["SET LOCAL session_replication_role = replica", *deletes])
        )


SHAPE = """
    SELECT md5(string_agg(concat_ws(' ', c.relname, c.relkind, c.relhastriggers, a.attname,
        a.atttypid, a.attnotnull, a.attisdropped), ',' ORDER BY c.relname, a.attnum))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = CAST(CAST($1 AS text) AS regnamespace)
"""


@cache
def made_schemas(server: str) -> MadeSchemas:
    return MadeSchemas(server)


@cache
def _made_file() -> Path:
    """A SQLite file that has all tables."""
    folder = Path(tempfile.mkdtemp(prefix="jct-store-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    url = default_url(folder)

    async def make() -> None:
        await (await open_store(url, Vault([bytes(32)]))).close()

    with ThreadPoolExecutor(1) as thread:  # this one may have a loop
        thread.submit(asyncio.run, make()).result()
    return Path(url.removeprefix("sqlite:///"))


def make_tables(url: str) -> str:
    """Make the file of a SQLite store with all tables, if it is not there; its URL."""
    path = Path(url.removeprefix("sqlite:///"))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copy(_made_file(), path)
    return url
