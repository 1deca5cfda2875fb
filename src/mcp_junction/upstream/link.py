"""One connection to a server: a Link as the rest sees it, a Connection as its owner does."""

from __future__ import annotations

import asyncio
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


class Connection(Link, Protocol):
    """A Link with its life. Only the owner task of a server holds it as this."""

    closed: asyncio.Future[None]

    @property
    def stderr_tail(self) -> str:
        """The last of what it said beside the protocol."""
        ...

    async def gone(self) -> None:
        """Wait until nothing more will come from it."""
        ...

    async def exit_code(self) -> int | None:
        """How it ended, when that can be told."""
        ...

    async def release(self, why: str) -> None:
        """Let go of the wire and end every flight."""
        ...

    async def end(self, grace: float) -> None:
        """Make it go, after a while of asking; returns when it is gone."""
        ...


class Ear(Protocol):
    """Hears what a server says of its own accord on a link."""

    def heard(self, frame: Frame) -> None:
        """A notification that belongs to no call."""
        ...

    def asked(self, frame: Frame) -> Awaitable[Outcome]:
        """A request of the server's that names no call."""
        ...
