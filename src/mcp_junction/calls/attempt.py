"""Attempt: one try of a call at its server, with what that one try needs.

A call may be tried more than once. Each Attempt has its own params (the server's own name, our
progress token) and its own flight, whose messages it hands to the call. Its timeout ends the
attempt, not the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from msgspec import Raw

from mcp_junction.calls.call import NOTHING_CARRIED, Call
from mcp_junction.calls.deadlines import IdleLimit
from mcp_junction.calls.methods import NAMED, with_name
from mcp_junction.catalog.items import Route
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol import encode, envelope
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import DONE, WIRE_IDS, Flight
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import Outcome
from mcp_junction.upstream.upstream import Upstream


class Attempt(msgspec.Struct, eq=False):
    """One try. Its flights report to it; it reports to its call."""

    call: Call
    route: Route
    flight: Flight | None = None
    deadline: float = 0.0
    idle: IdleLimit | None = None
    """Ends it when its server says nothing for too long, where that is limited."""

    @property
    def session(self) -> object:
        """The conversation that a server's message on a shared link may belong to."""
        return self.call.caller

    @property
    def principal(self) -> Principal:
        """Whose it is on a link that several share; the agent that it is made for counts."""
        call = self.call
        return call.caller.principal if call.carried is NOTHING_CARRIED else call.user

    # -- sending

    def params(self) -> dict[str, Raw]:
        """A copy of the call's params with the name that the server itself uses."""
        call = self.call
        if call.method in NAMED:  # as nearly all are
            return {**call.params, "name": self.route.raw_name}
        return with_name(call.method, call.params, self.route.raw_name)

    def fly(
        self,
        link: Link,
        params: dict[str, Raw],
        headers: bytes = b"",
        loop: asyncio.AbstractEventLoop | None = None,
        adapt: Callable[[Attempt, Outcome], Outcome] | None = None,
    ) -> asyncio.Future[Outcome]:
        """Send a request with our own progress token; the future is its end.

        ``adapt`` adapts the outcome to the client's era.
        """
        call, wire_id = self.call, b"%d" % next(WIRE_IDS)
        if call.progress_token is not None:
            params["_meta"] = envelope.with_progress_token(params["_meta"], wire_id)
        # Looking up the loop costs a system call.
        future = (loop or asyncio.get_running_loop()).create_future()
        text, target = encode.dumps(params), self.route.canonical
        flight = Flight(call.method, future, wire_id, self, text, headers, call.attempts, target)
        if adapt is not None:
            flight.adapt = adapt
        if call.ended_by is not None:
            flight.end(call.ended_by)
        else:
            self.flight = call.flight = flight
            link.send(flight)
        return flight.future

    def finish(self, outcome: Outcome) -> Outcome:
        """Return the outcome of a flight as the outcome of this attempt."""
        return outcome.counted(self.call.attempts, self.route.canonical)

    # -- its timeout

    @property
    def is_paused(self) -> bool:
        """Whether its time stands still: the client is asked, or no flight is under way."""
        return self.call.asking > 0 or self.flight is None or self.flight.state is DONE

    def expire(self, seconds: float) -> None:
        """End it because its time is over; the call may be tried again."""
        if self.flight is not None:
            late = outcomes.timed_out(self.route.pair.server, self.flight.delivery, seconds)
            self.flight.abandon(late, "timed out")

    def expire_silent(self, seconds: float) -> None:
        """End it because its server has said nothing for too long."""
        if self.flight is not None:
            silent = outcomes.fell_silent(self.route.pair.server, self.flight.delivery, seconds)
            self.flight.abandon(silent, "it said nothing")

    # -- what its flights report

    @property
    def can_replay(self) -> bool:
        return not self.call.is_retried

    def count_replay(self) -> None:
        self.call.attempts += 1
        if self.flight is not None:
            self.flight.attempts = self.call.attempts

    def progress(self, params: dict[str, Raw]) -> None:
        if self.idle is not None:
            self.idle.restart()
        self.call.progress(params)

    def log(self, params: Raw) -> None:
        if self.idle is not None:
            self.idle.restart()
        self.call.log(params)

    def ask(self, method: str, params: Raw) -> Awaitable[Outcome]:
        return self.call.ask(method, params)


def timeout_of(call: Call, route: Route) -> float:
    """Return the seconds that one attempt may take: the tool's, its server's, or the front's."""
    facts = call.facts
    return (route.timeout if facts is None else facts.timeout) or call.attempt_timeout


class Adapter(Protocol):
    """Takes attempts from clients of one era to servers of one era, and their answers back."""

    @property
    def attempt(self) -> type[Attempt]:
        """The kind of Attempt that it takes."""
        ...

    def send(self, attempt: Attempt, upstream: Upstream, link: Link) -> Awaitable[Outcome]: ...


Chosen = tuple[Adapter, Upstream, Link]


class LinkChoice(Protocol):
    """Chooses the link of a call to its server, and the adapter between the two eras."""

    def adapter_for(self, call: Call, upstream: Upstream, link: Link) -> Adapter | None:
        """The adapter for a server's own link; None where the call may have to take another."""
        ...

    async def choose(self, call: Call, route: Route) -> Chosen | Outcome:
        """Wait for a link where that makes sense, and choose; or say why there is none."""
        ...
