"""ConnectPolicy: under which name, how often and how patiently we connect to a server."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.tasks import Supervision

ATTEMPTS: Final = 10
"""How many servers are connected to at one time, in the service."""
_ATTEMPT: Final = 5.0
"""How long an attempt at a remote server may take, in the service."""


class ConnectPolicy(msgspec.Struct, frozen=True):
    """Under which name, and how patiently."""

    start_timeout: float
    end_grace: float = 1.0
    restart: bool = False
    attempts: asyncio.Semaphore | None = None
    """How many servers may be connected to at one time, where that is limited."""
    supervision: Supervision | None = None
    """Where failures of its long-lived tasks are counted."""
    name: str = "mcp-junction"
    version: str = "0"
    junction_id: str = ""
    """The id of this Junction."""


def policy_for(
    definition: ServerDefinition,
    settings: Settings,
    supervised: bool,
    attempts: asyncio.Semaphore | None,
    supervision: Supervision,
    junction_id: str = "",
) -> ConnectPolicy:
    """The terms for a server; ``attempts`` are limited in the service only."""
    patience = settings.start_timeout_ms / 1000
    is_remote = definition.transport != "stdio"
    if attempts is not None and is_remote:
        patience = min(patience, _ATTEMPT)
    wanted = supervised or is_remote  # a remote one is not ours to start: it comes back by itself
    return ConnectPolicy(
        start_timeout=patience,
        restart=wanted if definition.restart is None else definition.restart,
        attempts=attempts,
        supervision=supervision,
        name=settings.name,
        version=settings.version,
        junction_id=junction_id,
    )
