"""Calls of stateless clients that wait for answers to their server's questions.

A handshake-era server asks in the middle of a call; a stateless client can only be asked by ending
the exchange. So the flight goes on without anyone waiting: a ParkedCall keeps what the server
asked, and the client's next request resumes it. ParkedCalls holds them, issues and spends
tickets, and ends those that wait too long. A parked call has no task.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcp_junction.calls.events import CallEnded, CallSink
from mcp_junction.eras.tickets import Continuation, Seal, Ticket, TicketOwner
from mcp_junction.errors import RequestStateError
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import (
    DENIED,
    METHOD_NOT_FOUND,
    RATE_LIMITED,
    SERVER_UNAVAILABLE,
)
from mcp_junction.resilience.clock import Clock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight, FlightCaller
from mcp_junction.upstream.handshake import question_refusal
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

MAX_QUESTIONS: Final = 32
USED: Final = "this requestState was used before; make the call again without it"
ASKED: Final = Outcome(OutcomeKind.SUSPENDED, b"{}")
"""Wakes the waiter of a flight whose server has asked something instead of answering."""


class Question(msgspec.Struct, eq=False):
    """One question of a server, and the function that answers it."""

    _parked: ParkedCall
    _key: str
    method: str
    params: Raw
    answer: Callable[[Outcome], None]

    def cancel(self) -> None:
        """Withdraw the question: the server no longer waits for an answer."""
        self._parked.questions.pop(self._key, None)


class ParkedCall(msgspec.Struct, eq=False):
    """A call whose flight outlives the request it came with."""

    principal: Principal
    _askable: frozenset[str]
    owner: TicketOwner | None = None
    """Who may resume it; None until it is first parked."""
    id: str = ""
    round: int = 0
    expires: float = 0.0
    flight: Flight | None = None
    waiting: FlightCaller | None = None
    """The request that waits for it at the moment."""
    suspend: Callable[[asyncio.Future[Outcome]], None] | None = None
    """Answers the first request, which waits for the future of the flight itself."""
    questions: dict[str, Question] = {}
    attempts: int = 0
    left: float | None = None
    """The seconds that its attempt has left; None if that has no timeout."""
    record: CallEnded | None = None
    """What is known of the call for its end; None until it is first parked."""
    continuation: Continuation = Continuation()
    """What the next request takes over from the one before."""
    _count: int = 0

    @property
    def session(self) -> object:
        return self  # there is no conversation that two calls could both belong to

    @property
    def is_asked(self) -> bool:
        return bool(self.questions)

    # -- what its flight reports

    @property
    def can_replay(self) -> bool:
        return False  # its server has asked, so it has begun

    def count_replay(self) -> None:
        self.attempts += 1

    def progress(self, params: dict[str, Raw]) -> None:
        if self.waiting is not None:
            self.waiting.progress(params)

    def log(self, params: Raw) -> None:
        if self.waiting is not None:
            self.waiting.log(params)

    async def ask(self, method: str, params: Raw) -> Outcome:
        """Ask and wait for the answer; links put their questions by ``park``."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.park(method, params, answer.set_result)
        return await answer

    def park(self, method: str, params: Raw, answer: Callable[[Outcome], None]) -> Question | None:
        """Park a question of the server; None when it was answered at once."""
        refused = question_refusal(method, params, self._askable)
        if refused is not None:
            answer(refused)
            return None
        if len(self.questions) >= MAX_QUESTIONS:
            answer(outcomes.failed(METHOD_NOT_FOUND, "too many questions are open"))
            return None
        self._count += 1
        key = f"q{self._count}"
        question = self.questions[key] = Question(self, key, method, params.copy(), answer)
        self._wake()
        return question

    # -- the request that waits for it

    async def wait(self, call: FlightCaller) -> Outcome | None:
        """Wait until the flight has ended, with its outcome, or there is a question: None."""
        assert self.flight is not None
        self.waiting = call
        try:
            while not self.questions:
                outcome = await self.flight.future
                if outcome is not ASKED:
                    self._refuse_questions("the call is over")
                    return outcome
                # Questions that come together are asked together; one may be taken back at once.
                await asyncio.sleep(0)
                self.waiting = call
        finally:
            self.waiting = None
        end = self.flight.future
        if not end.done():
            return None
        self._refuse_questions("the call is over")
        return end.result()

    def give_answers(self, answers: dict[str, Raw]) -> None:
        """Hand the client's answers to the server. What it left out is asked again."""
        for key, raw in answers.items():
            question = self.questions.pop(key, None)
            if question is not None:
                question.answer(outcomes.result(raw))

    def input_requests(self) -> dict[str, Raw]:
        """The questions as a result carries them."""
        return {
            key: Raw(encode.dumps({"method": q.method, "params": q.params or Raw(b"{}")}))
            for key, q in self.questions.items()
        }

    def abandon(self, outcome: Outcome, reason: str) -> None:
        """End the call at the server too: nobody will come back for it."""
        if self.flight is not None:
            self.flight.abandon(outcome, reason)
        self._refuse_questions(reason)

    def event(self, outcome: Outcome) -> CallEnded:
        """The end of the call, for the audit."""
        assert self.record is not None, "only a call that was parked can be abandoned"
        end, intent = outcome.counted(self.attempts, ""), self.continuation.intent
        return replace(self.record, outcome=end, intent=intent)

    def _refuse_questions(self, reason: str) -> None:
        """Refuse all open questions, because the call is over."""
        questions, self.questions = self.questions, {}
        for question in questions.values():
            question.answer(outcomes.failed(METHOD_NOT_FOUND, reason))

    def _wake(self) -> None:
        """Wake the waiting request; the flight goes on with a new future."""
        flight = self.flight
        if flight is None or self.waiting is None or flight.future.done():
            return
        self.waiting = None
        waiting, flight.future = flight.future, asyncio.get_running_loop().create_future()
        if self.suspend is not None:
            self.suspend(waiting)
            self.suspend = None
        else:
            waiting.set_result(ASKED)


