"""Link: one connection to a server, as the rest of Junction sees it; and our own requests on it.

``find_cause`` finds the one line of a server's output that says best why it failed.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import Era
from mcp_junction.tasks import wait_for_any
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight, new_flight
from mcp_junction.upstream.outcome import Outcome

_LONGEST: Final = 300
_LOOKED_AT: Final = 40
_ERROR: Final = re.compile(
    r"error|exception|fail|fatal|panic|denied|refused|invalid|missing|unknown|required|expired"
    r"|certificate|cannot|could not|can't|unable|no such|not (?:found|set|a)\b|unauthori[sz]ed",
    re.IGNORECASE,
)
_NOISE: Final = re.compile(
    r"\s+at |\s*File \"|Traceback|\s*[\^~]+\s*$|Node\.js v|npm (?:notice|warn)|usage:|\s*try\b"
    r"|\s*[{}\[\]]",
    re.IGNORECASE,
)


class LinkUsers:
    """Remembers the only principal that has used one link, or that there were several."""

    __slots__ = ("has_several", "only")

    def __init__(self) -> None:
        self.only: Principal | None = None
        """The one principal that has used the link; None when nobody has, or several have."""
        self.has_several = False

    def note(self, principal: Principal) -> None:
        """Note that a principal uses the link. Callers compare with ``only`` first: it is cheap."""
        if self.only is None:
            if not self.has_several:
                self.only = principal
        elif not self.only.is_same(principal):
            self.only = None
            self.has_several = True


class LinkEnd(msgspec.Struct, frozen=True):
    """How a link ended."""

    what: str
    exit_code: int | None = None
    cause: str = ""
    """What the server itself wrote about it, without secrets."""

    def __str__(self) -> str:
        return add_cause(self.what, self.cause)


class LinkListener(Protocol):
    """Receives the messages of a server that belong to no call."""

    def on_notification(self, frame: Frame) -> None:
        """A notification that belongs to no call."""

    def on_request(self, frame: Frame) -> Awaitable[Outcome]:
        """A request of the server's that names no call, on a link that one principal uses."""

    def on_unattributed(self, method: str) -> None:
        """A log message was dropped, or a request refused: whose it is cannot be known."""

    def on_renewed(self) -> None:
        """The server had lost our session, and a new one was opened on the same link."""


class Link(ABC):
    """One connection to a server. Sending is synchronous: a flight's future gets the answer."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.era = Era.HANDSHAKE
        """How the server is talked to; set by ``begin_session``."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.users = LinkUsers()
        self.refuses_credentials = False
        """Whether the server refused our last request of our own with HTTP 401 or 403."""

    # -- for calls

    @abstractmethod
    def send(self, flight: Flight) -> None:
        """Send a flight. One that cannot be sent ends at once, with delivery ``not_sent``."""

    @abstractmethod
    def cancel(self, flight: Flight, reason: str) -> None:
        """Tell the server that nobody waits for this flight any more, and forget it."""

    @abstractmethod
    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        """Send a notification; stateless servers take none."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether an answer is waited for."""

    @property
    @abstractmethod
    def calls(self) -> int:
        """How many calls are under way on it."""

    # -- for the Upstream that owns it

    def rename(self, server: str) -> None:
        """Take over another key of the server."""
        self.server = server

    @abstractmethod
    async def begin_session(self, protocol_version: str) -> None:
        """Talk in the era of this version from now on; in the handshake era, send initialized."""

    async def wait_closed(self) -> None:
        """Wait until it has ended and everything that arrived has been read."""
        await asyncio.wait({self.closed})

    @abstractmethod
    async def end(self, grace: float) -> None:
        """End the connection from our side; returns when it is closed."""

    @abstractmethod
    def mark_lost(self, why: str) -> None:
        """Take it for lost: its owner then connects anew."""

    @abstractmethod
    async def release(self, why: str) -> None:
        """Release all resources and end every flight."""

    @abstractmethod
    async def describe_end(self) -> LinkEnd:
        """Say how it ended."""

    @property
    def stderr_tail(self) -> str:
        """The end of what the server wrote to stderr, without secrets."""
        return ""

    @property
    def stray_output(self) -> str:
        """The first thing the server wrote to stdout that was not a frame."""
        return ""

    @property
    def is_older_transport(self) -> bool:
        """Whether the server refused our handshake as one of an older transport does."""
        return False


async def send_own_request(
    link: Link, method: str, params: bytes, meta: dict[str, Raw], timeout: float
) -> Outcome:
    """Send a request of our own; ``meta`` tells a stateless server who asks.

    Ends by the answer, by the loss of the link, or after ``timeout`` seconds.
    """
    flight = new_flight(method)
    flight.params = add_own_envelope(params, meta) if link.era is Era.STATELESS else params
    link.send(flight)
    await wait_for_any(flight.future, link.closed, timeout=timeout)
    if flight.future.done():
        return flight.future.result()
    if link.closed.done():
        return outcomes.link_lost(link.server, flight.delivery, "the link ended")
    late = outcomes.timed_out(link.server, flight.delivery, timeout)
    flight.abandon(late, "timed out")
    return late


def add_own_envelope(params: bytes, meta: dict[str, Raw]) -> bytes:
    """Add our own envelope to params."""
    members = frames.members(params)
    envelope.add_envelope(members, meta)
    return encode.dumps(members)


def find_cause(stderr: str) -> str:
    """Find the line of a server's stderr that says why it failed; empty when stderr is."""
    lines = [line for line in stderr.splitlines() if line.strip()][-_LOOKED_AT:]
    telling = [line for line in lines if not _NOISE.match(line)] or lines
    error = next((line for line in reversed(telling) if _ERROR.search(line)), "")
    return shorten(error or (telling[-1] if telling else ""))


def add_cause(what: str, cause: str) -> str:
    """Add a cause, if there is one, to a message about a failure."""
    return f"{what}; it said: {cause}" if cause else what


def shorten(text: str) -> str:
    """Shorten a text to a bounded length."""
    text = text.strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
