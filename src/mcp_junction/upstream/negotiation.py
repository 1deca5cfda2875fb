"""Negotiation: finds out which era a server speaks, and greets it.

ServerQuirks remembers, over a server's connections, how it wants to be greeted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import msgspec

from mcp_junction.errors import FrameError
from mcp_junction.protocol import encode
from mcp_junction.protocol.versions import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LATEST_STATELESS,
    METHOD_NOT_FOUND,
    STATELESS_VERSIONS,
    UNSUPPORTED_VERSION,
    Era,
)
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.connect_policy import ConnectPolicy
from mcp_junction.upstream.flight import Flight, new_flight
from mcp_junction.upstream.hello import Greeting, Hello, own_meta, read_discovery, read_greeting
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind


class ServerQuirks:
    """What is kept of one server from life to life."""

    def __init__(self, transport: str, like: ServerQuirks | None = None) -> None:
        self.refused: frozenset[Era] = frozenset()
        """The eras that it refused in this life."""
        self.is_older_transport: bool = like is not None and like.is_older_transport
        """Whether it refused the newer HTTP transport as a server of the older one does."""
        self._transport = transport
        self._asked_older = False
        self._is_probing = False
        self._is_wary: bool = like is not None and like._is_wary

    async def greet(
        self, link: Link, hello: Hello, terms: ConnectPolicy
    ) -> Greeting | GreetingRefusal:
        """Be greeted on a link that has just been opened, and remember how."""
        first, alone = self._first(hello)
        if hello.only and first is not hello.prefers:
            return GreetingRefusal("its transport is older than the stateless era", of_era=True)
        self._is_probing = first is Era.STATELESS and not alone
        talk = Negotiation(link, hello, terms.name, terms.version, terms.start_timeout)
        greeting = await talk.greet(first, alone=alone)
        self.is_older_transport = talk.is_older_transport
        if link.closed.done():
            of_era = alone and first is Era.STATELESS and self._transport == "stdio"
            return GreetingRefusal("it exits on server/discover", of_era=of_era)
        self._is_probing = False
        if isinstance(greeting, Greeting):
            self._is_wary = talk.was_silent and greeting.era is Era.HANDSHAKE
            is_too_old = alone and not hello.only
            self.refused = frozenset({Era.STATELESS} if is_too_old else talk.refused)
            await link.begin_session(greeting.protocol_version)
            talk.tidy()
        return greeting

    def _first(self, hello: Hello) -> tuple[Era, bool]:
        """The era to address it in first, and whether there is no other."""
        if self.is_older_transport or self._transport == "sse":
            return Era.HANDSHAKE, True
        if hello.only:
            return hello.prefers, True
        return (Era.HANDSHAKE if self._is_wary else hello.prefers), False

    def try_otherwise(self) -> bool:
        """Whether to begin again at once, in another way, before it counts as a failure.

        Some servers exit when they are first asked something other than initialize; one that
        refused the newer HTTP transport may speak the older one.
        """
        if self._is_probing and self._transport == "stdio":
            self._is_probing, self._is_wary = False, True
            return True
        if self._asked_older or self._transport != "http":
            return False
        self._asked_older = self.is_older_transport
        return self._asked_older


PROBE_TIME: Final = 3.0
_REFUSALS: Final = (UNSUPPORTED_VERSION, METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS)


class GreetingRefusal(msgspec.Struct, frozen=True):
    """A server that did not greet us: in words, and whether that says something of its era."""

    words: str
    of_era: bool


class _VersionData(msgspec.Struct):
    supported: list[str] = []


class _VersionError(msgspec.Struct):
    data: _VersionData


class Negotiation:
    """One attempt to be greeted, on one link."""

    def __init__(self, link: Link, hello: Hello, name: str, version: str, patience: float) -> None:
        self.is_older_transport = False
        self.refused: set[Era] = set()
        """The eras in which it did not greet us, though it could have."""
        self.was_silent = False
        self._link = link
        self._hello = hello
        self._name, self._version = name, version
        self._patience = patience
        self._until = asyncio.get_running_loop().time() + patience
        self._alone = False
        self._probe: Flight | None = None

    async def greet(self, first: Era, *, alone: bool = False) -> Greeting | GreetingRefusal:
        """Be greeted in one era or else in the other; ``alone``: not in the other."""
        self._alone = alone
        greeting = await self._in(first)
        if isinstance(greeting, Greeting):
            return greeting
        if alone or not greeting.of_era or self._link.closed.done():
            return greeting
        self.refused.add(first)
        other = Era.HANDSHAKE if first is Era.STATELESS else Era.STATELESS
        second = await self._in(other)
        if isinstance(second, Greeting):
            self.refused.discard(second.era)
            return second
        return second if other is Era.HANDSHAKE else greeting

    def tidy(self) -> None:
        """It has greeted us, and the conversation is open: what it did not answer is given up."""
        if self._probe is not None and not self._probe.future.done():
            why = "the server answered initialize"
            self._probe.abandon(outcomes.cancelled(why, self._probe.delivery), why)

    def _in(self, era: Era) -> Awaitable[Greeting | GreetingRefusal]:
        return self._discover() if era is Era.STATELESS else self._initialize()

    # -- the stateless era

    async def _discover(self) -> Greeting | GreetingRefusal:
        version = LATEST_STATELESS
        self._probe = self._ask_discover(version)
        outcome = await self._outcome(self._probe, self._patience if self._alone else PROBE_TIME)
        if outcome is None:
            self.was_silent = True
            return GreetingRefusal("no answer to server/discover", of_era=True)
        shared = _supported(outcome)
        if shared:
            self._probe = self._ask_discover(shared[-1])
            outcome = await self._outcome(self._probe, self._patience) or outcome
        self._probe = None
        return _discovered(outcome)

    def _ask_discover(self, version: str) -> Flight:
        meta = own_meta(self._name, self._version, version)
        flight = new_flight("server/discover")
        flight.params = encode.dumps({"_meta": meta})
        flight.headers = b"mcp-protocol-version: %b\r\nmcp-method: server/discover\r\n" % (
            version.encode()
        )
        self._link.send(flight)
        return flight

    # -- the handshake era

    async def _initialize(self) -> Greeting | GreetingRefusal:
        flight = new_flight("initialize")
        flight.params = self._hello.params(self._name, self._version)
        self._link.send(flight)
        late = await self._answer_to_probe(flight)
        if late is not None:
            return late
        outcome = await self._outcome(flight, self._patience)
        self.is_older_transport = self._link.is_older_transport
        if outcome is None:
            slow = outcomes.timed_out(self._link.server, Delivery.UNKNOWN, self._patience)
            return GreetingRefusal(f"initialize: {slow.message}", of_era=False)
        if outcome.kind is OutcomeKind.RESULT:
            return _greeted(outcome)
        return await self._after_refusal(outcome)

    async def _after_refusal(self, outcome: Outcome) -> Greeting | GreetingRefusal:
        """The handshake was refused: a server that was slow to start may yet say why."""
        if self._probe is not None:
            said = await self._outcome(self._probe, PROBE_TIME)
            self._probe = None
            if said is not None and isinstance(greeting := _discovered(said), Greeting):
                return greeting
        if _supported(outcome) and Era.STATELESS in self.refused:
            return await self._discover()
        return GreetingRefusal(
            f"initialize: {outcome.message}", of_era=_is_refusal(outcome, self._link)
        )

    async def _answer_to_probe(self, flight: Flight) -> Greeting | None:
        """What a server that was only slow says to the first question, if it says it first."""
        if self._probe is None:
            return None
        probe = self._probe
        either: set[asyncio.Future[Any]] = {probe.future, flight.future, self._link.closed}
        await asyncio.wait(either, timeout=self._left, return_when=asyncio.FIRST_COMPLETED)
        if not probe.future.done():
            return None
        self._probe = None
        greeting = _discovered(probe.future.result())
        return greeting if isinstance(greeting, Greeting) else None

    # -- waiting

    @property
    def _left(self) -> float:
        return max(0.0, self._until - asyncio.get_running_loop().time())

    async def _outcome(self, flight: Flight, timeout: float) -> Outcome | None:
        """How a request ended; None when it has not, in time or because the link did."""
        either: set[asyncio.Future[Any]] = {flight.future, self._link.closed}
        left = min(timeout, self._left)
        await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return flight.future.result() if flight.future.done() else None


def _discovered(outcome: Outcome) -> Greeting | GreetingRefusal:
    if outcome.kind is not OutcomeKind.RESULT:
        outage = outcome.delivery is Delivery.NOT_SENT
        return GreetingRefusal(f"server/discover: {outcome.message}", of_era=not outage)
    try:
        greeting = read_discovery(outcome.payload)
    except (ValueError, FrameError, msgspec.MsgspecError) as error:
        return GreetingRefusal(f"server/discover: {error}", of_era=True)
    return greeting or GreetingRefusal("server/discover: it shares no version with us", of_era=True)


def _greeted(outcome: Outcome) -> Greeting | GreetingRefusal:
    try:
        return read_greeting(outcome.payload)
    except (ValueError, FrameError, msgspec.MsgspecError) as error:
        return GreetingRefusal(str(error), of_era=False)


def _is_refusal(outcome: Outcome, link: Link) -> bool:
    """Whether a failed handshake may mean that the server knows none."""
    return (outcome.code in _REFUSALS and outcome.delivery is None) or link.is_older_transport


def _supported(outcome: Outcome) -> list[str]:
    """The stateless versions we share with a server that refused another one."""
    if outcome.kind is OutcomeKind.RESULT or outcome.code != UNSUPPORTED_VERSION:
        return []
    try:
        named = msgspec.json.decode(outcome.payload, type=_VersionError).data.supported
    except msgspec.MsgspecError:
        return []
    return [version for version in STATELESS_VERSIONS if version in named]
