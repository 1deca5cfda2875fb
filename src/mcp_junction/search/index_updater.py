"""IndexUpdater: keeps the search index up to date with what servers offer.

It is given every new state of the offers and compares: a server whose list is the same object is
skipped, and of another one only the tools that differ are indexed again. That is done in slices
(``slices.py``), between which other tasks run. What is indexed by words is passed on to the
SemanticIndex, if there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mcp_junction.protocol.names import Pair
from mcp_junction.search.index import IndexedTool, KeywordIndex, describe, tool_fields
from mcp_junction.search.semantic import SemanticIndex
from mcp_junction.search.words import tool_text
from mcp_junction.slices import Slices
from mcp_junction.tasks import TaskScope

Offers = Mapping[str, Sequence[IndexedTool]]
"""The tools of each server."""

_PATIENCE: Final = 2.0


class IndexUpdater:
    """An index of all tools that follows what servers offer."""

    def __init__(self, tasks: TaskScope, vectors: SemanticIndex | None = None) -> None:
        self.index = KeywordIndex()
        self.vectors = vectors
        self._tasks = tasks
        self._wanted: Offers = {}
        self._titles: Mapping[str, str] = {}
        self._indexed: dict[str, tuple[Sequence[IndexedTool], str]] = {}
        self._working: asyncio.Task[None] | None = None

    @property
    def is_current(self) -> bool:
        """Whether all offered tools are indexed."""
        return self._working is None or self._working.done()

    def follow(self, offers: Offers, titles: Mapping[str, str] | None = None) -> None:
        """Bring the index up to these offers, in the background.

        ``titles`` say what servers are for, as far as that is known.
        """
        self._wanted, self._titles = offers, titles or {}
        if self.is_current and self._next_stale() is not None:
            self._working = self._tasks.supervise("search index", self._catch_up, is_vital=False)

    async def wait_until_current(self) -> None:
        """Wait until all offered tools are indexed, for a few seconds at most."""
        if self._working is not None and not self._working.done():
            await asyncio.wait({self._working}, timeout=_PATIENCE)

    # -- catching up

    async def _catch_up(self) -> None:
        slices = Slices()
        while (server := self._next_stale()) is not None:
            for _ in self._update_server(server, self._wanted.get(server, ())):
                if slices.is_over:
                    await slices.rest()
        for _ in self.index.purge():
            if slices.is_over:
                await slices.rest()
        if self.vectors is not None:
            self.vectors.wake()

    def _next_stale(self) -> str | None:
        """Return a server whose indexed tools, or title, are not those it has."""
        for server, tools in self._wanted.items():
            indexed, title = self._indexed.get(server, ((), ""))
            is_same = indexed is tools and title == self._titles.get(server, "")
            if not is_same and (tools or indexed):
                return server
        return next((server for server in self._indexed if server not in self._wanted), None)

    def _update_server(self, server: str, tools: Sequence[IndexedTool]) -> Iterator[None]:
        """Index one server's tools, a step at a time.

        It runs to its end even when the offers have changed meanwhile; then the server is stale
        again.
        """
        before, old_title = self._indexed.get(server, ((), ""))
        title = self._titles.get(server, "")
        known = {tool.name: tool for tool in before}
        wanted = {tool.name: tool for tool in tools}
        for name in known.keys() - wanted.keys():
            self._remove(Pair(server, name))
            yield
        for name, tool in wanted.items():
            old = known.get(name)
            is_new = old is None or (old is not tool and old.members != tool.members)
            if is_new or title != old_title:
                self._put(Pair(server, name), tool, title)
            yield
        if tools:
            self._indexed[server] = tools, title
        else:
            self._indexed.pop(server, None)

    def _put(self, pair: Pair, tool: IndexedTool, title: str) -> None:
        self._remove(pair)  # it gets another number
        number = self.index.put(pair, tool_fields(pair.server, tool, title))
        if self.vectors is not None:
            self.vectors.put(number, pair, tool_text(title, pair.name, describe(tool)))

    def _remove(self, pair: Pair) -> None:
        number = self.index.remove(pair)
        if self.vectors is not None and number is not None:
            self.vectors.remove(number)
