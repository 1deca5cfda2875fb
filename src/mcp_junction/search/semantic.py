"""SemanticIndex: the vectors of tools: computed, kept, and used by a process that ranks.

It follows the keyword index (``finder.py``): each tool that is indexed by words comes here with its
number and the text to embed. In the background each text is looked up among the kept vectors, or
embedded, and kept. The process that ranks (``ranking.py``) is started when there are many tools, or
by a search, is given the kept vectors, and may end at any time: an answer says how many tools it
holds. A search waits for it for a moment, and else goes by words alone.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from mcp_junction.errors import JunctionError, ModelUnavailable
from mcp_junction.memory import return_free_memory
from mcp_junction.protocol.names import Pair
from mcp_junction.search.mirror import VectorMirror
from mcp_junction.search.ranker_cache import RankerCache, RankRequest
from mcp_junction.search.static_table import MODEL
from mcp_junction.search.vectors import (
    DropRows,
    Embed,
    EmbeddingModel,
    KeptVector,
    Ranked,
    RankingProcess,
    VectorCache,
    VectorRows,
    VectorStore,
)
from mcp_junction.search.words import text_hash
from mcp_junction.slices import Breaks
from mcp_junction.tasks import TaskScope

log = logging.getLogger("mcp_junction.search")

PAGE: Final = 100
"""Texts that are embedded at once."""
SEARCH_MODEL: Final = f"{MODEL}/search"
"""The id of the static table and of what it embeds: a tool with its server's title."""
PATIENCE: Final = 2.0
"""Seconds that a search waits for vectors before it goes by words alone."""
RETRY: Final = 30.0
WARM_FROM: Final = 200
"""Tools from which on the process that ranks is started before the first search."""
FIRST_PATIENCE: Final = 0.1
"""Seconds that a search waits for that process while it is started ahead for the first time."""


class _Tool(NamedTuple):
    pair: Pair
    hash: str


class _Feed:
    """One model: the texts that it has not embedded yet, and what the process holds of it."""

    def __init__(self, model: str, embed: Embed, *, is_deep: bool = False) -> None:
        self.model = model
        self.embed = embed
        self.is_deep = is_deep
        self.texts: dict[int, str] = {}
        self.held: dict[int, str] = {}
        """Numbers, each with the hash of its text."""


