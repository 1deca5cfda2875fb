"""Call: one routed request of any kind, from its acceptance to its one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

import msgspec
from msgspec import Raw

from mcp_junction.calls.methods import Address
from mcp_junction.calls.snapshot import Snapshot
from mcp_junction.catalog.endpoints import Endpoint
from mcp_junction.catalog.kinds import TOOLS
from mcp_junction.catalog.routes import Route
from mcp_junction.catalog.scope import Scope
from mcp_junction.policy.principal import Principal
from mcp_junction.policy.quotas import QuotaUsage
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import Spelling
from mcp_junction.protocol.versions import LOG_MESSAGE, SERVER_UNAVAILABLE, Era
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.hello import Hello
from mcp_junction.upstream.outcome import Delivery, Outcome


class Wire(Protocol):
    """The way back to the client for what belongs to one call."""

    def send(self, frame: bytes) -> None: ...

    def offer(self, frame: bytes) -> None: ...


class Caller(Wire, Protocol):
    """What a call needs of the session it belongs to. A session is a wire too."""

    era: Era
    principal: Principal
    spelling: Spelling
    endpoint: Endpoint
    usage: QuotaUsage
    """What its principal uses of its quota."""

    def ask(self, method: str, params: Raw, wire: Wire) -> Awaitable[Outcome]: ...

    def wants_log(self, params: Raw) -> bool: ...

    @property
    def scope(self) -> Scope:
        """What it may see, by the policy as it is now."""
        ...

    @property
    def questions(self) -> frozenset[str]:
        """What it can be asked."""
        ...

    @property
    def envelope(self) -> Raw:
        """What a stateless server is told of it with each request."""
        ...

    def hello(self) -> Hello: ...


class Call(msgspec.Struct, eq=False):
    """One routed request. Holds the snapshot it started with, whatever changes meanwhile."""

    caller: Caller
    snapshot: Snapshot
    method: str
    address: Address
    params: dict[str, Raw]
    wire: Wire
    progress_token: Raw | None = None
    route: Route | None = None
    flight: Flight | None = None
    deadline: float | None = None
    intent: str | None = None
    """The row of the audit that said, before it was sent, that it would be."""
    denial: str | None = None
    """Why the policy refused it, if it did."""
    spoke: bool = False
    asking: int = 0
    ended_by: Outcome | None = None
    """How it was ended from our side, if it was."""
    _ending: asyncio.Event | None = None

    @property
    def name(self) -> str:
        """The name or address the caller used."""
        return self.address.name

    @property
    def session(self) -> object:
        return self.caller

    @property
    def principal(self) -> Principal:
        return self.caller.principal

    # -- downward: ending it from our side

    def board(self, flight: Flight) -> bool:
        """Put the call on a flight; False when it has been ended meanwhile."""
        if self.ended_by is not None:
            flight.end(self.ended_by)
            return False
        self.flight = flight
        return True

    def cancel(self, reason: str) -> None:
        """The caller no longer wants it."""
        self._end(outcomes.cancelled(reason, self._delivery), reason)

    def expire(self, seconds: float) -> None:
        """Its time is over."""
        server = self.route.pair.server if self.route is not None else ""
        self._end(outcomes.timed_out(server, self._delivery, seconds), "timed out")

    def drop(self, reason: str) -> None:
        """We can no longer wait for it; unlike a cancelled call it is answered."""
        self._end(outcomes.failed(SERVER_UNAVAILABLE, reason, self._delivery), reason)

    @property
    def ending(self) -> asyncio.Event:
        """Set when it is ended from our side; for what is waited for before it is sent."""
        if self._ending is None:
            self._ending = asyncio.Event()
            if self.ended_by is not None:
                self._ending.set()
        return self._ending

    @property
    def _delivery(self) -> Delivery:
        return self.flight.delivery if self.flight is not None else Delivery.NOT_SENT

    def _end(self, outcome: Outcome, reason: str) -> None:
        if self.ended_by is None:
            self.ended_by = outcome
            if self._ending is not None:
                self._ending.set()
            if self.flight is not None:
                self.flight.abandon(outcome, reason)

    # -- upward: what the server says before it answers

    def progress(self, params: dict[str, Raw]) -> None:
        if self.progress_token is not None and self.ended_by is None:
            params["progressToken"] = self.progress_token
            self._tell("notifications/progress", encode.dumps(params))

    def log(self, params: Raw) -> None:
        if self.ended_by is None and self.wants_log(params):
            self._tell(LOG_MESSAGE, params)

    def wants_log(self, params: Raw) -> bool:
        return self.caller.wants_log(params)

    def _tell(self, method: str, params: Raw | bytes) -> None:
        self.spoke = True
        self.wire.offer(encode.notification(method, params))

    async def ask(self, method: str, params: Raw) -> Outcome:
        """Ask the client on the server's behalf. The deadline stands still meanwhile."""
        self.spoke = True
        self.asking += 1
        try:
            return await self.caller.ask(method, params, self.wire)
        finally:
            self.asking -= 1


def tool_call(caller: Caller, snapshot: Snapshot, name: str, params: dict[str, Raw]) -> Call:
    """A call of a tool whose caller has no other wire than its own."""
    return Call(caller, snapshot, "tools/call", Address(TOOLS, name), params, caller)
