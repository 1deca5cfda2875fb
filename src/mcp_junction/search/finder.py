"""Finder: keeps the index true to what servers offer, and answers searches.

It is told of every new state of the offers and compares: a server whose list is the same object is
passed over, and of another one only the tools that differ are read again. That is done in slices
(``slices.py``) between which everything else goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from mcp_junction.protocol.names import Pair
from mcp_junction.search.index import Described, Hit, KeywordIndex, fields
from mcp_junction.slices import Slices
from mcp_junction.tasks import TaskScope

Offers = Mapping[str, Sequence[Described]]
"""The tools of each server."""

_PATIENCE: Final = 2.0


class Finder:
    """Every tool, by its words."""

    def __init__(self, tasks: TaskScope) -> None:
        self.index = KeywordIndex()
        self._tasks = tasks
        self._wanted: Offers = {}
        self._held: dict[str, Sequence[Described]] = {}
        self._working: asyncio.Task[None] | None = None

    @property
    def is_current(self) -> bool:
        """Whether all that is offered can be found."""
        return self._working is None or self._working.done()

    def follow(self, offers: Offers) -> None:
        """These are the tools now."""
        self._wanted = offers
        if self.is_current and self._behind() is not None:
            self._working = self._tasks.supervise("search index", self._catch_up, is_vital=False)

    async def current(self) -> None:
        """Wait until all that is offered can be found, but not for ever."""
        if self._working is not None and not self._working.done():
            await asyncio.wait({self._working}, timeout=_PATIENCE)

    def search(self, query: str, limit: int, admits: Callable[[Pair], bool]) -> list[Hit]:
        """The best tools for a query among those admitted, best first."""
        return self.index.search(query, limit, admits)

    # -- catching up

    async def _catch_up(self) -> None:
        slices = Slices()
        while (server := self._behind()) is not None:
            for _ in self._brought_up(server, self._wanted.get(server, ())):
                if slices.is_over:
                    await slices.rest()

    def _behind(self) -> str | None:
        """A server whose tools in the index are not those it offers."""
        for server, tools in self._wanted.items():
            held = self._held.get(server)
            if held is not tools and (tools or held):
                return server
        return next((server for server in self._held if server not in self._wanted), None)

    def _brought_up(self, server: str, tools: Sequence[Described]) -> Iterator[None]:
        """Bring one server's tools up to ``tools``, a step at a time.

        It is gone through to its end even when the offers have changed meanwhile; then the server
        is behind again, and the next one begins from here.
        """
        known = {tool.name: tool for tool in self._held.get(server, ())}
        wanted = {tool.name: tool for tool in tools}
        for name in known.keys() - wanted.keys():
            self.index.remove(Pair(server, name))
            yield
        for name, tool in wanted.items():
            old = known.get(name)
            if old is None or (old is not tool and old.members != tool.members):
                self.index.put(Pair(server, name), fields(server, tool))
            yield
        if tools:
            self._held[server] = tools
        else:
            self._held.pop(server, None)
