"""Snapshot: what a call sees of the world. Immutable; a change makes the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from mcp_junction.calls.route_cache import RouteCache
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.view import View
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.server import Upstream

if TYPE_CHECKING:
    from mcp_junction.calls.call import Call

Handler = Callable[["Call"], Awaitable[Outcome]]
Own = Callable[["Call", View, Handler], Awaitable[Outcome]]


class Snapshot(msgspec.Struct, frozen=True):
    """One generation of everything the data plane reads."""

    catalog: Catalog
    handle: Handler
    straight: Handler
    """The same, for a call of a tool or a prompt whose route is known."""
    own: Own | None = None
    """What answers the calls of Junction's own tools."""
    servers: Mapping[str, Upstream] = {}
    """Those that should be there, also if they never were; unlike the rest, as they are now."""
    route_cache: RouteCache = msgspec.field(default_factory=RouteCache)
    """What was found here before, for who asks for it again."""

    @property
    def generation(self) -> int:
        return self.catalog.generation
