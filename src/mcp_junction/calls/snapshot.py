"""Snapshot: what a call sees of the world. Immutable; a change makes the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from mcp_junction.calls.route_cache import RouteCache
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.server import Upstream

if TYPE_CHECKING:
    from mcp_junction.calls.call import Call

Handler = Callable[["Call"], Awaitable[Outcome]]


class Snapshot(msgspec.Struct, frozen=True):
    """One generation of everything the data plane reads."""

    catalog: Catalog
    handlers: Mapping[str, Handler]
    """The path of a call, by its method."""
    servers: Mapping[str, Upstream] = {}
    """Those that should be there, also if they never were; unlike the rest, as they are now."""
    route_cache: RouteCache = msgspec.field(default_factory=RouteCache)
    """The routes that were found here before."""

    def handle(self, call: Call) -> Awaitable[Outcome]:
        """Take a call down its path; the outcome comes back up."""
        return self.handlers[call.method](call)

    @property
    def generation(self) -> int:
        return self.catalog.generation
