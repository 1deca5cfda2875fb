"""Visiting: a call of a stateless client at a server of the handshake era, and its answer back.

Such a server may ask something in the middle of a call. The client then has its answer, which asks
it, and the call is parked; when the client comes back with what it was asked, it is taken up again.
Which link the call takes is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import ASKING, OF_TASKS, READ, readdressed
from mcp_junction.calls.stateless_call import StatelessCall
from mcp_junction.catalog.routes import Route
from mcp_junction.eras.parked import ParkedCall, ParkedCalls
from mcp_junction.eras.tickets import TicketOwner
from mcp_junction.errors import FrameError, StateError
from mcp_junction.protocol import encode, envelope, frames
from mcp_junction.protocol.envelope import ResultEnvelope, has_no_envelope
from mcp_junction.protocol.versions import INVALID_PARAMS, LOG_LEVELS, RESOURCE_NOT_FOUND
from mcp_junction.tasks import wait_unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import ERROR, RESULT, Delivery, EnvelopedOutcome, Outcome
from mcp_junction.upstream.server import Upstream

_OF_ROUNDS: Final = frozenset(("_meta", "requestState", "inputResponses"))
"""The params that differ when a call comes back."""
_join: Final = b"".join  # ``frames.octets``, for the way of every call
NULL: Final = Raw(b"null")
"""How some write that there is no state."""


class Visiting:
    """The way there and back."""

    def __init__(self, parked_calls: ParkedCalls, server: bytes) -> None:
        """``server`` is who we are, as JSON."""
        self._parked_calls = parked_calls
        self._dress = ResultEnvelope(server)
        self._kept = ResultEnvelope(server, b'"ttlMs":0,"cacheScope":"private",')
        self._loop = asyncio.get_running_loop()

    async def visit(
        self, call: StatelessCall, upstream: Upstream, link: Link, route: Route
    ) -> Outcome:
        """There and back: the answer, or the questions that come before it."""
        method, params = call.method, call.params
        if method in ASKING:
            params[call.address.kind.key] = route.raw_name  # ``readdressed``, without a look-up
        elif method in OF_TASKS:
            return outcomes.failed(INVALID_PARAMS, "there is no such task", Delivery.NOT_SENT)
        else:
            readdressed(method, params, route.raw_name)
        if call.level is not None or "requestState" in params or "inputResponses" in params:
            early = await self._before(call, upstream, route, params)
            if early is not None:
                return early
        flight = new_flight(method, call, self._loop)
        if call.is_bare:  # which nearly all are
            del params["_meta"]
            flight.params = encode.dumps(params)
        else:
            flight.params = _bared(call, params, flight.wire_id)
        if call.board(flight):
            link.send(flight)
        outcome = await flight.future
        ride = call.ride
        if ride is None:
            return self._dressed(method, outcome)
        call.ride = None
        await asyncio.sleep(0)  # questions that come together are asked together
        return await self._ridden(call, route, ride, params)

    async def _before(
        self, call: StatelessCall, upstream: Upstream, route: Route, params: dict[str, Raw]
    ) -> Outcome | None:
        """What some calls need before they can be made; the outcome if that is all."""
        try:
            early = await self._taken_up(call, route, params)
        except StateError as error:
            return outcomes.failed(INVALID_PARAMS, str(error), Delivery.NOT_SENT)
        if (
            early is None
            and call.level is not None
            and upstream.log_level != LOG_LEVELS[call.level]
        ):
            # What it says below that is filtered.
            await wait_unless(call.ending, upstream.set_log_level(LOG_LEVELS[call.level]))
        return early

    async def parked(self, call: Call, route: Route) -> Outcome | None:
        """The rest of a call that was parked, whatever its server takes now; None if it was not."""
        if isinstance(call, StatelessCall):
            try:
                params = readdressed(call.method, {**call.params}, route.raw_name)
                return await self._taken_up(call, route, params)
            except StateError:
                pass  # a server of the other era knows it, or nobody
        return None

    async def _taken_up(
        self, call: StatelessCall, route: Route, params: dict[str, Raw]
    ) -> Outcome | None:
        """The rest of a call that was parked; None when it was none. Raises StateError."""
        state, answers = params.pop("requestState", None), params.pop("inputResponses", None)
        responses = {} if answers is None else _responses(answers)
        if state is None or state == NULL:
            return None
        if call.ended_by is not None:  # nobody waits: the ride stays for whoever comes back
            return call.ended_by
        ride = self._parked_calls.take(state_text(state), bearer_of(call, route, digest(params)))
        call.flight = ride.flight
        ride.answered(responses)
        return await self._ridden(call, route, ride, params)

    async def _ridden(
        self, call: StatelessCall, route: Route, ride: ParkedCall, params: dict[str, Raw]
    ) -> Outcome:
        """The end of a ride, or the questions it is parked with."""
        outcome = await ride.news(call)
        if outcome is not None:
            return self._dressed(call.method, outcome)
        call.flight = None  # it is no longer this request's
        return self._parked_calls.park(ride, bearer_of(call, route, ride.digest or digest(params)))

    def _dressed(self, method: str, outcome: Outcome) -> Outcome:
        if outcome.kind is RESULT:
            text = _join((outcome.payload,))
            dress = self._dress if method != READ else self._kept
            if has_no_envelope(text):
                return EnvelopedOutcome(RESULT, text, None, dress.ready)
            return Outcome(RESULT, envelope.to_stateless_result(text, dress))
        return _renumbered(outcome) if outcome.kind is ERROR else outcome


def _bared(call: StatelessCall, params: dict[str, Raw], wire_id: bytes) -> bytes:
    """The params as a server of the handshake era is sent them: the envelope is taken off."""
    envelope.remove_envelope(params)
    if call.progress_token is not None:
        params["_meta"] = envelope.with_progress_token(params["_meta"], wire_id)
    return encode.dumps(params)


def bearer_of(call: Call, route: Route, digest: str = "") -> TicketOwner:
    caller = call.caller
    return TicketOwner(
        caller.principal.id,
        caller.principal.role.value,
        caller.endpoint.name,
        *route.pair,
        call.method,
        digest,
    )


def state_text(state: Raw) -> str:
    found = frames.text(state)
    if found is None:
        raise StateError("requestState must be a string")
    return found


def digest(params: dict[str, Raw]) -> str:
    """Says whether a call that comes back is still the same call, however it is written."""
    text = encode.dumps({key: raw for key, raw in params.items() if key not in _OF_ROUNDS})
    try:
        text = msgspec.json.encode(msgspec.json.decode(text), order="sorted")
    except msgspec.MsgspecError:
        pass  # it holds what Python cannot, like 1e400: then it must be written as it was
    return hashlib.sha256(text).hexdigest()[:32]


def _responses(raw: Raw) -> dict[str, Raw]:
    try:
        found = frames.members(raw)
    except FrameError:
        raise StateError("inputResponses must be an object") from None
    for key, response in found.items():
        if frames.octets(response)[:1] != b"{":  # servers have been seen to wait for ever then
            raise StateError(f"inputResponses: {key[:100]!r} must be an object")
    return found


def _renumbered(outcome: Outcome) -> Outcome:
    """An address that is not there has another code in the stateless era."""
    if b"%d" % RESOURCE_NOT_FOUND not in bytes(outcome.payload):
        return outcome
    members = frames.members(outcome.payload)
    if bytes(members.get("code", b"")) != b"%d" % RESOURCE_NOT_FOUND:
        return outcome
    members["code"] = Raw(b"%d" % INVALID_PARAMS)
    return Outcome(ERROR, encode.dumps(members), outcome.delivery)
