"""RouteCache: remembers which route a request led to.

Clients call the same tools again and again, by names in the same bytes.
The cache holds look-ups in one catalog and is dropped with its snapshot. It decides nothing: every
stage that may refuse a call runs each time.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.calls.methods import NAMED, Address, address
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import Route
from mcp_junction.catalog.scope import Scope
from mcp_junction.protocol.frames import octets
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.param_headers import ParamHeader, encode_plain

_join = b"".join
MAX_CACHED: Final = 4096
MAX_BYTES: Final = 256
"""A longer name is looked up each time."""


class CachedRoute(msgspec.Struct, frozen=True):
    """What a request is for, and the route that it leads to."""

    method: str
    address: Address
    plain_headers: tuple[bytes, bytes] | None
    """The expected headers of method and name; None where they must be compared in full."""
    route: Route | None = None
    """None if the stage ``resolve`` has to find it."""
    headers: tuple[ParamHeader, ...] = ()
    """The arguments that the client must repeat as headers."""


class RouteCache(dict[tuple[Spelling, Scope, str, bytes], CachedRoute]):
    """The cached routes of all clients in one snapshot.

    Keyed by all that a look-up depends on: spelling, Scope, method, and the bytes of the name.
    """

    def look_up(
        self,
        catalog: Catalog,
        spelling: Spelling,
        scope: Scope,
        method: str,
        params: dict[str, Raw],
    ) -> CachedRoute:
        """Look up what a request with a name is for; find it where it was not asked for before."""
        found = self.get((spelling, scope, method, _join((params["name"],))))
        return found or self.find(catalog, spelling, scope, method, params)

    def find(
        self,
        catalog: Catalog,
        spelling: Spelling,
        scope: Scope,
        method: str,
        params: dict[str, Raw],
    ) -> CachedRoute:
        """Find what a request is for, and remember it. Raises FrameError as ``address`` does."""
        target = address(method, params)
        name = encode_plain(target.name)
        plain = None if name is None else (method.encode(), name)
        if method not in NAMED:
            return CachedRoute(method, target, plain)
        view = catalog.view(spelling, target.kind, scope)
        route = view.find(target.name)
        if route is None:
            former = view.find_departed(target.name)  # its server may be back in time
            marked = former.headers if former is not None else ()
            return CachedRoute(method, target, None if marked else plain, headers=marked)
        cached = CachedRoute(method, target, None if route.headers else plain, route, route.headers)
        written = octets(params["name"])
        if len(written) <= MAX_BYTES:
            if len(self) >= MAX_CACHED:  # a cache: it fills again
                self.clear()
            self[spelling, scope, method, written] = cached
        return cached
