"""Flight: one attempt of a call on one link.

    QUEUED ──send──▶ WRITTEN ──answer, loss or cancel──▶ DONE

The state says what is known about delivery when the flight is ended from our side. A flight has no
task: whoever waits, waits on its future, and the link's data callback ends it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec
from msgspec import Raw

from mcp_junction.policy.principal import Principal
from mcp_junction.upstream.outcome import Delivery, Outcome

if TYPE_CHECKING:
    from mcp_junction.upstream.link import Link

_wire_ids = itertools.count(1)


class FlightState(Enum):
    QUEUED = auto()
    WRITTEN = auto()
    DONE = auto()


QUEUED: Final = FlightState.QUEUED  # for the call path, see protocol/versions.py
WRITTEN: Final = FlightState.WRITTEN
DONE: Final = FlightState.DONE


class FlightCaller(Protocol):
    """Who a flight is for: hears what the server says before it answers."""

    @property
    def session(self) -> object:
        """Which conversation it is part of; only its identity counts."""
        ...

    @property
    def principal(self) -> Principal:
        """On whose behalf it is."""
        ...

    def progress(self, params: dict[str, Raw]) -> None: ...

    def log(self, params: Raw) -> None: ...

    def ask(self, method: str, params: Raw) -> Awaitable[Outcome]: ...


class Withdrawable(Protocol):
    """A question that the server may take back."""

    def cancel(self) -> object: ...


@runtime_checkable
class ParkingCaller(FlightCaller, Protocol):
    """A passenger that takes questions without anyone waiting for the answer."""

    @property
    def is_asked(self) -> bool:
        """Whether it has a question that is not answered yet."""
        ...

    def park(
        self, method: str, params: Raw, answer: Callable[[Outcome], None]
    ) -> Withdrawable | None:
        """Take a question; None when it is answered already."""
        ...


class Flight(msgspec.Struct, eq=False):
    """One attempt. Its wire id is unique in the process: no two links can mix up their flights."""

    method: str
    future: asyncio.Future[Outcome]
    wire_id: bytes
    passenger: FlightCaller | None = None
    params: bytes = b""
    headers: bytes = b""
    """What a stateless server over HTTP wants repeated, ready-made."""
    state: FlightState = FlightState.QUEUED
    link: Link | None = None
    carrier: object = None
    """What the link sent it with, for the link's own use."""

    @property
    def delivery(self) -> Delivery:
        """What can be said about it if it failed now."""
        return Delivery.NOT_SENT if self.state is QUEUED else Delivery.UNKNOWN

    def end(self, outcome: Outcome) -> None:
        """Land; only the first ending counts."""
        self.state = DONE
        # Both hold us: a cycle would keep a large call, or its answer, until the next collection.
        self.passenger = self.carrier = None
        if not self.future.done():
            self.future.set_result(outcome)

    def abandon(self, outcome: Outcome, reason: str) -> None:
        """End it from our side, and tell the server."""
        if self.link is not None and self.state is not DONE:
            self.link.cancel(self, reason)
        self.end(outcome)


def new_flight(
    method: str,
    passenger: FlightCaller | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Flight:
    """A flight that has yet to be sent. To ask for the loop is a system call: pass it if known."""
    loop = loop or asyncio.get_running_loop()
    return Flight(method, loop.create_future(), b"%d" % next(_wire_ids), passenger)
