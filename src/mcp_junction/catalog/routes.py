"""Route: where a name or an address leads."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcp_junction.protocol.names import Pair
from mcp_junction.protocol.param_headers import ParamHeader, name_line
from mcp_junction.upstream.server import Upstream


class Route(msgspec.Struct, frozen=True, eq=False):
    """The server, what it calls the thing itself, and how long it may take."""

    upstream: Upstream
    pair: Pair
    canonical: str
    raw_name: Raw
    timeout: float
    headers: tuple[ParamHeader, ...] = ()
    """The arguments that a call repeats as headers, to a stateless server over HTTP."""

    @property
    def name_header(self) -> bytes:
        """The header line that repeats the name there. Made when it is wanted: most never are."""
        return name_line(self.raw_name)


def timeout_for(upstream: Upstream, general: float) -> float:
    """A server's own limit on calls, or the general one; 0 is none."""
    return upstream.definition.timeout_ms / 1000 or general
