"""Crossing: how a call gets to a server where that takes more than handing it to the link.

It finds the link (a session's own, one of the client's era, one with the client's capabilities) and
then one of three ways: the same era on both sides, and the call passes as it is; a stateless client
before a handshake server, whose call is parked while the client is asked; or a handshake client
before a stateless server, whose questions are put to the client before it is called again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from msgspec import Raw

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import ASKING, OF_TASKS, readdressed
from mcp_junction.calls.stateless_call import StatelessCall
from mcp_junction.calls.visiting import NULL, Visiting, bearer_of, digest, state_text
from mcp_junction.catalog.routes import Route
from mcp_junction.eras.parked import ParkedCalls
from mcp_junction.eras.rounds import fulfilled
from mcp_junction.eras.tickets import Ticket
from mcp_junction.errors import StateError
from mcp_junction.protocol import encode, envelope, frames, param_headers
from mcp_junction.protocol.envelope import COMPLETE
from mcp_junction.protocol.versions import (
    HANDSHAKE,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    STATELESS,
)
from mcp_junction.tasks import wait_unless
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import RESULT, SUSPENDED, Delivery, Outcome
from mcp_junction.upstream.server import Upstream

REPEATED: Final = ASKING | OF_TASKS
"""The methods whose target is repeated in a header."""
SUBSCRIBING: Final = {"resources/subscribe", "resources/unsubscribe"}

_MAX_ROUNDS: Final = 32
_VERDICT_WAIT: Final = 5.0
_OBJECT: Final = ord("{")


async def fly(call: Call, link: Link, route: Route) -> Outcome:
    """One flight in the handshake era, which is that of both sides."""
    flight = new_flight(call.method, call)
    flight.params = params_of(call, route, flight.wire_id)
    if call.board(flight):
        link.send(flight)
    return await flight.future


def params_of(call: Call, route: Route, wire_id: bytes) -> bytes:
    """The params as the server is sent them."""
    params = readdressed(call.method, call.params, route.raw_name)
    meta = params.get("_meta")
    if meta is not None and memoryview(meta)[0] == _OBJECT:
        token = envelope.valid_progress_token(frames.members(meta).get("progressToken"))
        if token is not None:
            call.progress_token = token
            params["_meta"] = envelope.with_progress_token(meta, wire_id)
    return encode.dumps(params)


async def _link_for(call: Call, upstream: Upstream, limit: float) -> Link | None:
    """The link of a server, waited for where that makes sense and no longer than the call lasts."""
    if upstream.link is None:
        await wait_unless(call.ending, upstream.wait_for_link(limit))
    return upstream.link if call.ended_by is None else None


async def _verdict(call: Call, server: Upstream) -> None:
    """Wait until it is known whether a server speaks the caller's era, but not for long."""
    try:
        asked = asyncio.wait_for(server.for_era(call.caller.era), _VERDICT_WAIT)
        await wait_unless(call.ending, asked)
    except TimeoutError:
        pass


