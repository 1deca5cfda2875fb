"""Flight: one attempt of a call on one link.

    QUEUED ──send──▶ WRITTEN ──answer, loss or cancel──▶ DONE

The state shows what is known about delivery when we end the flight ourselves. A flight has no task:
its future is awaited, and the link's data callback ends it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from msgspec import Raw

from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.envelope import COMPLETE, result_type
from mcp_junction.resilience.failures import Failure
from mcp_junction.upstream.outcome import RESULT, Delivery, Outcome

WIRE_IDS: Final = itertools.count(1)
"""Each is an id that no other flight has."""


class FlightState(Enum):
    """How far a flight has come."""

    QUEUED = auto()
    WRITTEN = auto()
    DONE = auto()


QUEUED: Final = FlightState.QUEUED  # for the call path, see protocol/versions.py
WRITTEN: Final = FlightState.WRITTEN
DONE: Final = FlightState.DONE


class FlightCaller(Protocol):
    """The call that a flight is for, which gets what the server sends before the answer."""

    @property
    def session(self) -> object:
        """The session of the call; only its identity is used."""

    @property
    def principal(self) -> Principal:
        """Who makes the call."""

    @property
    def can_replay(self) -> bool:
        """Whether the link itself may send a refused call once more; else its caller decides."""

    def count_replay(self) -> None:
        """Count that the link itself sends the call once more."""

    def progress(self, params: dict[str, Raw]) -> None: ...

    def log(self, params: Raw) -> None: ...

    def ask(self, method: str, params: Raw) -> Awaitable[Outcome]: ...


class Withdrawable(Protocol):
    """A request of the server that the server may cancel."""

    def cancel(self) -> object: ...


@runtime_checkable
class ParkingCaller(FlightCaller, Protocol):
    """A caller that can park: it takes a request of the server without a task that waits."""

    @property
    def is_asked(self) -> bool:
        """Whether a request of the server waits for its answer."""

    def park(
        self, method: str, params: Raw, answer: Callable[[Outcome], None]
    ) -> Withdrawable | None:
        """Take a request of the server; None when it is answered at once."""


class FlightSender(Protocol):
    """The link that has sent a flight."""

    def cancel(self, flight: Flight, reason: str) -> None: ...


class Flight(msgspec.Struct, eq=False):
    """One attempt. Its wire id is unique in the process, so links cannot mix up flights."""

    method: str
    future: asyncio.Future[Outcome]
    wire_id: bytes
    caller: FlightCaller | None = None
    params: bytes = b""
    headers: bytes = b""
    """Header lines for a stateless server over HTTP."""
    attempts: int = 0
    """The attempts of its call so far, this one included, and the canonical name of what is called:
    its outcome says both."""
    target: str = ""
    state: FlightState = FlightState.QUEUED
    link: FlightSender | None = None
    carrier: object = None
    """The HTTP exchange that carries it, for the link's own use."""
    tokens: Any = None
    """The TokenSource of its requests, where the server has credentials."""
    failure: Failure | None = None
    """What the status of an HTTP response says, if an error is in its body."""
    adapt: Callable[[Any, Outcome], Outcome] | None = None
    """Adapts its outcome to the era of its caller, which it is given, too; None leaves it.

    It is not asked for results that are complete, as nearly all are: those of handshake servers
    always are, and listeners give them their envelope."""

    @property
    def delivery(self) -> Delivery:
        """Whether the server may have run it, if it failed now; of a flight that ended, if it did.

        An answered flight is UNKNOWN: whoever fails after it cannot say what the answer was.
        """
        if self.state is QUEUED:
            return Delivery.NOT_SENT
        if self.state is DONE and self.future.done() and not self.future.cancelled():
            return self.future.result().delivery or Delivery.UNKNOWN
        return Delivery.UNKNOWN

    def end(self, outcome: Outcome) -> None:
        """Set the outcome; only the first one counts."""
        self.state = DONE
        if outcome.attempts != self.attempts:
            outcome = outcome.counted(self.attempts, self.target)
        caller, future = self.caller, self.future
        # Both refer to us: a reference cycle would keep a large call until the next collection.
        self.caller = None
        if self.carrier is not None:
            self.carrier = None
        if future.done():
            return
        if self.adapt is not None and (
            outcome.kind is not RESULT
            or (outcome.is_enveloped and result_type(outcome.payload) is not COMPLETE)
        ):
            try:
                outcome = self.adapt(caller, outcome)
            except Exception as error:  # noqa: BLE001 - the call fails, not the link
                future.set_exception(error)
                return
        future.set_result(outcome)

    def abandon(self, outcome: Outcome, reason: str) -> None:
        """End it ourselves, and tell the server."""
        if self.link is not None and self.state is not DONE:
            self.link.cancel(self, reason)
        self.end(outcome)


def new_wire_id() -> bytes:
    """Return an id that no other flight has."""
    return b"%d" % next(WIRE_IDS)


def new_flight(method: str, caller: FlightCaller | None = None) -> Flight:
    """Make a flight; without a caller, of a request of our own."""
    return Flight(method, asyncio.get_running_loop().create_future(), new_wire_id(), caller)
