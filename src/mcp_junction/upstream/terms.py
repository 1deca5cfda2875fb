"""Terms: how we deal with a server."""

from __future__ import annotations

import msgspec


class Terms(msgspec.Struct, frozen=True):
    """Under which name, and how patiently."""

    start_timeout: float
    end_grace: float = 1.0
    restart: bool = False
    name: str = "mcp-junction"
    version: str = "0"
