"""Lot: where rides wait for their clients, for a while; one sweep ends those that wait too long.

It gives out the tickets, for the states of stateless servers too, and takes each of them once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from itertools import islice
from typing import Final

from mcp_junction.eras.ride import Ride
from mcp_junction.eras.seal import Bearer, Seal, Ticket
from mcp_junction.errors import StateError
from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import RATE_LIMITED, SERVER_UNAVAILABLE
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Kind, Outcome

SWEEP_EVERY: Final = 1.0
_SOME: Final = 100
_USED: Final = 100_000


class Lot:
    """The parked rides."""

    def __init__(self, clock: Clock, seal: Seal, seconds: float, limit: int) -> None:
        """``limit`` is how many rides of one principal may wait."""
        self.seal = seal
        self._clock = clock
        self._seconds = seconds
        self._limit = limit
        self._rides: dict[str, Ride] = {}
        self._waiting: dict[object, int] = {}
        """How many rides of each principal wait; nobody is in it who has none."""
        self._used: dict[str, float] = {}
        """The tickets of stateless servers' states that have been used, until they expire."""
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._rides)

    def park(self, ride: Ride, bearer: Bearer) -> Outcome:
        """The answer that asks the client, and the ticket it comes back with."""
        if self._waiting.get(ride.principal, 0) >= self._limit:
            full = _over_quota(self._limit)
            ride.abandon(full, "its client has too many calls waiting")
            return full
        ride.bearer = bearer
        ride.round += 1
        ride.id = ride.id or _new_id()
        ride.expires = self._clock.now() + self._seconds
        self._rides[ride.id] = ride
        self._waiting[ride.principal] = self._waiting.get(ride.principal, 0) + 1
        self._some.set()
        ticket = Ticket(bearer, ride=ride.id, round=ride.round)
        result = {
            "resultType": "input_required",
            "inputRequests": ride.asked(),
            "requestState": self.seal.close(ticket),
        }
        return Outcome(Kind.SUSPENDED, encode.dumps(result))

    def keep(self, bearer: Bearer, state: str) -> str:
        """The state of a stateless server, sealed for its bearer: nothing waits here for it."""
        expires = self.seal.until(self._seconds)
        return self.seal.close(Ticket(bearer, expires, ride=_new_id(), inner=state))

    def use(self, state: str, bearer: Bearer) -> Ticket:
        """The ticket that such a state is; it is good once. Raises StateError."""
        ticket = self.seal.open(state, bearer)
        if ticket.inner is None:  # a ride's: the server was of the other era then
            raise StateError("what this requestState belongs to has ended")
        if ticket.ride in self._used:
            raise StateError("this requestState was used before; make the call again without it")
        while self._used and (len(self._used) >= _USED or self._is_first_over()):
            del self._used[next(iter(self._used))]
        self._used[ticket.ride] = ticket.expires
        return ticket

    def unused(self, ticket: Ticket) -> None:
        """Nothing came of its use: it is good for another."""
        self._used.pop(ticket.ride, None)

    def _is_first_over(self) -> bool:
        return next(iter(self._used.values())) < self.seal.until(0)

    def take(self, state: str, bearer: Bearer) -> Ride:
        """The ride that ``state`` is the ticket of. Raises StateError."""
        ticket = self.seal.open(state, bearer)
        ride = self._rides.get(ticket.ride)
        if ride is None or ride.round != ticket.round:
            raise StateError("this requestState was used before, or has expired")
        self._remove(ride)
        return ride

    def _remove(self, ride: Ride) -> None:
        """Let a ride wait no longer."""
        del self._rides[ride.id]
        left = self._waiting[ride.principal] - 1
        if left:
            self._waiting[ride.principal] = left
        else:
            del self._waiting[ride.principal]

    def withdraw(self, state: str, reason: str) -> None:
        """End the ride that ``state`` is the ticket of, if it still waits for its client."""
        ticket = self.seal.read(state)
        ride = self._rides.get(ticket.ride)
        if ride is not None and ride.round == ticket.round:
            self._remove(ride)
            ride.abandon(_ended(reason), reason)

    def end(self, belongs: Callable[[Bearer], bool], reason: str) -> None:
        """End the rides of whoever is no longer expected."""
        for ride in list(self._rides.values()):
            if ride.bearer is not None and belongs(ride.bearer):
                self._remove(ride)
                ride.abandon(_ended(reason), reason)

    def sweep(self) -> bool:
        """End some of those that have waited too long; whether there may be more."""
        now = self._clock.now()
        late = list(islice((ride for ride in self._rides.values() if ride.expires <= now), _SOME))
        for ride in late:
            self._remove(ride)
            ride.abandon(_ended("the client did not come back"), "the client did not come back")
        return len(late) == _SOME

    async def run(self) -> None:
        """Sweep while there is anything to sweep."""
        while True:
            await self._some.wait()
            await self._clock.sleep(SWEEP_EVERY)
            while self.sweep():  # noqa: ASYNC110 - nothing is waited for
                await asyncio.sleep(0)  # ending thousands must not hold others up
            if not self._rides:
                self._some.clear()


def _new_id() -> str:
    return secrets.token_urlsafe(12)


def _over_quota(limit: int) -> Outcome:
    words = (
        f"you have {limit} calls waiting for answers to their servers' questions, as many as one"
        " principal may have (max_parked_per_principal); answer or cancel some of them first"
    )
    return outcomes.failed(RATE_LIMITED, words, Delivery.UNKNOWN)


def _ended(reason: str) -> Outcome:
    return outcomes.failed(SERVER_UNAVAILABLE, reason, Delivery.UNKNOWN)