class Crossing:
    """The ways that are not the plain one."""

    def __init__(self, parked_calls: ParkedCalls, name: str, version: str) -> None:
        self._parked_calls = parked_calls
        self.seal = parked_calls.seal
        self._visiting = Visiting(parked_calls, encode.dumps({"name": name, "version": version}))
        self._loop = asyncio.get_running_loop()

    def cross(self, call: Call, route: Route) -> Awaitable[Outcome]:
        """Find the way, and take it."""
        upstream = route.upstream
        link: Link | None = upstream.link
        known = upstream.definition
        # There is but one way to a server that all share, unless it is told what its client can do.
        if (
            link is not None
            and call.caller.era in upstream.refused_eras
            and known.isolation == "shared"
        ):
            if link.era is STATELESS:
                if call.method not in SUBSCRIBING:
                    return self._in_rounds(call, upstream, link, route)
            elif known.transport == "stdio" and isinstance(call, StatelessCall):
                return self._visiting.visit(call, upstream, link, route)
        return self._found(call, route)

    def _way(self, call: Call, upstream: Upstream, link: Link, route: Route) -> Awaitable[Outcome]:
        """From the era of the client to that of the server."""
        if link.era is call.caller.era:
            way = fly if link.era is HANDSHAKE else self.stateless
            return way(call, link, route)
        if link.era is STATELESS:
            return self._in_rounds(call, upstream, link, route)
        assert isinstance(call, StatelessCall)
        return self._visiting.visit(call, upstream, link, route)

    async def _found(self, call: Call, route: Route) -> Outcome:
        """By whichever link to the server this call has to take, once there is one."""
        if "requestState" in call.params:  # what is parked has its link
            parked = await self._visiting.parked(call, route)
            if parked is not None:
                return parked
        if route.upstream.is_shut:
            return route.upstream.unavailable()
        alone = route.upstream.is_isolated and call.caller.era is HANDSHAKE
        if call.method in SUBSCRIBING and not alone:
            return await _subscribed(call, route)
        upstream = route.upstream
        if upstream.link is None and call.caller.era is STATELESS:
            await _link_for(call, upstream, route.timeout)  # it tells of which era it is by now
            if upstream.link is None:
                return call.ended_by or upstream.unavailable()
        upstream = await self._upstream(call, upstream)
        link = await _link_for(call, upstream, route.timeout)
        if link is None:
            return call.ended_by or upstream.unavailable()
        return await self._way(call, upstream, link, route)

    async def _upstream(self, call: Call, server: Upstream) -> Upstream:
        """The server as this caller reaches it: in the caller's own era, if it speaks that."""
        caller = call.caller
        if server.link is not None and server.link.era is not caller.era:
            if server.speaks(caller.era) is None:
                await _verdict(call, server)
            if server.speaks(caller.era):
                server = await server.for_era(caller.era) or server
        if caller.era is HANDSHAKE:
            return server.for_session(caller, caller.hello)
        if server.link is not None and server.link.era is STATELESS:
            return server
        return self._for_stateless(call, server)

    @staticmethod
    def _for_stateless(call: Call, server: Upstream) -> Upstream:
        """A handshake server for a stateless client: one that was told what this client can do.

        A conversation over HTTP costs little. A process is shared, and says it can be asked all.
        """
        if server.definition.transport == "stdio" and not server.is_isolated:
            return server
        caller = call.caller
        hello = caller.hello()
        alone = (caller.endpoint.name, hello.client) if server.is_isolated else None
        return (
            server.extra_links.pooled((caller.principal, hello.capabilities, alone), hello)
            or server
        )

    # -- stateless on both sides

    async def stateless(self, call: Call, link: Link, route: Route) -> Outcome:
        """As it is. Only the server's state is sealed: it is good for this call alone, and once."""
        method, params, ticket = call.method, call.params, None
        if method in ASKING:
            params[call.address.kind.key] = route.raw_name  # ``readdressed``, without a look-up
        elif method in SUBSCRIBING:  # who listens is a caller, too
            return await _subscribed(call, route)
        else:
            readdressed(method, params, route.raw_name)
        if "requestState" in params:  # hardly a call comes back
            try:
                ticket = self._used(call, route)
            except StateError as error:
                parked = await self._visiting.parked(call, route)  # where it was of the other era
                return parked or outcomes.failed(INVALID_PARAMS, str(error), Delivery.NOT_SENT)
        outcome = await self._sent(call, link, route, params)
        if outcome.kind is RESULT:
            return self._answered(call, route, outcome)
        if ticket is not None and outcome.delivery in (None, Delivery.NOT_SENT):
            self._parked_calls.unused(ticket)  # it was refused, or never came there
        return outcome

    def _answered(self, call: Call, route: Route, outcome: Outcome) -> Outcome:
        """A result as the client is given it: what is not the end of it is sealed."""
        if call.method not in ASKING:
            return _of_task(call, outcome) if call.method in OF_TASKS else outcome
        kind = envelope.result_type(outcome.payload)
        if kind == COMPLETE:
            return outcome
        if kind == envelope.INPUT_REQUIRED:
            return self._sealed(call, route, outcome)
        return self._begun(call, route, outcome) if kind == envelope.TASK else outcome

    def _used(self, call: Call, route: Route) -> Ticket | None:
        """The ticket that a call comes back with, and the server's own state in its place.

        Raises StateError when it is not this call's.
        """
        params = call.params
        state = params["requestState"]
        if state == NULL:
            del params["requestState"]
            return None
        ticket = self._parked_calls.use(state_text(state), bearer_of(call, route, digest(params)))
        params["requestState"] = Raw(encode.dumps(ticket.inner))
        return ticket

    def _sent(
        self, call: Call, link: Link, route: Route, params: dict[str, Raw]
    ) -> asyncio.Future[Outcome]:
        """Send a stateless server a request; what is returned is its end."""
        flight = new_flight(call.method, call, self._loop)
        if call.progress_token is not None:
            params["_meta"] = envelope.with_progress_token(params["_meta"], flight.wire_id)
        flight.params = encode.dumps(params)
        if route.upstream.definition.transport == "http":
            flight.headers = _headers(call, route)
        if call.board(flight):
            link.send(flight)
        return flight.future

    def _begun(self, call: Call, route: Route, outcome: Outcome) -> Outcome:
        """The server goes on with it as a task: its id is given out sealed."""
        found = frames.members(outcome.payload)
        task = frames.text(found.get("taskId"))
        if task is None:
            return outcome
        caller = call.caller
        sealed = self.seal.sealed_task(
            task, route.pair.server, caller.principal, caller.endpoint.name
        )
        found["taskId"] = Raw(encode.dumps(sealed))
        return outcomes.result(encode.dumps(found))

    def _sealed(self, call: Call, route: Route, outcome: Outcome) -> Outcome:
        found = frames.members(outcome.payload)
        state = found.get("requestState")
        if state is None:
            return Outcome(SUSPENDED, outcome.payload)
        if state == NULL:
            del found["requestState"]
            return Outcome(SUSPENDED, encode.dumps(found))
        try:
            bearer, text = bearer_of(call, route, digest(call.params)), state_text(state)
        except StateError as error:
            why = f"server {route.pair.server!r}: {error}"
            return outcomes.failed(INTERNAL_ERROR, why, Delivery.EXECUTED, server=route.pair.server)
        sealed = self._parked_calls.keep(bearer, text)
        found["requestState"] = Raw(encode.dumps(sealed))
        return Outcome(SUSPENDED, encode.dumps(found))

    # -- a handshake client before a stateless server

    async def _in_rounds(self, call: Call, upstream: Upstream, link: Link, route: Route) -> Outcome:
        params = readdressed(call.method, call.params, route.raw_name)
        own, said = params.get("_meta"), call.caller.envelope
        if own is not None:
            call.progress_token = envelope.valid_progress_token(
                frames.object_members(own).get("progressToken")
            )
            said = envelope.merge_meta(own, said)
        params["_meta"] = said
        for _ in range(_MAX_ROUNDS):
            outcome = await self._sent(call, link, route, params)
            if outcome.kind is not RESULT:
                return outcome
            if envelope.result_type(outcome.payload) != envelope.INPUT_REQUIRED:
                return Outcome(RESULT, envelope.to_handshake_result(outcome.payload))
            found = frames.object_members(outcome.payload)
            answers = await fulfilled(found.get("inputRequests"), call.ask, call.ending)
            if (ended := call.ended_by) is not None:
                return ended
            assert answers is not None, "only what is ended is given up"
            if isinstance(answers, Outcome):
                return answers
            again = await _link_again(call, upstream, link, route.timeout)
            if again is None:
                why = "it went while the client was asked"
                return call.ended_by or outcomes.link_lost(upstream.key, Delivery.UNKNOWN, why)
            link = again
            params["inputResponses"] = Raw(encode.dumps(answers))
            params.pop("requestState", None)
            if "requestState" in found:
                params["requestState"] = found["requestState"]
        return outcomes.failed(
            INVALID_PARAMS, f"the server asked {_MAX_ROUNDS} times in a row", Delivery.UNKNOWN
        )


