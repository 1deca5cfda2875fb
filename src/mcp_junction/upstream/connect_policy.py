"""ConnectPolicy: how we connect to a server: timeouts, restarts, and the name we give."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.tasks import Supervision

MAX_CONNECTING: Final = 10
"""Servers that the service connects to at the same time."""
_REMOTE_TIMEOUT: Final = 5.0
"""Seconds that connecting to a remote server may take in the service."""


class ConnectPolicy(msgspec.Struct, frozen=True):
    """How one server is connected to."""

    start_timeout: float
    """Seconds until the server must have started, and answered each request of ours."""
    end_grace: float = 1.0
    """Seconds that its program gets to end by itself, twice."""
    restart: bool = False
    """Whether to connect again when the link is lost."""
    slots: asyncio.Semaphore | None = None
    """Limits how many servers are connected to at the same time."""
    supervision: Supervision | None = None
    """Counts failures of its long-lived tasks."""
    name: str = "mcp-junction"
    version: str = "0"
    junction_id: str = ""
    """The id of this Junction."""


def policy_for(
    definition: ServerDefinition,
    settings: Settings,
    is_supervised: bool,
    slots: asyncio.Semaphore | None,
    supervision: Supervision,
    junction_id: str = "",
) -> ConnectPolicy:
    """Make the policy for a server; ``slots`` are given in the service only."""
    timeout = settings.start_timeout_ms / 1000
    is_remote = definition.transport != "stdio"
    if slots is not None and is_remote:
        timeout = min(timeout, _REMOTE_TIMEOUT)
    # A remote server is not ours to start: it may come back by itself.
    restarts = is_supervised or is_remote
    return ConnectPolicy(
        start_timeout=timeout,
        restart=restarts if definition.restart is None else definition.restart,
        slots=slots,
        supervision=supervision,
        name=settings.name,
        version=settings.version,
        junction_id=junction_id,
    )
