"""PgVectors: a vector store in PostgreSQL, by the extension pgvector with an HNSW index.

The search of a few tools is exact: the index would pass over them. Tables are made when they are
first needed, one for each number of dimensions: the extension may not be there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeVar

from mcp_junction.errors import StoreError, VectorStoreError
from mcp_junction.protocol.names import Pair
from mcp_junction.search.vectors import VectorRow
from mcp_junction.store.database import Database, Query, Rows, Script

MOST_EXACT: Final = 1_000
"""Tools that are compared one by one; in more, what is nearest is left to the caller."""
_APART: Final = "\x1f"
_SEARCHED: Final = 200
_AT_ONCE: Final = 100
"""Rows of one statement, which has to be done in the time that the store gives it."""
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


class PgVectors:
    """The VectorStore of a PostgreSQL store. Raises VectorStoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._made: set[int] = set()
        self._schema = ""
        """Where the extension is: it need not be on the search path."""

    async def put(self, model: str, rows: Sequence[VectorRow]) -> None:
        if rows:
            await self._run(self._put(model, rows))

    async def remove(self, pairs: Sequence[Pair]) -> None:
        await self._run(self._remove(pairs))

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
            rows = yield Query(
                "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector'"
            )
            self._schema = rows[0][0]
            yield Query(
                f"CREATE TABLE IF NOT EXISTS {table} (model TEXT NOT NULL, tool TEXT NOT NULL,"
                f" embedding {self._schema}.vector({size}) NOT NULL, PRIMARY KEY (model, tool))"
            )
            yield Query(
                f"CREATE INDEX IF NOT EXISTS {table}_hnsw ON {table}"
                f" USING hnsw (embedding {self._schema}.vector_cosine_ops)"
            )
            self._made.add(size)
        return table

    @property
    def _given(self) -> str:
        """The expression of a vector that is passed as text."""
        return f"CAST(CAST(? AS text) AS {self._schema}.vector)"

    def _put(self, model: str, rows: Sequence[VectorRow]) -> Script[None]:
        """Store rows, some with each statement: each row takes its time in the index."""
        table = yield from self._make(len(rows[0].vector) // 4)
        sql = (
            f"INSERT INTO {table} (model, tool, embedding)"
            f" SELECT CAST(? AS text), tool, CAST(embedding AS {self._schema}.vector)"
            " FROM unnest(CAST(? AS text[]), CAST(? AS text[])) AS given (tool, embedding)"
            " ON CONFLICT (model, tool) DO UPDATE SET embedding = excluded.embedding"
        )
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            keys, vectors = [_key(row.pair) for row in some], [_text(row.vector) for row in some]
            yield Query(sql, (model, keys, vectors))

    def _remove(self, pairs: Sequence[Pair]) -> Script[None]:
        rows: Rows = yield Query(
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
            " AND tablename LIKE 'tool_nearness_%'"
        )
        keys = list(map(_key, pairs))
        for row in rows:
            yield Query(f"DELETE FROM {row[0]} WHERE tool = ANY(CAST(? AS text[]))", (keys,))

    def _nearest(
        self, model: str, query: bytes, limit: int, within: Sequence[Pair] | None
    ) -> Script[list[tuple[Pair, float]]]:
        table = yield from self._make(len(query) // 4)
        vector, distance = _text(query), f"embedding OPERATOR({self._schema}.<=>) {self._given}"
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


def _text(vector: bytes) -> str:
    numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
    return "[" + ",".join(map(repr, numbers)) + "]"
