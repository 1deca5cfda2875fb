"""PgVectors: a vector store in PostgreSQL, by the extension pgvector with an HNSW index.

The search of a few tools is exact: the index would pass over them. Tables are made when they are
first needed, one for each number of dimensions: the extension may not be there. The index is built
once many rows are there (``settle``), which takes a sixth of the time of adding them to it one by
one; until then a search of all reads the table.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeVar

from mcp_junction.errors import StoreError, VectorStoreError
from mcp_junction.protocol.names import Pair
from mcp_junction.search.vectors import VectorRow
from mcp_junction.store.database import Batch, Database, Query, Rows, Script

MOST_EXACT: Final = 1_000
"""Tools that are compared one by one; in more, what is nearest is left to the caller."""
INDEXED_FROM: Final = 5_000
"""Rows of a table from which on it has an index. To read fewer takes a few milliseconds."""
_APART: Final = "\x1f"
_SEARCHED: Final = 200
_AT_ONCE: Final = 100
"""Rows of one statement, which has to be done in the time that the store gives it."""
_RETIRED_AT_ONCE: Final = 10_000
_BUILD: Final = 1_800.0
"""Seconds that building an index may take."""
_T = TypeVar("_T")
_SET: Final = {
    "hnsw.ef_search": str(_SEARCHED),
    "hnsw.iterative_scan": "strict_order",
    "enable_sort": "off",
    "plan_cache_mode": "force_custom_plan",
}
"""For one query: go through the index, by a plan for this vector. Without statistics of a new
table the planner would sort all rows instead; a plan for any vector takes fifty times as long."""
_USE_INDEX: Final = Query(
    "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in _SET.items())
)
_PREPARE_BUILD: Final = Query(
    "SELECT set_config('maintenance_work_mem', greatest(pg_size_bytes('256MB'),"
    " pg_size_bytes(current_setting('maintenance_work_mem'))) / 1024 || 'kB', true),"
    " set_config('max_parallel_maintenance_workers', '0', true)"
)
"""For one index: memory for the graph of 100,000 vectors, without which it is built on disk. Not in
parallel: that takes shared memory, of which a container has little."""
_TABLES: Final = Query(
    "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    " AND tablename LIKE 'tool\\_nearness\\_%'"
)


class PgVectors:
    """The VectorStore of a PostgreSQL store. Raises VectorStoreError."""

    def __init__(self, database: Database, *, indexed_from: int = INDEXED_FROM) -> None:
        self._database = database
        self._indexed_from = indexed_from
        self._made: set[int] = set()
        self._schema = ""
        """Where the extension is: it need not be on the search path."""

    async def put(self, model: str, rows: Sequence[VectorRow]) -> None:
        if rows:
            await self._run(self._put(model, rows))

    async def remove(self, pairs: Sequence[Pair]) -> None:
        await self._run(self._remove(pairs))

    async def retire_others(self, model: str, pairs: Sequence[Pair]) -> None:
        await self._run(self._retire_others(model, pairs))

    async def settle(self) -> None:
        for table in await self._run(self._unindexed()):
            await self._run(self._index(table))

    async def nearest(
        self, model: str, query: bytes, limit: int, within: Sequence[Pair] | None
    ) -> list[tuple[Pair, float]]:
        if within is not None and len(within) > MOST_EXACT:
            return []
        return await self._run(self._nearest(model, query, limit, within))

    async def _run(self, script: Script[_T]) -> _T:
        try:
            return await self._database.write(script, durable=False)
        except StoreError as error:
            self._made.clear()
            raise VectorStoreError(f"pgvector cannot be used: {error}") from None

    def _make(self, size: int) -> Script[str]:
        table = f"tool_nearness_{size}"
        if size not in self._made:
            yield Query("SELECT pg_advisory_xact_lock(hashtext('junction.pgvector'))")
            yield Query("CREATE EXTENSION IF NOT EXISTS vector")
            yield from self._find_schema()
            yield Query(
                f"CREATE TABLE IF NOT EXISTS {table} (model TEXT NOT NULL, tool TEXT NOT NULL,"
                f" embedding {self._schema}.vector({size}) NOT NULL, PRIMARY KEY (model, tool))"
            )
            self._made.add(size)
        return table

    def _find_schema(self) -> Script[None]:
        rows = yield Query(
            "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector'"
        )
        self._schema = rows[0][0]

    @property
    def _given(self) -> str:
        """The expression of a vector that is passed as numbers."""
        return f"CAST(CAST(? AS real[]) AS {self._schema}.vector)"

    def _put(self, model: str, rows: Sequence[VectorRow]) -> Script[None]:
        """Store rows, some with each statement: each row takes its time in the index."""
        table = yield from self._make(len(rows[0].vector) // 4)
        sql = (
            f"INSERT INTO {table} (model, tool, embedding) VALUES (?, ?, {self._given})"
            " ON CONFLICT (model, tool) DO UPDATE SET embedding = excluded.embedding"
        )
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            yield Batch(sql, [(model, _key(row.pair), _numbers(row.vector)) for row in some])

    def _remove(self, pairs: Sequence[Pair]) -> Script[None]:
        rows: Rows = yield _TABLES
        keys = list(map(_key, pairs))
        for row in rows:
            yield Query(f"DELETE FROM {row[0]} WHERE tool = ANY(CAST(? AS text[]))", (keys,))

    def _retire_others(self, model: str, pairs: Sequence[Pair]) -> Script[None]:
        """Remove rows of other models, and tables without any."""
        keys = list(map(_key, pairs))
        tables: Rows = yield _TABLES
        for (table,) in tables:
            models = yield Query(f"SELECT min(model), max(model) FROM {table}")
            if set(models[0]) == {model}:
                continue
            for start in range(0, len(keys), _RETIRED_AT_ONCE):
                yield Query(
                    f"DELETE FROM {table} WHERE model <> ? AND tool = ANY(CAST(? AS text[]))",
                    (model, keys[start : start + _RETIRED_AT_ONCE]),
                )
            left: Rows = yield Query(f"SELECT 1 FROM {table} LIMIT 1")
            if not left:
                yield Query(f"DROP TABLE {table}")
                self._made.clear()

    def _unindexed(self) -> Script[list[str]]:
        """Return the tables that have many rows and no index."""
        found: list[str] = []
        tables: Rows = yield _TABLES
        for (table,) in tables:
            indexes = yield Query(
                "SELECT 1 FROM pg_indexes WHERE schemaname = current_schema() AND indexname = ?",
                (f"{table}_hnsw",),
            )
            if not indexes:
                skipped = self._indexed_from - 1
                many = yield Query(f"SELECT 1 FROM {table} OFFSET ? LIMIT 1", (skipped,))
                found += [table] if many else []
        return found

    def _index(self, table: str) -> Script[None]:
        """Build an index, unless another process is at it."""
        lock = yield Query("SELECT pg_try_advisory_xact_lock(hashtext('junction.pgvector.index'))")
        if lock[0][0]:
            yield from self._find_schema()
            yield _PREPARE_BUILD
            sql = (
                f"CREATE INDEX IF NOT EXISTS {table}_hnsw ON {table}"
                f" USING hnsw (embedding {self._schema}.vector_cosine_ops)"
            )
            yield Query(sql, patience=_BUILD)

    def _nearest(
        self, model: str, query: bytes, limit: int, within: Sequence[Pair] | None
    ) -> Script[list[tuple[Pair, float]]]:
        table = yield from self._make(len(query) // 4)
        vector, distance = _numbers(query), f"embedding OPERATOR({self._schema}.<=>) {self._given}"
        if within is None:
            yield _USE_INDEX
            rows = yield Query(
                f"SELECT tool, 1 - ({distance}) FROM {table}"
                f" WHERE model = ? ORDER BY {distance} LIMIT ?",
                (vector, model, vector, limit),
            )
        else:
            rows = yield Query(
                f"WITH few AS MATERIALIZED (SELECT tool, embedding FROM {table}"
                " WHERE model = ? AND tool = ANY(CAST(? AS text[])))"
                f" SELECT tool, 1 - ({distance}) AS cosine FROM few"
                " ORDER BY cosine DESC LIMIT ?",
                (model, list(map(_key, within)), vector, limit),
            )
        return [(_pair(row[0]), float(row[1])) for row in rows if row[1] is not None]


def _key(pair: Pair) -> str:
    return _APART.join(pair).replace("\0", "")


def _pair(key: str) -> Pair:
    server, _, name = key.partition(_APART)
    return Pair(server, name)


def _numbers(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)
