"""Resume: continues a call whose stateless client comes back with the answer to a question.

The client brings our ticket as ``requestState``. It leads to a parked call of a handshake server,
whose flight is rejoined, or holds the state that a stateless server wants back. Either way the call
goes on as it began: with its deadline, its claim and its intent, and nothing is spent again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Raw

from mcp_junction.calls.attempt import Attempt, timeout_of
from mcp_junction.calls.call import Call, Handler
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.events import CallEnded
from mcp_junction.calls.methods import with_name
from mcp_junction.calls.stages.authorize import deny
from mcp_junction.catalog.items import Route
from mcp_junction.catalog.own_tools import SIGNED_IN, is_sign_in_offer
from mcp_junction.eras.parked import ASKED, USED, ParkedCall, ParkedCalls
from mcp_junction.eras.tickets import Continuation, Ticket, TicketOwner, server_ref
from mcp_junction.errors import FrameError, RequestStateError, StoreError
from mcp_junction.protocol import encode, frames
from mcp_junction.protocol.versions import (
    APPROVAL_NEEDED,
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    SERVER_UNAVAILABLE,
    STATELESS,
)
from mcp_junction.tasks import wait_unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import ERROR, RESULT, SUSPENDED, Delivery, Outcome

if TYPE_CHECKING:  # the stdio mode does without it
    from mcp_junction.governance.idempotency_claims import IdempotencyClaims

_OF_ROUNDS: Final = frozenset(("_meta", "requestState", "inputResponses"))
"""The params that differ when a call comes back."""
_ANSWERING: Final = frozenset(("requestState", "inputResponses"))
SIGN_IN: Final = "sign_in"
APPROVAL: Final = "approval"
"""The purposes of tickets of calls that were not made yet: a sign-in, or a person's approval."""
_PAGE_WAIT: Final = 10.0
"""Seconds that a call waits when its client comes back before the person has done."""
_DECLINED: Final = "a person has to approve this call, and that was declined"
_NO_STORE: Final = "the store cannot be reached, so that the call does not go on; try again later"
NO_STATE: Final = Raw(b"null")
"""An absent state, as some clients write it."""


class ResumedClaims(NamedTuple):
    """What is done about the claim of a call that is resumed."""

    claims: IdempotencyClaims
    settle: Callable[[str, Outcome], Awaitable[None]]
    """Settles a claim by the outcome of its call."""


