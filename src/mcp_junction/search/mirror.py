"""VectorMirror: keeps a vector store as the index is, in the background, and asks it.

It is told which tools have a vector by now and which have left, reads the vectors from the cache
and gives them to the store. While the store is away, that is retried, and searches do without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from mcp_junction.errors import JunctionError, VectorStoreError
from mcp_junction.memory import return_free_memory
from mcp_junction.protocol.names import Pair
from mcp_junction.search.vectors import VectorCache, VectorRow, VectorStore
from mcp_junction.tasks import OnDemandTask, TaskScope

log = logging.getLogger("mcp_junction.search")

NEAREST: Final = 200
"""Tools that a vector store is asked for."""


class VectorMirror:
    """The vectors of one model in a vector store."""

    def __init__(
        self,
        tasks: TaskScope,
        store: VectorStore,
        cache: VectorCache,
        model: str,
        *,
        kept_here: frozenset[str],
        retry: float,
    ) -> None:
        """``store`` gets no tools of the servers in ``kept_here``."""
        self._store = store
        self._cache = cache
        self._model = model
        self._kept_here = kept_here
        self._retry = retry
        self._wanted: dict[Pair, str] = {}
        """Tools to give to the store, each with the hash of its text."""
        self._removed: set[Pair] = set()
        self._given: list[Pair] = []
        """Tools that were given since the store was last settled."""
        self._task = OnDemandTask(tasks, "vector store", self._work)
        self.wait_until_current = self._task.wait_until_done
        """Waits until the store has everything."""
        self.error = ""
        """Why the store could not be asked the last time; empty when it could."""

    # -- giving

    def put(self, pair: Pair, hash_: str) -> None:
        """Note that a vector is kept, of a text with this hash."""
        if pair.server not in self._kept_here:
            self._wanted[pair] = hash_

    def remove(self, pair: Pair) -> None:
        """Note that a tool has left; it may come back at once."""
        if pair.server not in self._kept_here:
            self._wanted.pop(pair, None)
            self._removed.add(pair)

    def wake(self) -> None:
        """Give the store what was noted, in the background."""
        if self._is_behind:
            self._task.wake()

    @property
    def _is_behind(self) -> bool:
        return bool(self._removed or self._wanted or self._given)

    async def _work(self) -> None:
        self._task.news.clear()
        while self._is_behind:
            try:
                await self._give()
                await self._settle()
            except JunctionError as error:
                log.warning("the vector store lacks tools, and gets them later: %s", error)
                await asyncio.sleep(self._retry)
        await return_free_memory()

    async def _give(self) -> None:
        removed, self._removed = self._removed, set()
        try:
            if removed:
                await self._store.remove(list(removed))
                removed = set()
        finally:
            self._removed |= removed
        for server in {pair.server for pair in self._wanted}:
            hashes = {p: hash_ for p, hash_ in self._wanted.items() if p.server == server}
            await self._give_server(server, hashes)
            for pair, hash_ in hashes.items():
                if self._wanted.get(pair) == hash_:  # else it has changed meanwhile
                    del self._wanted[pair]

    async def _give_server(self, server: str, hashes: Mapping[Pair, str]) -> None:
        kept = await self._cache.load(server, self._model)
        found = ((pair, kept.get(pair.name), hash_) for pair, hash_ in hashes.items())
        rows = [
            VectorRow(pair, vector.vector)
            for pair, vector, hash_ in found
            if vector is not None and vector.hash == hash_
        ]
        if rows:
            await self._store.put(self._model, rows)
            self._given += [row.pair for row in rows]

    async def _settle(self) -> None:
        """Have the store prepare for searches, once it has everything, and forget what former
        models made of the same tools."""
        if self._given and not (self._removed or self._wanted):
            await self._store.retire_others(self._model, self._given)
            await self._store.settle()
            self._given = []

    # -- asking

    async def find_nearest(
        self, query: bytes, within: Sequence[Pair] | None
    ) -> list[tuple[Pair, float]]:
        """Return the nearest tools with their cosines; none while the store is away."""
        try:
            found = await self._store.nearest(self._model, query, NEAREST, within)
        except VectorStoreError as error:
            self.error = str(error)
            log.warning("the vector store is away, memory is searched: %s", error)
            return []
        self.error = ""
        return found
