"""MemoryCache: a VectorCache that keeps vectors in memory alone."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_junction.protocol.names import Pair
from mcp_junction.search.vectors import KeptVector


class MemoryCache:
    """Keeps vectors in memory, where there is no store."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], dict[str, KeptVector]] = {}

    async def load(self, server: str, model: str) -> Mapping[str, KeptVector]:
        return self._kept.get((server, model), {})

    async def save(self, server: str, model: str, vectors: Mapping[str, KeptVector]) -> None:
        self._kept.setdefault((server, model), {}).update(vectors)

    def forget(self, pair: Pair, model: str) -> None:
        key = pair.server, model
        vectors = self._kept.get(key, {})
        vectors.pop(pair.name, None)
        if not vectors:
            self._kept.pop(key, None)
