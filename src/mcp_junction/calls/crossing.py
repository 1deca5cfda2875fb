"""Crossing: how a call gets to a server where that takes more than handing it to the link.

It finds the link (a session's own, one of the client's era, one with the client's capabilities) and
then one of three ways: the same era on both sides, and the call passes as it is; a stateless client
before a handshake server, whose call is parked while the client is asked; or a handshake client
before a stateless server, whose questions are put to the client before it is called again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import readdressed
from mcp_junction.catalog.routes import Route
from mcp_junction.eras.lot import Lot
from mcp_junction.eras.ride import Ride
from mcp_junction.eras.rounds import fulfilled
from mcp_junction.eras.seal import Bearer, Ticket
from mcp_junction.errors import FrameError, StateError
from mcp_junction.protocol import encode, envelope, frames, param_headers
from mcp_junction.protocol.versions import (
    INVALID_PARAMS,
    LOG_LEVELS,
    RESOURCE_NOT_FOUND,
    Era,
)
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.hello import QUESTIONS
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import Delivery, Kind, Outcome
from mcp_junction.upstream.server import Upstream

ASKING: Final = frozenset(("tools/call", "prompts/get", "resources/read"))
"""The methods whose answer may be a question."""
SUBSCRIBING: Final = {"resources/subscribe", "resources/unsubscribe"}

_MAX_ROUNDS: Final = 32
_OBJECT: Final = ord("{")
_KEPT: Final = b'"ttlMs":0,"cacheScope":"private",'


async def fly(call: Call, link: Link, route: Route, loop: asyncio.AbstractEventLoop) -> Outcome:
    """One flight, in the era of both sides."""
    flight = Flight(call.method, call, loop)
    flight.params = _params(call, route, flight.wire_id)
    if call.board(flight):
        link.send(flight)
    return await flight.future


def _params(call: Call, route: Route, wire_id: bytes) -> bytes:
    params = readdressed(call.method, call.params, route.raw_name)
    meta = params.get("_meta")
    if meta is not None and memoryview(meta)[0] == _OBJECT:
        members = frames.members(meta)
        token = members.get("progressToken")
        if token is not None:
            call.progress_token = token
            params["_meta"] = Raw(encode.dumps({**members, "progressToken": Raw(wire_id)}))
    return encode.dumps(params)


class Crossing:
    """The ways that are not the plain one."""

    def __init__(self, lot: Lot, server_info: bytes) -> None:
        self._lot = lot
        self._server_info = server_info
        self._loop = asyncio.get_running_loop()

    async def __call__(self, call: Call, route: Route) -> Outcome:
        upstream = await self._upstream(call, route)
        link = await upstream.link_in_time(route.timeout)
        if link is None:
            return call.ended_by or upstream.unavailable()
        era = call.caller.era
        try:
            if call.method in SUBSCRIBING and link.era is Era.STATELESS:
                return await self._subscribed(call, route, upstream)
            if link.era is era:
                way = self._stateless if era is Era.STATELESS else self._plain
            elif era is Era.STATELESS:
                way = self._parked
            else:
                way = self._in_rounds
            return await way(call, link, route)
        except StateError as error:
            return outcomes.failed(INVALID_PARAMS, str(error), Delivery.NOT_SENT)

    async def _upstream(self, call: Call, route: Route) -> Upstream:
        """The server as this caller reaches it."""
        return route.upstream.for_session(call.caller, call.caller.hello)

    async def _subscribed(self, call: Call, route: Route, upstream: Upstream) -> Outcome:
        raise NotImplementedError

    async def _plain(self, call: Call, link: Link, route: Route) -> Outcome:
        return await fly(call, link, route, self._loop)

    # -- stateless on both sides

    async def _stateless(self, call: Call, link: Link, route: Route) -> Outcome:
        """As it is. Only the server's state is sealed, so that it is good for this caller alone."""
        flight = Flight(call.method, call, self._loop)
        params = readdressed(call.method, call.params, route.raw_name)
        if call.progress_token is not None:
            members = frames.members(params["_meta"])
            params["_meta"] = Raw(encode.dumps({**members, "progressToken": Raw(flight.wire_id)}))
        state = params.get("requestState")
        if state is not None:
            ticket = self._lot.seal.open(_text(state), _bearer(call, route))
            params["requestState"] = Raw(encode.dumps(ticket.inner))
        flight.params = encode.dumps(params)
        flight.headers = _headers(call, route)
        if call.board(flight):
            link.send(flight)
        outcome = await flight.future
        if outcome.kind is not Kind.RESULT or call.method not in ASKING:
            return outcome
        if envelope.result_type(outcome.payload) != envelope.INPUT_REQUIRED:
            return outcome
        return self._sealed(call, route, outcome)

    def _sealed(self, call: Call, route: Route, outcome: Outcome) -> Outcome:
        found = frames.members(outcome.payload)
        state = found.get("requestState")
        if state is None:
            return Outcome(Kind.SUSPENDED, outcome.payload)
        ticket = Ticket(_bearer(call, route), inner=_text(state))
        found["requestState"] = Raw(encode.dumps(self._lot.seal.close(ticket)))
        return Outcome(Kind.SUSPENDED, encode.dumps(found))

    # -- a stateless client before a handshake server

    async def _parked(self, call: Call, link: Link, route: Route) -> Outcome:
        bearer = _bearer(call, route)
        responses = frames.members(call.params.pop("inputResponses", b""))
        state = call.params.pop("requestState", None)
        if state is None:
            ride = await self._boarded(call, link, route, bearer)
        else:
            ride = self._lot.take(_text(state), bearer)
            assert ride.flight is not None
            call.flight = ride.flight
            ride.answered(responses)
        outcome = await ride.news(call)
        if outcome is None:
            call.flight = None  # it is no longer this request's
            return self._lot.park(ride)
        return self._dressed(call, outcome)

    async def _boarded(self, call: Call, link: Link, route: Route, bearer: Bearer) -> Ride:
        """The call on its flight, with its envelope taken off."""
        await self._level(call, route)
        caller = call.caller
        ride = Ride(bearer, caller, _questions(caller.hello().capabilities))
        ride.flight = flight = Flight(call.method, ride, self._loop)
        params = readdressed(call.method, call.params, route.raw_name)
        envelope.opened(params)
        if call.progress_token is not None:
            meta = frames.members(params["_meta"])
            params["_meta"] = Raw(encode.dumps({**meta, "progressToken": Raw(flight.wire_id)}))
        flight.params = encode.dumps(params)
        if call.board(flight):
            link.send(flight)
        return ride

    async def _level(self, call: Call, route: Route) -> None:
        """Have the server say as much as this call wants to hear; the rest is filtered."""
        if call.level is not None:
            await route.upstream.at_level(LOG_LEVELS[call.level])

    def _dressed(self, call: Call, outcome: Outcome) -> Outcome:
        if outcome.kind is Kind.ERROR:
            return _renumbered(outcome)
        if outcome.kind is not Kind.RESULT:
            return outcome
        cache = _KEPT if call.method == "resources/read" else b""
        try:
            dressed = envelope.dressed(outcome.payload, self._server_info, cache)
        except FrameError:
            return outcome  # no object: it cannot be dressed, and is the server's own fault
        return Outcome(Kind.RESULT, dressed)

    # -- a handshake client before a stateless server

    async def _in_rounds(self, call: Call, link: Link, route: Route) -> Outcome:
        hello = call.caller.hello()
        params = readdressed(call.method, call.params, route.raw_name)
        token = frames.members(params.get("_meta") or b"").get("progressToken")
        said = envelope.meta(hello.client, hello.capabilities, call.caller.log_name)
        for _ in range(_MAX_ROUNDS):
            flight = Flight(call.method, call, self._loop)
            if token is not None:
                call.progress_token = token
                said["progressToken"] = Raw(flight.wire_id)
            envelope.sealed(params, said)
            flight.params = encode.dumps(params)
            flight.headers = _headers(call, route)
            if call.board(flight):
                link.send(flight)
            outcome = await flight.future
            if outcome.kind is not Kind.RESULT:
                return outcome
            found = frames.members(outcome.payload)
            if frames.text(found.get("resultType")) != envelope.INPUT_REQUIRED:
                return outcomes.result(envelope.undressed(found))
            answers = await fulfilled(found.get("inputRequests"), call.ask)
            if isinstance(answers, Outcome):
                return call.ended_by or answers
            params["inputResponses"] = Raw(encode.dumps(answers))
            params.pop("requestState", None)
            if "requestState" in found:
                params["requestState"] = found["requestState"]
        return outcomes.failed(
            INVALID_PARAMS, f"the server asked {_MAX_ROUNDS} times in a row", Delivery.UNKNOWN
        )


