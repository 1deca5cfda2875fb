"""QdrantVectors: a vector store in Qdrant, by URL, with what is known of each tool as its payload.

The client is the extra ``mcp-junction[qdrant]``, imported when it is used. A collection holds the
vectors of one model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid5

from mcp_junction.errors import VectorStoreError
from mcp_junction.protocol.names import Pair
from mcp_junction.search.static_table import to_floats
from mcp_junction.search.vectors import VectorRow
from mcp_junction.search.words import text_hash

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient

Payload = dict[str, Any]
INDEXED: Final = {
    "source_server_id": "keyword",
    "source_server_name": "keyword",
    "original_name": "text",
    "is_external": "bool",
    "is_classified": "bool",
    "skill_ids": "keyword",
    "primary_skill_id": "keyword",
}
"""The members of a payload that Qdrant indexes, with their types."""
MOST_NAMED: Final = 10_000
"""Tools that a search can be limited to."""
_IDS: Final = UUID("7b1f4c9e-5f0a-4a0e-9a75-2f6f0c6f3c11")
_BATCH: Final = 200


class QdrantVectors:
    """The VectorStore of a Qdrant. Raises VectorStoreError."""

    def __init__(
        self,
        client: AsyncQdrantClient,
        describe: Callable[[Sequence[Pair]], Awaitable[list[Payload]]],
    ) -> None:
        """``describe`` makes the payloads of tools."""
        from qdrant_client import models  # an extra

        self._models = models
        self._client = client
        self._describe = describe
        self._made: set[str] = set()
        self._names: dict[str, str] = {}
        """The collection of each model that was used."""

    @classmethod
    def connect(
        cls, url: str, describe: Callable[[Sequence[Pair]], Awaitable[list[Payload]]]
    ) -> QdrantVectors:
        """Make a client of the Qdrant at a URL. Raises VectorStoreError without the extra."""
        try:
            from qdrant_client import AsyncQdrantClient
        except ImportError:
            raise VectorStoreError("install mcp-junction[qdrant] to use Qdrant") from None
        return cls(AsyncQdrantClient(url=url, timeout=5, check_compatibility=False), describe)

    async def put(self, model: str, rows: Sequence[VectorRow]) -> None:
        for start in range(0, len(rows), _BATCH):
            page = rows[start : start + _BATCH]
            payloads = await self._describe([row.pair for row in page])
            points = [
                self._models.PointStruct(
                    id=point_id(row.pair),
                    vector=to_floats(row.vector),
                    payload={**payload, "junction_pair": list(row.pair)},
                )
                for row, payload in zip(page, payloads, strict=True)
            ]
            name = await self._collection(model, len(page[0].vector) // 4)
            await self._ask(self._client.upsert(name, points))

    async def remove(self, pairs: Sequence[Pair]) -> None:
        selector = self._models.PointIdsList(points=[*map(point_id, pairs)])
        for name in await self._collections():
            await self._ask(self._client.delete(name, selector))

    async def retire_others(self, model: str, pairs: Sequence[Pair]) -> None:
        """Remove tools from the collections of other models, and collections without any."""
        current = self._names.get(model)
        others = [name for name in await self._collections() if name != current]
        for name in others if current is not None else ():
            for start in range(0, len(pairs), _BATCH):
                ids = list(map(point_id, pairs[start : start + _BATCH]))
                selector = self._models.PointIdsList(points=[*ids])
                await self._ask(self._client.delete(name, selector))
            if not (await self._ask(self._client.count(name))).count:
                await self._ask(self._client.delete_collection(name))
                self._made.discard(name)

    async def settle(self) -> None:
        """Nothing: Qdrant makes its indexes by itself."""

    async def _collections(self) -> list[str]:
        """Return the names of the collections that we have made, now or before."""
        found = await self._ask(self._client.get_collections())
        return [one.name for one in found.collections if one.name.startswith(_PREFIX)]

    async def nearest(
        self, model: str, query: bytes, limit: int, within: Sequence[Pair] | None
    ) -> list[tuple[Pair, float]]:
        if within is not None and len(within) > MOST_NAMED:
            return []
        chosen = None
        if within is not None:
            ids: list[Any] = list(map(point_id, within))
            chosen = self._models.Filter(must=[self._models.HasIdCondition(has_id=ids)])
        name = await self._collection(model, len(query) // 4)
        found = await self._ask(
            self._client.query_points(
                name, query=to_floats(query), limit=limit, query_filter=chosen, with_payload=True
            )
        )
        return [
            (Pair(*point.payload["junction_pair"]), float(point.score))
            for point in found.points
            if point.payload
        ]

    async def _collection(self, model: str, dimensions: int) -> str:
        """Return the collection of a model; make it, with its indexes, if it is not there."""
        name = f"{_PREFIX}{text_hash(f'{model} {dimensions}')}"
        if name not in self._made:
            if not await self._ask(self._client.collection_exists(name)):
                size = self._models.VectorParams(
                    size=dimensions, distance=self._models.Distance.COSINE
                )
                await self._ask(self._client.create_collection(name, vectors_config=size))
                for field, kind in INDEXED.items():
                    schema = self._models.PayloadSchemaType(kind)
                    await self._ask(self._client.create_payload_index(name, field, schema))
            self._made.add(name)
            self._names[model] = name
        return name

    async def _ask(self, asked: Awaitable[Any]) -> Any:
        try:
            return await asked
        except Exception as error:  # noqa: BLE001 - whatever the client raises
            self._made.clear()  # it may come back empty
            raise VectorStoreError(f"Qdrant cannot be used: {type(error).__name__}") from None


_PREFIX: Final = "junction_tools_"


def point_id(pair: Pair) -> str:
    """Return the id of a tool's point: a UUID made of its server and name."""
    return str(uuid5(_IDS, "\x1f".join(pair)))