SWEEP_EVERY: Final = 1.0
_AT_ONCE: Final = 100
_MAX_SPENT: Final = 100_000


class ParkedCalls:
    """The calls that wait for their clients, and the tickets that were spent."""

    def __init__(
        self,
        clock: Clock,
        seal: Seal,
        seconds: float,
        limit: int,
        close_intent: CallSink | None = None,
        give_claim_up: Callable[[str], None] | None = None,
    ) -> None:
        """``limit`` is how many calls of one principal may wait.

        ``close_intent`` records the end of a call that is abandoned with an open intent;
        ``give_claim_up`` is told the claim of one that is abandoned.
        """
        self.seal = seal
        self._clock = clock
        self._seconds = seconds
        self._limit = limit
        self._close_intent = close_intent
        self._give_claim_up = give_claim_up
        self._parked: dict[str, ParkedCall] = {}
        self._waiting: dict[object, int] = {}
        """How many calls of each principal wait; only principals that have some."""
        self._spent: dict[str, float] = {}
        """The tickets of stateless servers' states that were spent, until they expire."""
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, parked: ParkedCall, owner: TicketOwner) -> Outcome:
        """Park a call; the outcome asks the client, and has the ticket it comes back with."""
        if self._waiting.get(parked.principal, 0) >= self._limit:
            full = _over_quota(self._limit)
            self._abandon(parked, full, "its client has too many calls waiting")
            return full
        parked.owner = owner
        parked.round += 1
        parked.id = parked.id or _new_id()
        parked.expires = self._clock.now() + self._seconds
        self._parked[parked.id] = parked
        self._waiting[parked.principal] = self._waiting.get(parked.principal, 0) + 1
        self._some.set()
        ticket = Ticket(owner, id=parked.id, round=parked.round)
        result = {
            "resultType": "input_required",
            "inputRequests": parked.input_requests(),
            "requestState": self.seal.close(ticket),
        }
        return Outcome(OutcomeKind.SUSPENDED, encode.dumps(result), is_enveloped=True)

    def issue_ticket(
        self, owner: TicketOwner, state: str | None, continuation: Continuation, purpose: str = ""
    ) -> str:
        """Seal the state of a stateless server for its owner, or that there is none.

        Nothing waits here for it. With a purpose it is the subject of a question of our own.
        """
        expires, has_state = self.seal.until(self._seconds), state is not None
        ticket = Ticket(owner, expires, _new_id(), 0, state or "", continuation, purpose, has_state)
        return self.seal.close(ticket)

    def spend_ticket(self, ticket: Ticket) -> None:
        """Spend the ticket of a stateless server's state, good once. Raises RequestStateError."""
        if ticket.id in self._spent:
            raise RequestStateError(USED)
        while self._spent and (len(self._spent) >= _MAX_SPENT or self._is_first_expired()):
            del self._spent[next(iter(self._spent))]
        self._spent[ticket.id] = ticket.expires

    def return_ticket(self, ticket: Ticket) -> None:
        """Make a ticket good again, because nothing came of it."""
        self._spent.pop(ticket.id, None)

    def _is_first_expired(self) -> bool:
        return next(iter(self._spent.values())) < self.seal.until(0)

    def resume(self, ticket: Ticket) -> ParkedCall:
        """Take out the parked call that a ticket is for. Raises RequestStateError."""
        parked = self._parked.get(ticket.id)
        if parked is None or parked.round != ticket.round:
            raise RequestStateError("this requestState was used before, or has expired")
        self._remove(parked)
        return parked

    def _remove(self, parked: ParkedCall) -> None:
        del self._parked[parked.id]
        left = self._waiting[parked.principal] - 1
        if left:
            self._waiting[parked.principal] = left
        else:
            del self._waiting[parked.principal]

    def _abandon(self, parked: ParkedCall, outcome: Outcome, reason: str) -> None:
        """End a call at its server too, because nobody will come back for it."""
        parked.abandon(outcome, reason)
        if parked.continuation.intent is not None and self._close_intent is not None:
            self._close_intent(parked.event(outcome))
        if parked.continuation.claim is not None and self._give_claim_up is not None:
            self._give_claim_up(parked.continuation.claim)

    def withdraw(self, state: str, reason: str) -> None:
        """End the call that ``state`` is the ticket of, if it still waits for its client."""
        ticket = self.seal.read(state)
        parked = self._parked.get(ticket.id)
        if parked is not None and parked.round == ticket.round:
            self._end(parked, reason)

    def end(self, belongs: Callable[[TicketOwner], bool], reason: str) -> None:
        """End the calls of the owners that ``belongs`` selects."""
        for parked in list(self._parked.values()):
            if parked.owner is not None and belongs(parked.owner):
                self._end(parked, reason)

    def deny(self, is_denied: Callable[[ParkedCall], bool], reason: str) -> None:
        """End the calls that their callers may not make any more."""
        for parked in list(self._parked.values()):
            if is_denied(parked):
                self._end(parked, reason, DENIED)

    def _end(self, parked: ParkedCall, reason: str, code: int = SERVER_UNAVAILABLE) -> None:
        self._remove(parked)
        ended = outcomes.failed(code, reason, Delivery.UNKNOWN)
        self._abandon(parked, ended, reason)

    def sweep(self) -> bool:
        """End some of those that have waited too long; whether there may be more."""
        now = self._clock.now()
        expired = (parked for parked in self._parked.values() if parked.expires <= now)
        late = list(islice(expired, _AT_ONCE))
        for parked in late:
            self._end(parked, "the client did not come back")
        return len(late) == _AT_ONCE

    async def run(self) -> None:
        """Sweep while there is anything to sweep."""
        while True:
            await self._some.wait()
            await self._clock.sleep(SWEEP_EVERY)
            while self.sweep():  # noqa: ASYNC110 - nothing is waited for
                await asyncio.sleep(0)  # ending thousands must not hold others up
            if not self._parked:
                self._some.clear()


def _new_id() -> str:
    return secrets.token_urlsafe(12)


def _over_quota(limit: int) -> Outcome:
    words = (
        f"you have {limit} calls waiting for answers to their servers' questions, as many as one"
        " principal may have (max_parked_per_principal); answer or cancel some of them first"
    )
    return outcomes.failed(RATE_LIMITED, words, Delivery.UNKNOWN)
