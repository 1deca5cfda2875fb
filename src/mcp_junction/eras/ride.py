"""Ride: a call of a stateless client on a flight to a server of the handshake era.

Such a server asks its questions in the middle of a call, and such a client can be asked only by
ending the exchange. So the flight stays in the air without anyone waiting: its ride keeps what the
server asked, and the client's next request takes it up again. A parked ride has no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.eras.seal import Bearer
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import METHOD_NOT_FOUND
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Kind, Outcome
from mcp_junction.upstream.questions import refusal

MAX_QUESTIONS: Final = 32
ASKED: Final = Outcome(Kind.SUSPENDED, b"{}")
"""What a flight's waiter is told when the server has asked something instead of answering."""


class Traveller(Protocol):
    """The call that waits for a ride at the moment."""

    def progress(self, params: dict[str, Raw]) -> None: ...

    def log(self, params: Raw) -> None: ...


class Question:
    """Something the server wants to know, and the way to tell it."""

    __slots__ = ("_key", "_ride", "answer", "method", "params")

    def __init__(
        self, ride: Ride, key: str, method: str, params: Raw, answer: Callable[[Outcome], None]
    ) -> None:
        self._ride = ride
        self._key = key
        self.method = method
        self.params = params
        self.answer = answer

    def cancel(self) -> None:
        """The server no longer wants to know."""
        self._ride.questions.pop(self._key, None)


class Ride(msgspec.Struct, eq=False):
    """A Passenger that outlives the request it came with."""

    _principal: Principal
    _askable: frozenset[str]
    bearer: Bearer | None = None
    id: str = ""
    round: int = 0
    expires: float = 0.0
    flight: Flight | None = None
    traveller: Traveller | None = None
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
        refused = refusal(method, params, self._askable)
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

    async def news(self, traveller: Traveller) -> Outcome | None:
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
