"""Limits: how much of us one server may hold, so that a hanging one does not take it all.

They are compared on every call, so they are plain numbers: no limit is a very large one.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from mcp_junction.config.settings import Settings


class Limits(NamedTuple):
    """What one link to a server may hold at once."""

    calls: int = 10_000
    """Calls that it has not answered yet."""
    queue: int = 10_000
    """Requests that wait for a connection to it."""
    bytes: int = 64 * 1024 * 1024
    """Bytes of requests that it has not taken yet."""


GENEROUS: Final = Limits()


def limits_of(settings: Settings, **own: int) -> Limits:
    """The limits of a server: its own, or those of all; 0 is no limit."""
    chosen = {
        "calls": settings.max_calls_per_server,
        "queue": settings.max_queue_per_server,
        "bytes": settings.max_bytes_per_server,
        **own,
    }
    return Limits(**{name: value or sys.maxsize for name, value in chosen.items()})
