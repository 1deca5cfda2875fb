"""What search by meaning is made of: VectorCache, EmbeddingModel, RankingProcess, VectorStore.

These are protocols. ``semantic.py`` puts them together; the stores and models are elsewhere, except
MemoryCache, for where there is no store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mcp_junction.protocol.names import Pair
from mcp_junction.search.ranking import Ranked, RankingJob


class KeptVector(NamedTuple):
    """A vector, and the hash of the text that it was made of."""

    hash: str
    vector: bytes


class VectorCache(Protocol):
    """Keeps the vectors of tools by model. Every method may raise StoreError."""

    async def load(self, server: str, model: str) -> Mapping[str, KeptVector]:
        """Return the vectors of a server's tools, by name."""
        ...

    async def save(self, server: str, model: str, vectors: Mapping[str, KeptVector]) -> None:
        """Keep vectors of a server's tools, instead of those they had by this model."""
        ...


class MemoryCache:
    """Keeps vectors in memory, where there is no store."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], dict[str, KeptVector]] = {}

    async def load(self, server: str, model: str) -> Mapping[str, KeptVector]:
        return self._kept.get((server, model), {})

    async def save(self, server: str, model: str, vectors: Mapping[str, KeptVector]) -> None:
        self._kept.setdefault((server, model), {}).update(vectors)


class EmbeddingModel(Protocol):
    """Turns texts into vectors. Both methods may raise ModelUnavailable."""

    @property
    def id(self) -> str:
        """Names the model: its vectors are never compared with those of another."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector of length 1 for each text, as little-endian float32."""
        ...

    async def embed_query(self, text: str) -> bytes:
        """Return the vector of a query."""
        ...


class RankingProcess(Protocol):
    """The process that holds vectors and ranks. Every method may raise ModelUnavailable."""

    async def embed(self, texts: Sequence[str]) -> list[bytes]: ...

    async def rank(self, job: RankingJob) -> Ranked: ...


Embed = Callable[[Sequence[str]], Awaitable[list[bytes]]]


class VectorRow(NamedTuple):
    """A tool with its vector, for a vector store."""

    pair: Pair
    vector: bytes


class VectorStore(Protocol):
    """A database of vectors. Every method may raise VectorStoreError."""

    async def put(self, model: str, rows: Sequence[VectorRow]) -> None:
        """Store vectors by a model, instead of those that the tools had."""
        ...

    async def remove(self, pairs: Sequence[Pair]) -> None:
        """Remove tools, if they are there."""
        ...

    async def retire_others(self, model: str, pairs: Sequence[Pair]) -> None:
        """Remove what other models made of these tools: this one has taken over."""
        ...

    async def settle(self) -> None:
        """Prepare for searches: all tools are there."""
        ...

    async def nearest(
        self, model: str, query: bytes, limit: int, within: Sequence[Pair] | None
    ) -> list[tuple[Pair, float]]:
        """Return the nearest tools with their cosines, best first, among those given, or all.

        A store may pass on a search among too many tools, and return nothing.
        """
        ...