def _bearer(call: Call, route: Route) -> Bearer:
    caller = call.caller
    return Bearer(
        caller.principal.id,
        caller.principal.role.value,
        caller.endpoint.name,
        *route.pair,
        call.method,
    )


def _headers(call: Call, route: Route) -> bytes:
    """What a stateless server over HTTP wants repeated in headers."""
    if call.method not in ASKING:
        return b""
    if not route.headers:
        return route.name_header
    arguments = call.params.get("arguments") or b"{}"
    return route.name_header + param_headers.headers_for(route.headers, arguments)


def _questions(capabilities: bytes) -> frozenset[str]:
    """The methods a client with these capabilities can be asked by."""
    declared = frames.members(capabilities)
    return frozenset(method for method, needed in QUESTIONS.items() if needed in declared)


def _text(state: Raw) -> str:
    found = frames.text(state)
    if found is None:
        raise StateError("requestState must be a string")
    return found


def _renumbered(outcome: Outcome) -> Outcome:
    """An address that is not there has another code in the stateless era."""
    if b"%d" % RESOURCE_NOT_FOUND not in bytes(outcome.payload):
        return outcome
    members = frames.members(outcome.payload)
    if bytes(members.get("code", b"")) != b"%d" % RESOURCE_NOT_FOUND:
        return outcome
    members["code"] = Raw(b"%d" % INVALID_PARAMS)
    return Outcome(Kind.ERROR, encode.dumps(members), outcome.delivery)
