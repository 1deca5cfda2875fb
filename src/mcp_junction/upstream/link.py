"""Link: one connection to a server, as the rest of Junction sees it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from msgspec import Raw

from mcp_junction.protocol.frames import Frame
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Outcome


class Link(Protocol):
    """Sending is synchronous: the answer comes through the flight's future."""

    def send(self, flight: Flight) -> None:
        """Hand a flight to the wire. If that cannot be, the flight ends at once, not sent."""
        ...

    def cancel(self, flight: Flight, reason: str) -> None:
        """Tell the server that nobody waits for this flight any more, and forget it."""
        ...

    def notify(self, method: str, params: Raw | bytes = b"") -> None: ...


class Ear(Protocol):
    """Hears what a server says of its own accord on a link."""

    def heard(self, frame: Frame) -> None:
        """A notification that belongs to no call."""
        ...

    def asked(self, frame: Frame) -> Awaitable[Outcome]:
        """A request of the server's that names no call."""
        ...
