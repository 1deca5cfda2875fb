"""Link: one connection to a server, as the rest of Junction sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

import msgspec
from msgspec import Raw

from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import Era
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.users import LinkUsers


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


class LastWords(msgspec.Struct, frozen=True):
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

    async def last_words(self) -> LastWords: ...

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


class Ear(Protocol):
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
