"""ToolSearch: searches the tools of the current catalog. The caller's View says what may be found.

Nothing is indexed before somebody wants to search (``begin``). Tools of servers that left stay
indexed, but are not found, until the servers return.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import ListItem
from mcp_junction.catalog.own_tools import OWN_SERVER, own_offers
from mcp_junction.catalog.view import View
from mcp_junction.protocol.names import Pair
from mcp_junction.tasks import TaskScope

if TYPE_CHECKING:
    from mcp_junction.search.finder import Finder
    from mcp_junction.search.index import Hit


class ToolSearch:
    """Searches the catalog that is current."""

    def __init__(self, tasks: TaskScope, catalog: Catalog) -> None:
        self._tasks = tasks
        self._catalog = catalog
        self._own = own_offers({})
        self._finder: Finder | None = None

    @property
    def indexed(self) -> int:
        """How many tools of servers can be found, as far as they may be seen."""
        return max(0, len(self._finder.index) - len(self._own)) if self._finder is not None else 0

    def follow(self, catalog: Catalog) -> None:
        """Search another catalog from now on."""
        self._catalog = catalog
        if self._finder is not None:
            self._finder.follow(self._offers())

    def begin(self) -> Finder:
        """Index what there is, and from now on what comes."""
        if self._finder is None:
            # Imported where it is used: most clients are shown everything, and search nothing.
            from mcp_junction.search.finder import Finder

            self._finder = Finder(self._tasks)
            self._finder.follow(self._offers())
        return self._finder

    async def __call__(
        self,
        query: str,
        limit: int,
        admits: Callable[[Pair], bool],
        view: View | None = None,
    ) -> list[Hit]:
        """The best tools for a query among those admitted, best first.

        What the View of the caller hides does not even count for how rare a word is.
        """
        finder = self.begin()
        await finder.wait_until_current()
        if view is None or view.scope.grants is None:
            return finder.search(query, limit, admits)
        own = (Pair(OWN_SERVER, offer.name) for offer in self._own)
        return finder.search(query, limit, admits, chain(view.known_pairs(), own))

    def _offers(self) -> dict[str, tuple[ListItem, ...]]:
        known = {**self._catalog.departed, **self._catalog.offerings}
        return {key: held.tools for key, held in known.items()} | {OWN_SERVER: self._own}