class Resume:
    """The stage that resumes calls whose clients were asked something."""

    def __init__(
        self,
        parked_calls: ParkedCalls,
        deadlines: Deadlines,
        claims: ResumedClaims | None = None,
        wait_for_approval: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """``wait_for_approval`` returns when somebody has decided about a request."""
        self.parked_calls = parked_calls
        self._deadlines = deadlines
        self.resumed_claims = claims
        self._wait_for_approval = wait_for_approval

    def __call__(self, call: Call, following: Handler) -> Awaitable[Outcome]:
        if "requestState" not in call.params or call.caller.era is not STATELESS:
            return following(call)
        return self._resume(call, following)

    async def _resume(self, call: Call, following: Handler) -> Outcome:
        route, state = call.route, call.params["requestState"]
        assert route is not None, "resolve comes first"
        if state == NO_STATE:
            call.params = {key: raw for key, raw in call.params.items() if key != "requestState"}
            return await following(call)
        if call.ended_by is not None:  # nobody waits: it stays for whoever comes back
            return call.ended_by
        try:
            owner = owner_of(call, route)
            ticket = self.parked_calls.seal.open(state_text(state), owner)
            if ticket.inner is None:
                answers = read_answers(call.params.get("inputResponses"))
                parked = self.parked_calls.resume(ticket)
            else:
                self.parked_calls.spend_ticket(ticket)
        except RequestStateError as error:
            upstream = route.upstream
            if upstream.is_shut or upstream.link is None:
                return upstream.unavailable()
            return outcomes.failed(INVALID_PARAMS, str(error), Delivery.NOT_SENT)
        if ticket.purpose:
            decision = call.decision
            if decision is not None and not decision.allowed:  # it continues no call that was
                return await deny(call, decision.reason)
            return await self._after_page(call, route, ticket, following)
        call.is_resume = True
        if ticket.inner is None:
            going = self._rejoin(call, route, parked, answers)
        else:
            going = self._send_state(call, ticket, ticket.inner, following)
        return await self._settle_claim(call, going)

    async def _settle_claim(self, call: Call, going: Awaitable[Outcome]) -> Outcome:
        """Wait for the end of a resumed call; whatever becomes of it, its claim is settled."""
        resumed = self.resumed_claims
        try:
            outcome = await going
        except BaseException:
            if call.claim is not None and resumed is not None:
                resumed.claims.give_up(call.claim)
            raise
        if call.claim is not None and resumed is not None:
            await resumed.settle(call.claim, outcome)
        return outcome

    async def _after_page(
        self, call: Call, route: Route, ticket: Ticket, following: Handler
    ) -> Outcome:
        """Make a call for the first time, once its client was at a page of ours.

        It passes only if a person has done there what the call needs; else it is asked again.
        """
        answers = frames.object_members(call.params.get("inputResponses") or b"{}")
        answer = frames.object_members(answers.get(ticket.purpose) or b"{}")
        call.params = {key: raw for key, raw in call.params.items() if key not in _ANSWERING}
        if frames.text(answer.get("action")) != "accept":
            if ticket.purpose == SIGN_IN:
                return outcomes.sign_in_needed(route.upstream.key, "that was declined")
            return outcomes.failed(APPROVAL_NEEDED, _DECLINED, Delivery.NOT_SENT)
        with suppress(TimeoutError):  # the person may take longer: then it is asked again
            async with asyncio.timeout(_PAGE_WAIT):
                await wait_unless(call.ending, self._wait_for_page(call, route, ticket))
        tokens = route.upstream.tokens
        if is_sign_in_offer(route.item) and tokens is not None and not tokens.is_signed_out:
            return outcomes.result(SIGNED_IN)
        return await following(call)

    async def _wait_for_page(self, call: Call, route: Route, ticket: Ticket) -> None:
        if ticket.purpose == APPROVAL:
            if self._wait_for_approval is not None:
                await self._wait_for_approval(ticket.inner or "")
            return
        tokens = route.upstream.tokens
        source = None if tokens is None else tokens.for_principal(call.user)
        if source is not None and source.is_signed_out:
            await source.wait_for_change()

    async def _send_state(
        self, call: Call, ticket: Ticket, state: str, following: Handler
    ) -> Outcome:
        """Call a stateless server again, with the state that it gave out."""
        spent = await self._spend(ticket)
        if isinstance(spent, Outcome):
            return spent
        self._continue(call, ticket.continuation)
        if ticket.has_state:
            call.resumed_state = Raw(encode.dumps(state))
        else:
            call.params = {key: raw for key, raw in call.params.items() if key != "requestState"}
        await self._take_over_claim(call)
        outcome = await following(call)
        is_done = outcome.kind is RESULT or outcome.kind is SUSPENDED
        if not is_done and outcome.delivery in (None, Delivery.NOT_SENT):
            self.parked_calls.return_ticket(ticket)  # it was refused, or never came there
            if spent is not None and self.resumed_claims is not None:
                await self.resumed_claims.claims.return_ticket(spent)
        return outcome

    async def _spend(self, ticket: Ticket) -> str | Outcome | None:
        """Spend a ticket in the store, where its call goes on by a token or a claim that it had.

        All processes open the same tickets, and after a restart, too. Return what it can be
        returned by, or the answer to a call whose ticket was spent.
        """
        known, resumed = ticket.continuation, self.resumed_claims
        if resumed is None or not (known.passed_by or known.claim):
            return None
        try:
            spent = await resumed.claims.spend_ticket(ticket.id)
        except StoreError:
            self.parked_calls.return_ticket(ticket)
            return outcomes.failed(SERVER_UNAVAILABLE, _NO_STORE, Delivery.NOT_SENT)
        return spent or outcomes.failed(INVALID_PARAMS, USED, Delivery.NOT_SENT)

    async def _rejoin(
        self, call: Call, route: Route, parked: ParkedCall, answers: dict[str, Raw]
    ) -> Outcome:
        """Hand the client's answers to the server, and wait on for the flight."""
        self._continue(call, parked.continuation)
        call.flight, call.attempts = parked.flight, parked.attempts
        if parked.record is not None and parked.record.route is not None:
            call.substitute = _make_substitute(call, route, parked.record)
            route = parked.record.route
        attempt = Attempt(call, route, parked.flight)
        self._deadlines.begin(attempt, timeout_of(call, route), parked.left)
        try:
            await self._take_over_claim(call)
            if call.ended_by is None:
                parked.give_answers(answers)
            return await self.wait(attempt, parked)
        finally:
            call.substitute = None
            self._deadlines.end(attempt)

    async def _take_over_claim(self, call: Call) -> None:
        if call.claim is not None and self.resumed_claims is not None:
            await self.resumed_claims.claims.take_over(call.claim)

    def _continue(self, call: Call, before: Continuation) -> None:
        call.spoke = call.spoke or before.spoke
        call.claim, call.intent = before.claim, before.intent
        call.resumed_at, call.passed_by = before.fallback, before.passed_by
        if before.left is not None:
            self._deadlines.watch(call, before.left)

    async def wait(self, attempt: Attempt, parked: ParkedCall) -> Outcome:
        """Wait for the end of a parked call's flight, or park it with its next questions."""
        call, route = attempt.call, attempt.route
        outcome = await parked.wait(attempt)
        if outcome is not None:
            return attempt.finish(in_stateless_era(outcome))
        call.flight, known = None, call.substitute or call  # it is no longer this request's
        parked.left, parked.attempts = self._deadlines.left(attempt), call.attempts
        parked.record = CallEnded(
            call.user,
            call.method,
            call.name,
            route,
            False,
            None,
            ASKED,
            0.0,
            decision=known.decision,
            carried=call.carried,
            correlation_id=call.correlation_id,
        )
        parked.continuation = continuation_of(known, self._deadlines, call.intent)
        call.intent = None  # it stays open while the server works
        owner = parked.owner or owner_of(call, route)
        return attempt.finish(self.parked_calls.park(parked, owner))


def _make_substitute(call: Call, route: Route, record: CallEnded) -> Call | None:
    """Make the call of the fallback target whose flight goes on; None where there is none.

    A revocation looks at that: the grants of what was asked for say nothing about it.
    """
    target = record.route
    if target is None or (target.upstream, target.pair.name) == (route.upstream, route.pair.name):
        return None
    return msgspec.structs.replace(
        call,
        route=target,
        in_place_of=(route, call.params),
        facts=None,
        decision=record.decision,
        flight=None,
        _ending=None,
    )


def continuation_of(call: Call, deadlines: Deadlines, intent: str | None) -> Continuation:
    """Collect what the next request takes over from a call that asks its client something."""
    left, where = deadlines.left(call), None
    if call.in_place_of is not None:
        assert call.route is not None
        where = call.route.upstream.definition.id, call.route.pair.name
    return Continuation(left, True, call.claim, intent, where, call.passed_by)  # it was asked


def owner_of(call: Call, route: Route) -> TicketOwner:
    """Describe who may resume this call, and with which arguments."""
    params = call.params
    if call.in_place_of is not None:  # the client will ask for the same again
        route, params = call.in_place_of
    user, endpoint = call.user, call.caller.endpoint.name
    hashed = digest(with_name(call.method, params, route.raw_name))
    return TicketOwner(
        user.id,
        user.role.value,
        endpoint,
        server_ref(route.upstream.definition),
        route.pair.name,
        call.method,
        hashed,
        user.acting_for,
    )


def state_text(state: Raw) -> str:
    """The text of a ``requestState``. Raises RequestStateError."""
    text = frames.text(state)
    if text is None:
        raise RequestStateError("requestState must be a string")
    return text


def digest(params: dict[str, Raw]) -> str:
    """Hash the params of a call, independent of their formatting."""
    text = encode.dumps({key: raw for key, raw in params.items() if key not in _OF_ROUNDS})
    try:
        text = msgspec.json.encode(msgspec.json.decode(text), order="sorted")
    except msgspec.MsgspecError:
        pass  # it holds what Python cannot, like 1e400: then it must be written as it was
    return hashlib.sha256(text).hexdigest()[:32]


def read_answers(raw: Raw | None) -> dict[str, Raw]:
    """Read the client's answers from ``inputResponses``. Raises RequestStateError."""
    if raw is None:
        return {}
    try:
        answers = frames.members(raw)
    except FrameError:
        raise RequestStateError("inputResponses must be an object") from None
    for key, answer in answers.items():
        if frames.octets(answer)[:1] != b"{":  # servers have been seen to wait for ever then
            raise RequestStateError(f"inputResponses: {key[:100]!r} must be an object")
    return answers


def in_stateless_era(outcome: Outcome) -> Outcome:
    """Replace the code of an unknown resource by that of the stateless era."""
    if outcome.kind is not ERROR or b"%d" % RESOURCE_NOT_FOUND not in bytes(outcome.payload):
        return outcome
    members = frames.members(outcome.payload)
    if bytes(members.get("code", b"")) != b"%d" % RESOURCE_NOT_FOUND:
        return outcome
    members["code"] = Raw(b"%d" % INVALID_PARAMS)
    return msgspec.structs.replace(outcome, payload=encode.dumps(members))
