"""What is listed where tools are searched for: own tools, favourites, and the tokens they save.

Which exposure applies to a client is decided in ``endpoints.py``; what a View does with it, there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from mcp_junction.catalog.endpoints import favourites_of
from mcp_junction.catalog.items import TOOLS
from mcp_junction.catalog.own_tools import own_offers
from mcp_junction.catalog.view import SearchListing, Visible
from mcp_junction.config.settings import ALL, AUTO
from mcp_junction.protocol.names import Pair

TOKEN_BYTES: Final = 4
"""Bytes of UTF-8 that count as one token."""


class ListedTokens:
    """Counts the tokens of tool lists sent since the start, and those that search saved."""

    __slots__ = ("_listed", "_whole")

    def __init__(self) -> None:
        self._listed = 0
        self._whole = 0

    def add(self, listed: int, whole: int) -> None:
        """Count a list: its bytes, and those that all definitions would have had."""
        self._listed += listed
        self._whole += whole

    @property
    def listed(self) -> int:
        return self._listed // TOKEN_BYTES

    @property
    def saved(self) -> int:
        """Tokens saved by search; negative when the three search tools take more than all tools."""
        return (self._whole - self._listed) // TOKEN_BYTES


class ExposureDefaults(Protocol):
    """What applies where an endpoint does not say: the Catalog has it."""

    @property
    def exposure(self) -> str: ...

    @property
    def exposure_tokens(self) -> int: ...

    @property
    def favourites(self) -> tuple[str, ...]: ...

    @property
    def skills(self) -> Mapping[Pair, str]: ...


def list_search(
    visible: Visible, names: Sequence[str], defaults: ExposureDefaults
) -> SearchListing | None:
    """Make the list of own tools and favourites; None where all tools are exposed.

    ``names`` has the name of each number, as the client sees it.
    """
    endpoint = visible.scope.endpoint
    exposure = endpoint.exposure or defaults.exposure
    if visible.kind is not TOOLS or exposure == ALL:
        return None
    budget = defaults.exposure_tokens * TOKEN_BYTES
    return SearchListing(
        own_offers(visible.count_by_server(), _count_skills(visible, defaults.skills)),
        favourites_of((*defaults.favourites, *endpoint.favourites)),
        is_listed=exposure != AUTO or visible.is_larger(budget, names),
    )


def _count_skills(visible: Visible, skills: Mapping[Pair, str]) -> dict[str, int]:
    """Count the tools that can be called by their skill, the most first."""
    if not skills:
        return {}
    pairs = visible.roll.pairs
    found = (skills.get(pairs[number]) for number in visible.present())
    return dict(Counter(filter(None, found)).most_common())