async def _link_again(call: Call, server: Upstream, link: Link, limit: float) -> Link | None:
    """The link to go on by after a question: any of its era, for the server's state is with us."""
    if server.current is link:
        return link
    again = await _link_for(call, server, limit)
    return again if again is not None and again.era is STATELESS else None


def _of_task(call: Call, outcome: Outcome) -> Outcome:
    """What is said of a task, under the id that the client knows it by."""
    found = frames.members(outcome.payload)
    if "taskId" not in found:
        return outcome
    found["taskId"] = Raw(encode.dumps(call.name))
    return outcomes.result(encode.dumps(found))


async def _subscribed(call: Call, route: Route) -> Outcome:
    """Subscriptions are the server's own link's, whoever wants them."""
    upstream = route.upstream
    link = await upstream.wait_for_link(route.timeout)
    if link is None:
        return call.ended_by or upstream.unavailable()
    link.users.note(call.caller.principal)
    change = upstream.subscribe if call.method == "resources/subscribe" else upstream.unsubscribe
    return await change(route.pair.name)


def _headers(call: Call, route: Route) -> bytes:
    """What a stateless server over HTTP wants repeated in headers."""
    if call.method not in REPEATED:
        return b""
    if not route.headers:
        return route.name_header
    arguments = call.params.get("arguments") or b"{}"
    return route.name_header + param_headers.header_lines(route.headers, arguments)
