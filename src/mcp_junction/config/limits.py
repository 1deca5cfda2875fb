"""Limits: how much one server, and one principal, may use at once.

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


class Quota(NamedTuple):
    """What one principal may use at once."""

    sessions: int = sys.maxsize
    streams: int = sys.maxsize
    calls: int = sys.maxsize
    """Calls in flight."""
    parked: int = sys.maxsize
    """Calls that wait for the answer to their server's question."""
    bytes: int = sys.maxsize
    """Bytes that wait to be written to its clients, or are kept for them."""


UNLIMITED: Final = Quota()


def quota_of(settings: Settings) -> Quota:
    """The quota of every principal of a service; 0 is no limit."""
    chosen = (
        settings.max_sessions_per_principal,
        settings.max_streams_per_principal,
        settings.max_calls_per_principal,
        settings.max_parked_per_principal,
        settings.max_bytes_per_principal,
    )
    return Quota(*(limit or sys.maxsize for limit in chosen))


def limits_of(settings: Settings, **own: int) -> Limits:
    """The limits of a server: its own, or those of all; 0 is no limit."""
    chosen = {
        "calls": settings.max_calls_per_server,
        "queue": settings.max_queue_per_server,
        "bytes": settings.max_bytes_per_server,
        **own,
    }
    return Limits(**{name: value or sys.maxsize for name, value in chosen.items()})
