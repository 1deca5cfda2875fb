"""StatelessCall: a call of a stateless client, which can be asked only by ending the exchange.

Hardly any call is asked something. The first question makes a ParkedCall of it, which keeps the
flight when the request is over; until then it is a call like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import ASKING
from mcp_junction.eras.parked import ParkedCall, Question
from mcp_junction.protocol import log_levels as levels
from mcp_junction.protocol.versions import HANDSHAKE
from mcp_junction.upstream.outcome import Outcome


class StatelessCall(Call, eq=False):
    """A call that takes questions as a Parker does."""

    level: int | None = None
    """The least level of log messages that the client wants of this call; None is none."""
    is_bare: bool = False
    """Whether the client says nothing in ``_meta`` but who it is."""
    is_asked: ClassVar[bool] = False
    """What was asked something is a ride."""
    ride: ParkedCall | None = None

    @property
    def session(self) -> object:
        """Before a server of the handshake era no two calls belong to one conversation."""
        link = self.flight.link if self.flight is not None else None
        return self if link is not None and link.era is HANDSHAKE else self.caller

    def wants_log(self, params: Raw) -> bool:
        return self.level is not None and levels.has_level(params, self.level)

    def park(self, method: str, params: Raw, answer: Callable[[Outcome], None]) -> Question | None:
        """Take the first question; the ride takes the others."""
        assert self.flight is not None, "a server is asked before it asks"
        caller = self.caller
        askable: frozenset[str] = caller.questions if self.method in ASKING else frozenset()
        self.ride = ParkedCall(caller.principal, askable, flight=self.flight, traveller=self)
        self.flight.passenger = self.ride
        return self.ride.park(method, params, answer)
