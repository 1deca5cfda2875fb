"""Calls of stateless clients that wait for answers to their server's questions.

A handshake-era server asks in the middle of a call; a stateless client can only be asked by ending
the exchange. So the flight goes on without anyone waiting: a ParkedCall keeps what the server
asked, and the client's next request resumes it. ParkedCalls holds them, issues and takes their
tickets, and ends those that wait too long. A parked call has no task.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.eras.tickets import Seal, Ticket, TicketOwner
from mcp_junction.errors import StateError
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import METHOD_NOT_FOUND, RATE_LIMITED, SERVER_UNAVAILABLE
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind
from mcp_junction.upstream.questions import question_refusal

MAX_QUESTIONS: Final = 32
ASKED: Final = Outcome(OutcomeKind.SUSPENDED, b"{}")
"""What a flight's waiter is told when the server has asked something instead of answering."""


class WaitingCall(Protocol):
    """The call that waits for a ride at the moment."""

    def progress(self, params: dict[str, Raw]) -> None: ...

    def log(self, params: Raw) -> None: ...


class Question:
    """Something the server wants to know, and the way to tell it."""

    __slots__ = ("_key", "_ride", "answer", "method", "params")

    def __init__(
        self,
        ride: ParkedCall,
        key: str,
        method: str,
        params: Raw,
        answer: Callable[[Outcome], None],
    ) -> None:
        self._ride = ride
        self._key = key
        self.method = method
        self.params = params
        self.answer = answer

    def cancel(self) -> None:
        """The server no longer wants to know."""
        self._ride.questions.pop(self._key, None)


class ParkedCall(msgspec.Struct, eq=False):
    """A Passenger that outlives the request it came with."""

    _principal: Principal
    _askable: frozenset[str]
    bearer: TicketOwner | None = None
    id: str = ""
    round: int = 0
    expires: float = 0.0
    flight: Flight | None = None
    traveller: WaitingCall | None = None
    questions: dict[str, Question] = {}
    _count: int = 0

    @property
    def session(self) -> object:
        return self  # there is no conversation that two calls could both belong to

    @property
    def principal(self) -> Principal:
        return self._principal

    @property
    def digest(self) -> str:
        """Of the arguments it began with; empty until it is first parked."""
        return self.bearer.digest if self.bearer is not None else ""

    @property
    def is_asked(self) -> bool:
        return bool(self.questions)

    # -- the Passenger of its flight

    def progress(self, params: dict[str, Raw]) -> None:
        if self.traveller is not None:
            self.traveller.progress(params)

    def log(self, params: Raw) -> None:
        if self.traveller is not None:
            self.traveller.log(params)

    async def ask(self, method: str, params: Raw) -> Outcome:
        """Links put questions to a ride by ``park``; this is for one that waits."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.park(method, params, answer.set_result)
        return await answer

    def park(self, method: str, params: Raw, answer: Callable[[Outcome], None]) -> Question | None:
        """Take a question of the server's; None when it is answered already."""
        refused = question_refusal(method, params, self._askable)
        if refused is not None:
            answer(refused)
            return None
        if len(self.questions) >= MAX_QUESTIONS:
            answer(outcomes.failed(METHOD_NOT_FOUND, "too many questions are open"))
            return None
        self._count += 1
        key = f"q{self._count}"
        found = self.questions[key] = Question(self, key, method, params.copy(), answer)
        self._wake()
        return found

    # -- the call that waits for it

    async def news(self, traveller: WaitingCall) -> Outcome | None:
        """Wait until the flight has ended, with its outcome, or there is a question: None."""
        assert self.flight is not None
        self.traveller = traveller
        try:
            while not self.questions:
                outcome = await self.flight.future
                if outcome is not ASKED:
                    if self.questions:
                        self._unanswered("the call is over")
                    return outcome
                # Questions that come together are asked together; one may be taken back at once.
                await asyncio.sleep(0)
                self.traveller = traveller
        finally:
            self.traveller = None
        landed = self.flight.future
        if not landed.done():
            return None
        self._unanswered("the call is over")
        return landed.result()

    def answered(self, responses: dict[str, Raw]) -> None:
        """Hand the client's answers to the server. What it left out is asked again."""
        for key, raw in responses.items():
            question = self.questions.pop(key, None)
            if question is not None:
                question.answer(outcomes.result(raw))

    def asked(self) -> dict[str, Raw]:
        """The questions as a result carries them."""
        return {
            key: Raw(encode.dumps({"method": q.method, "params": q.params or Raw(b"{}")}))
            for key, q in self.questions.items()
        }

    def abandon(self, outcome: Outcome, reason: str) -> None:
        """Nobody will come back: end the call at the server too."""
        if self.flight is not None:
            self.flight.abandon(outcome, reason)
        self._unanswered(reason)

    def _unanswered(self, reason: str) -> None:
        """The call is over: a server that still waits for an answer gets none."""
        questions, self.questions = self.questions, {}
        for question in questions.values():
            question.answer(outcomes.failed(METHOD_NOT_FOUND, reason))

    def _wake(self) -> None:
        """Let whoever waits for the flight go, and the flight go on without anyone waiting."""
        flight = self.flight
        if flight is None or self.traveller is None or flight.future.done():
            return
        self.traveller = None
        waiting, flight.future = flight.future, asyncio.get_running_loop().create_future()
        waiting.set_result(ASKED)


SWEEP_EVERY: Final = 1.0
_SOME: Final = 100
_USED: Final = 100_000


class ParkedCalls:
    """The parked rides."""

    def __init__(self, clock: Clock, seal: Seal, seconds: float, limit: int) -> None:
        """``limit`` is how many rides of one principal may wait."""
        self.seal = seal
        self._clock = clock
        self._seconds = seconds
        self._limit = limit
        self._rides: dict[str, ParkedCall] = {}
        self._waiting: dict[object, int] = {}
        """How many rides of each principal wait; nobody is in it who has none."""
        self._used: dict[str, float] = {}
        """The tickets of stateless servers' states that have been used, until they expire."""
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._rides)

    def park(self, ride: ParkedCall, bearer: TicketOwner) -> Outcome:
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
        return Outcome(OutcomeKind.SUSPENDED, encode.dumps(result))

    def keep(self, bearer: TicketOwner, state: str) -> str:
        """The state of a stateless server, sealed for its bearer: nothing waits here for it."""
        expires = self.seal.until(self._seconds)
        return self.seal.close(Ticket(bearer, expires, ride=_new_id(), inner=state))

    def use(self, state: str, bearer: TicketOwner) -> Ticket:
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

    def take(self, state: str, bearer: TicketOwner) -> ParkedCall:
        """The ride that ``state`` is the ticket of. Raises StateError."""
        ticket = self.seal.open(state, bearer)
        ride = self._rides.get(ticket.ride)
        if ride is None or ride.round != ticket.round:
            raise StateError("this requestState was used before, or has expired")
        self._remove(ride)
        return ride

    def _remove(self, ride: ParkedCall) -> None:
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

    def end(self, belongs: Callable[[TicketOwner], bool], reason: str) -> None:
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
