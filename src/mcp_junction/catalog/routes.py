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
    name_header: bytes = b""
    """The header line that repeats the name, where the server may want one."""
    headers: tuple[ParamHeader, ...] = ()
    """The arguments that a call repeats as headers."""


def name_header_for(upstream: Upstream, raw_name: Raw) -> bytes:
    """The header line that repeats a name or an address, for servers that have headers."""
    return name_line(raw_name) if upstream.definition.transport == "http" else b""


def timeout_for(upstream: Upstream, general: float) -> float:
    """A server's own limit on calls, or the general one; 0 is none."""
    return upstream.definition.timeout_ms / 1000 or general
