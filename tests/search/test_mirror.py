"""A vector store gets what it lacks, whenever that is noted."""

import asyncio

from tests.fakes.memory_cache import MemoryCache

from mcp_junction.protocol.names import Pair
from mcp_junction.search.mirror import VectorMirror
from mcp_junction.search.vectors import KeptVector
from mcp_junction.tasks import TaskScope


class ListingStore:
    """A vector store that lists what it has; `on_settled` is called soon after it was settled."""

    def __init__(self, on_settled) -> None:
        self.pairs: list[Pair] = []
        self._on_settled = on_settled

    async def put(self, model, rows):
        self.pairs += [row.pair for row in rows]

    async def retire_others(self, model, pairs):
        pass

    async def settle(self):
        asyncio.get_running_loop().call_soon(self._on_settled)


async def test_a_tool_that_comes_while_memory_is_given_back_is_given_to_the_store():
    first, late = Pair("sky", "fly"), Pair("sky", "land")

    def note(pair: Pair) -> None:
        mirror.put(pair, "hash")
        mirror.wake()

    noted = iter([lambda: note(late), lambda: None])
    tasks, cache, store = TaskScope("test"), MemoryCache(), ListingStore(lambda: next(noted)())
    mirror = VectorMirror(tasks, store, cache, "m", kept_here=frozenset(), retry=0.01)
    vectors = {pair.name: KeptVector("hash", b"v") for pair in (first, late)}
    await cache.save("sky", "m", vectors)
    note(first)
    async with asyncio.timeout(10):
        await mirror.wait_until_current()
    await tasks.close()
    assert store.pairs == [first, late]
