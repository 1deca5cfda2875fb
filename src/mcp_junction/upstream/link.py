"""Link: one connection to a server, as the rest of Junction sees it; our own requests on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import Era
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight, new_flight
from mcp_junction.upstream.outcome import Outcome


class LinkUsers:
    """Remembers the only principal of one link, or that there were several."""

    __slots__ = ("has_several", "only")

    def __init__(self) -> None:
        self.only: Principal | None = None
        """The one principal that has used the link; None when nobody has, or several have."""
        self.has_several = False

    def note(self, principal: Principal) -> None:
        """Note that a principal uses the link. Callers compare with ``only`` first: it is cheap."""
        only = self.only
        if only is None:
            if not self.has_several:
                self.only = principal
        elif not only.is_same(principal):
            self.only = None
            self.has_several = True


class Link(Protocol):
    """Sending is synchronous: the answer comes through the flight's future."""

    era: Era
    """How the server is talked to; settled by ``opened``."""

    def send(self, flight: Flight) -> None:
        """Hand a flight to the wire. If that cannot be, the flight ends at once, not sent."""
        ...

    def cancel(self, flight: Flight, reason: str) -> None:
        """Tell the server that nobody waits for this flight any more, and forget it."""
        ...

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        """Tell the server something; one that is stateless has nothing to be told."""
        ...


class LinkEnd(msgspec.Struct, frozen=True):
    """What can be said about a link that has ended."""

    what: str
    exit_code: int | None = None
    cause: str = ""
    """What it has said of it itself, without secrets."""

    @property
    def told(self) -> str:
        """How it ended, and why."""
        return f"{self.what}; it said: {self.cause}" if self.cause else self.what


class OwnedLink(Link, Protocol):
    """A link as its owner, the Upstream, sees it: with a beginning and an end."""

    server: str
    closed: asyncio.Future[None]
    users: LinkUsers
    """Which principals have used it."""
    refuses_credentials: bool
    """Whether it refused our last request of our own with HTTP 401 or 403."""

    async def opened(self, protocol_version: str) -> None:
        """The server has greeted us: from now on talk in the era of this version.

        In the handshake era this says that the conversation is open, before anything else."""
        ...

    async def gone(self) -> None:
        """Wait until it has ended and what it brought has been read."""
        ...

    async def end(self, grace: float) -> None:
        """End it from our side; returns when it is gone."""
        ...

    def unreachable(self, why: str) -> None:
        """It is of no more use: it is lost, and its owner takes over."""
        ...

    async def release(self, why: str) -> None:
        """Let go of everything and end every flight."""
        ...

    async def describe_end(self) -> LinkEnd: ...

    @property
    def stderr_tail(self) -> str: ...

    @property
    def stray(self) -> str:
        """What it said first that was no frame, where it may say such a thing by mistake."""
        ...

    @property
    def speaks_older(self) -> bool:
        """Whether it refused our handshake as a server of an older transport does."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether an answer is waited for."""
        ...

    @property
    def calls(self) -> int:
        """How many calls are under way on it."""
        ...


class LinkListener(Protocol):
    """Hears what a server says of its own accord on a link."""

    def heard(self, frame: Frame) -> None:
        """A notification that belongs to no call."""
        ...

    def asked(self, frame: Frame) -> Awaitable[Outcome]:
        """A request of the server's that names no call, on a link that one principal uses."""
        ...

    def unattributed(self, method: str) -> None:
        """A log message was dropped, or a request refused: whose it is cannot be known."""
        ...

    def renewed(self) -> None:
        """The server had forgotten us, and the conversation was opened anew on the same link."""
        ...


async def send_own_request(
    link: OwnedLink, server: str, method: str, params: bytes, meta: dict[str, Raw], timeout: float
) -> Outcome:
    """Ends by answer, loss of the link, or in time. ``meta`` tells a stateless server who asks."""
    flight = new_flight(method)
    flight.params = add_own_envelope(params, meta) if link.era is Era.STATELESS else params
    link.send(flight)
    either: set[asyncio.Future[Any]] = {flight.future, link.closed}
    await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if flight.future.done():
        return flight.future.result()
    if link.closed.done():
        return outcomes.link_lost(server, flight.delivery, "the link ended")
    late = outcomes.timed_out(server, flight.delivery, timeout)
    flight.abandon(late, "timed out")
    return late


def add_own_envelope(params: bytes, meta: dict[str, Raw]) -> bytes:
    """Params with our own envelope around them."""
    found = frames.members(params)
    envelope.add_envelope(found, meta)
    return encode.dumps(found)