class SemanticIndex:
    """Keeps the vectors of all indexed tools, and ranks by them."""

    def __init__(
        self,
        tasks: TaskScope,
        process: RankingProcess,
        cache: VectorCache,
        embedder: RankingProcess | None = None,
        deep: EmbeddingModel | None = None,
        store: VectorStore | None = None,
        *,
        kept_here: frozenset[str] = frozenset(),
        patience: float = PATIENCE,
        retry: float = RETRY,
    ) -> None:
        """``process`` ranks; ``embedder`` embeds in the background; ``deep`` is a second model.

        ``store`` is given the vectors of the last model, and asked what is nearest; it gets none
        of the servers in ``kept_here``.
        """
        self._tasks = tasks
        self._process = process
        self._state = RankerCache(process)
        self._cache = cache
        self._deep = deep
        self._patience = patience
        self._retry = retry
        self._feeds = [_Feed(SEARCH_MODEL, (embedder or process).embed)]
        if deep is not None:
            self._feeds.append(_Feed(deep.id, deep.embed, is_deep=True))
        self._tools: dict[int, _Tool] = {}
        self._numbers: dict[Pair, int] = {}
        self._servers: dict[str, int] = {}
        self._mirror: VectorMirror | None = None
        if store is not None:
            model = self._feeds[-1].model
            self._mirror = VectorMirror(
                tasks, store, self._cache, model, kept_here=kept_here, retry=retry
            )
        self._is_warm = False
        self._has_ranked = False
        self._changes = 0
        self._filled = 0
        """How many changes the process knows of."""
        self._working: asyncio.Task[None] | None = None
        self._filling: asyncio.Task[None] | None = None

    @property
    def embedded(self) -> int:
        """How many tools have a vector."""
        return len(self._tools) - len(self._feeds[0].texts)

    @property
    def store_error(self) -> str:
        """Why the vector store could not be asked the last time; empty when it could."""
        return self._mirror.error if self._mirror is not None else ""

    # -- following the keyword index

    def put(self, number: int, pair: Pair, text: str) -> None:
        """Add a tool, or replace its text."""
        self._tools[number] = _Tool(pair, text_hash(text))
        self._numbers[pair] = number
        for feed in self._feeds:
            feed.texts[number] = text
        self._servers.setdefault(pair.server, len(self._servers))
        self._changes += 1

    def remove(self, number: int) -> None:
        """Remove a tool; its number may be given to another at once."""
        tool = self._tools.pop(number, None)
        if tool is not None:
            self._numbers.pop(tool.pair, None)
        for feed in self._feeds:
            feed.texts.pop(number, None)
            if tool is not None:
                self._cache.forget(tool.pair, feed.model)
        if tool is not None and self._mirror is not None:
            self._mirror.remove(tool.pair)
        self._changes += 1

    def wake(self) -> None:
        """Embed what is new, in the background."""
        if not self._is_behind:
            self._wake_mirror()
        elif self._working is None or self._working.done():
            self._working = self._tasks.supervise("search vectors", self._work, is_vital=False)

    def refresh(self, pairs: Iterable[Pair]) -> None:
        """Give tools to the vector store again: what is known of them has changed."""
        if self._mirror is not None:
            for number in {self._numbers[pair] for pair in pairs if pair in self._numbers}:
                if number not in self._feeds[-1].texts:
                    self._mirror.put(*self._tools[number])
            self._mirror.wake()

    async def wait_until_embedded(self) -> None:
        """Wait until nothing is left to embed, or to give to the vector store."""
        if self._working is not None:
            await asyncio.wait({self._working})
        if self._mirror is not None:
            await self._mirror.wait_until_current()

    def _wake_mirror(self) -> None:
        if self._mirror is not None:
            self._mirror.wake()

    @property
    def _is_behind(self) -> bool:
        return any(feed.texts for feed in self._feeds)

    async def _work(self) -> None:
        if not self._is_warm and len(self._tools) >= WARM_FROM:
            self._tasks.spawn(self._start_process())  # while the first vectors are made
        while self._is_behind:
            try:
                for feed in self._feeds:
                    await self._embed_all(feed)
                    await self._warm_up()
            except JunctionError as error:
                log.warning("tools cannot be embedded now, and will be later: %s", error)
                await asyncio.sleep(self._retry)
        self._wake_mirror()
        await return_free_memory()

    async def _embed_all(self, feed: _Feed) -> None:
        """Embed all texts, a server at a time; a text leaves when its vector is kept."""
        breaks = Breaks()
        while feed.texts:
            server = self._tools[next(iter(feed.texts))].pair.server
            numbers = [n for n in feed.texts if self._tools[n].pair.server == server]
            kept = await self._cache.load(server, feed.model)
            done = [number for number in numbers if self._is_kept(number, kept)]
            self._settle(feed, [(number, self._tools[number]) for number in done])
            lacking = [n for n in numbers if n in feed.texts]
            for start in range(0, len(lacking), PAGE):
                await self._embed_page(feed, lacking[start : start + PAGE])
                await breaks.rest()

    def _is_kept(self, number: int, kept: Mapping[str, KeptVector]) -> bool:
        tool = self._tools.get(number)
        found = kept.get(tool.pair.name) if tool is not None else None
        return tool is not None and found is not None and found.hash == tool.hash

    async def _embed_page(self, feed: _Feed, numbers: Sequence[int]) -> None:
        page = [(n, self._tools[n], feed.texts[n]) for n in numbers if n in feed.texts]
        if not page:
            return
        vectors = await feed.embed([text for *_, text in page])
        kept = {
            tool.pair.name: KeptVector(tool.hash, vector)
            for (_, tool, _), vector in zip(page, vectors, strict=True)
        }
        await self._cache.save(page[0][1].pair.server, feed.model, kept)
        for _, tool, _ in page:
            if tool.pair not in self._numbers:  # it has left meanwhile
                self._cache.forget(tool.pair, feed.model)
        self._settle(feed, [(number, tool) for number, tool, _ in page])

    def _settle(self, feed: _Feed, done: Sequence[tuple[int, _Tool]]) -> None:
        """Note that vectors are kept, of tools that have not changed meanwhile."""
        for number, tool in done:
            if self._tools.get(number) == tool:
                feed.texts.pop(number, None)
                if feed is self._feeds[-1] and self._mirror is not None:
                    self._mirror.put(*tool)
        self._changes += 1

    def _group(self, numbers: Iterable[int]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number in numbers:
            found.setdefault(self._tools[number].pair.server, []).append(number)
        return found

    # -- ranking

    async def rank(self, request: RankRequest) -> Ranked | None:
        """Rank by meaning and words; None while that is not possible, and words have to do."""
        patience = self._patience
        if not self._has_ranked and len(self._tools) >= WARM_FROM:
            patience = min(patience, FIRST_PATIENCE)
        try:
            async with asyncio.timeout(patience):
                more = await self._ask_others(request)
                answer = await self._rank(request, more)
                if answer.is_lacking or answer.rows < len(self._feeds[0].held):
                    self._forget_process()
                    answer = await self._rank(request, more)
                self._has_ranked = True
                return answer if not answer.is_lacking else None
        except TimeoutError:
            log.info("the vectors are not there yet: this search goes by words")
        except JunctionError as error:
            log.warning("this search goes by words alone: %s", error)
        return None

    def _forget_process(self) -> None:
        """Give the process everything again: it was started again."""
        for feed in self._feeds:
            feed.held.clear()
        self._state.forget()
        self._filled = -1

    async def _rank(self, request: RankRequest, more: Mapping[str, bytes]) -> Ranked:
        if self._filled != self._changes:
            await self._wait_until_filled()
        job = await self._state.prepare(request)
        return await self._process.rank(msgspec.structs.replace(job, **more))

    async def _start_process(self) -> None:
        """Have the process that ranks load what it needs."""
        try:
            await self._process.embed([""])
        except ModelUnavailable as error:
            log.info("the process that ranks could not be started ahead of a search: %s", error)

    async def _warm_up(self) -> None:
        """Give the process that ranks its vectors, when there are many tools for the first time.

        Not again for each change: it ends when nobody searches.
        """
        was_warm, self._is_warm = self._is_warm, len(self._tools) >= WARM_FROM
        if self._is_warm and not was_warm:
            try:
                await self._wait_until_filled()
                self._has_ranked = True
            except ModelUnavailable as error:
                log.info("the process that ranks could not be started ahead of a search: %s", error)

    async def _wait_until_filled(self) -> None:
        if self._filling is None or self._filling.done():
            self._filling = self._tasks.spawn(self._fill())
        await asyncio.shield(self._filling)  # it goes on when this search gives up

    async def _ask_others(self, request: RankRequest) -> dict[str, bytes]:
        """Return what the second model and the vector store say of the query, for the job."""
        query = b""
        if self._deep is not None:
            try:
                query = await self._deep.embed_query(request.query)
            except ModelUnavailable as error:
                log.warning("this search goes without the second model: %s", error)
        if self._mirror is None or (self._deep is not None and not query):
            return {"deep_query": query}
        vector = query or (await self._process.embed([request.query]))[0]
        within = None
        if request.is_limited:
            mask = request.admitted.mask
            within = [tool.pair for n, tool in self._tools.items() if n < len(mask) and mask[n]]
        near = await self._mirror.find_nearest(vector, within)
        known = [(self._numbers[pair], score) for pair, score in near if pair in self._numbers]
        return {
            "deep_query": query,
            "near_numbers": array("I", [number for number, _ in known]).tobytes(),
            "near_scores": array("f", [score for _, score in known]).tobytes(),
        }

    async def _fill(self) -> None:
        """Give the process the kept vectors that it lacks, and take those that are outdated."""
        changes = self._changes
        for feed in self._feeds:
            hashes = {number: tool.hash for number, tool in self._tools.items()}
            outdated = [n for n, hash_ in feed.held.items() if hashes.get(n) != hash_]
            if outdated:
                await self._process.rank(DropRows(outdated, feed.is_deep))
                for number in outdated:
                    del feed.held[number]
            lacking = (n for n in self._tools if n not in feed.held and n not in feed.texts)
            for server, numbers in self._group(lacking).items():
                await self._give(feed, server, numbers)
        self._filled = changes

    async def _give(self, feed: _Feed, server: str, numbers: Sequence[int]) -> None:
        kept = await self._cache.load(server, feed.model)
        tools = {n: self._tools[n] for n in numbers if self._is_kept(n, kept)}
        if tools:
            held = {number: tool.hash for number, tool in tools.items()}
            places = [self._servers[server]] * len(tools)
            vectors = [kept[tool.pair.name].vector for tool in tools.values()]
            await self._process.rank(VectorRows(list(held), places, vectors, feed.is_deep))
            feed.held.update(held)
