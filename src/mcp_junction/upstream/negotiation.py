"""Negotiation: finds out which era a server speaks, and greets it.

ServerQuirks remembers, over a server's connections, how it wants to be greeted.
"""

from __future__ import annotations

import asyncio
from typing import Final

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
from mcp_junction.tasks import wait_for_any
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight, new_flight
from mcp_junction.upstream.handshake import (
    ConnectPolicy,
    Greeting,
    Hello,
    own_meta,
    read_discovery,
    read_greeting,
)
from mcp_junction.upstream.link import Link
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

PROBE_TIME: Final = 3.0
_REFUSALS: Final = (UNSUPPORTED_VERSION, METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS)


class GreetingRefusal(msgspec.Struct, frozen=True):
    """A server did not greet us: the reason, and whether it may be due to the era."""

    words: str
    of_era: bool


class ServerQuirks:
    """What is remembered of one server from connection to connection."""

    def __init__(self, transport: str, like: ServerQuirks | None = None) -> None:
        self.refused: frozenset[Era] = frozenset()
        """The eras that it refused on this connection."""
        self.is_older_transport: bool = like is not None and like.is_older_transport
        """Whether it refused the newer HTTP transport as a server of the older one does."""
        self._transport = transport
        self._has_tried_older = False
        self._is_probing = False
        self._is_shy: bool = like is not None and like._is_shy
        """Whether it must not be asked ``server/discover`` first: it exits, or does not answer."""

    async def greet(
        self, link: Link, hello: Hello, policy: ConnectPolicy
    ) -> Greeting | GreetingRefusal:
        """Greet the server on a link that has just been opened, and remember how that went."""
        first, is_only = self._first_era(hello)
        if hello.only and first is not hello.prefers:
            return GreetingRefusal("its transport is older than the stateless era", of_era=True)
        self._is_probing = first is Era.STATELESS and not is_only
        talk = Negotiation(link, hello, policy, is_only=is_only)
        greeting = await talk.greet(first)
        self.is_older_transport = talk.is_older_transport
        if link.closed.done():
            of_era = is_only and first is Era.STATELESS and self._transport == "stdio"
            return GreetingRefusal("it exits on server/discover", of_era=of_era)
        self._is_probing = False
        if isinstance(greeting, Greeting):
            self._is_shy = talk.was_silent and greeting.era is Era.HANDSHAKE
            is_too_old = is_only and not hello.only
            self.refused = frozenset({Era.STATELESS} if is_too_old else talk.refused)
            await link.begin_session(greeting.protocol_version)
            talk.abandon_probe()
        return greeting

    def _first_era(self, hello: Hello) -> tuple[Era, bool]:
        """The era to try first, and whether it is the only one."""
        if self.is_older_transport or self._transport == "sse":
            return Era.HANDSHAKE, True
        if hello.only:
            return hello.prefers, True
        return (Era.HANDSHAKE if self._is_shy else hello.prefers), False

    def wants_retry(self) -> bool:
        """Whether to connect again at once, in another way, before it counts as a failure.

        Some servers exit when their first request is not initialize; one that refused the newer
        HTTP transport may speak the older one.
        """
        if self._is_probing and self._transport == "stdio":
            self._is_probing, self._is_shy = False, True
            return True
        if self._has_tried_older or self._transport != "http":
            return False
        self._has_tried_older = self.is_older_transport
        return self._has_tried_older


class Negotiation:
    """One attempt to greet a server, on one link."""

    def __init__(self, link: Link, hello: Hello, policy: ConnectPolicy, *, is_only: bool) -> None:
        self.is_older_transport = False
        self.refused: set[Era] = set()
        """The eras in which it did not greet us, though it could have."""
        self.was_silent = False
        self._link = link
        self._hello = hello
        self._policy = policy
        self._is_only = is_only
        self._deadline = asyncio.get_running_loop().time() + policy.start_timeout
        self._probe: Flight | None = None
        """A ``server/discover`` that has no answer yet."""

    async def greet(self, first: Era) -> Greeting | GreetingRefusal:
        """Try one era and then the other, unless the first is the only one."""
        refusal = await self._try_era(first)
        if isinstance(refusal, Greeting):
            return refusal
        if self._is_only or not refusal.of_era or self._link.closed.done():
            return refusal
        self.refused.add(first)
        other = Era.HANDSHAKE if first is Era.STATELESS else Era.STATELESS
        second = await self._try_era(other)
        if isinstance(second, Greeting):
            self.refused.discard(second.era)
            return second
        return second if other is Era.HANDSHAKE else refusal

    def abandon_probe(self) -> None:
        """Cancel the probe that the server did not answer before it greeted us."""
        if self._probe is not None and not self._probe.future.done():
            why = "the server answered initialize"
            self._probe.abandon(outcomes.cancelled(why, self._probe.delivery), why)

    async def _try_era(self, era: Era) -> Greeting | GreetingRefusal:
        return await (self._discover() if era is Era.STATELESS else self._initialize())

    # -- the stateless era

    async def _discover(self) -> Greeting | GreetingRefusal:
        self._probe = self._send_discover(LATEST_STATELESS)
        limit = self._policy.start_timeout if self._is_only else PROBE_TIME
        outcome = await self._wait(self._probe, limit)
        if outcome is None:
            self.was_silent = True
            return GreetingRefusal("no answer to server/discover", of_era=True)
        shared = _shared_versions(outcome)
        if shared:
            self._probe = self._send_discover(shared[-1])
            outcome = await self._wait(self._probe) or outcome
        self._probe = None
        return _read_discovery(outcome)

    def _send_discover(self, version: str) -> Flight:
        meta = own_meta(self._policy.name, self._policy.version, version)
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
        flight.params = self._hello.params(self._policy.name, self._policy.version)
        self._link.send(flight)
        late = await self._late_discovery(flight)
        if late is not None:
            return late
        outcome = await self._wait(flight)
        self.is_older_transport = self._link.is_older_transport
        if outcome is None:
            limit = self._policy.start_timeout
            slow = outcomes.timed_out(self._link.server, Delivery.UNKNOWN, limit)
            return GreetingRefusal(f"initialize: {slow.message}", of_era=False)
        if outcome.kind is not OutcomeKind.RESULT:
            return await self._retry_discover(outcome)
        try:
            return read_greeting(outcome.payload)
        except (ValueError, FrameError, msgspec.MsgspecError) as error:
            return GreetingRefusal(str(error), of_era=False)

    async def _retry_discover(self, refusal: Outcome) -> Greeting | GreetingRefusal:
        """Look for an answer in the stateless era, after ``initialize`` was refused."""
        if self._probe is not None:
            outcome = await self._wait(self._probe, PROBE_TIME)
            self._probe = None
            if outcome is not None and isinstance(late := _read_discovery(outcome), Greeting):
                return late
        if _shared_versions(refusal) and Era.STATELESS in self.refused:
            return await self._discover()
        is_known = refusal.code in _REFUSALS and refusal.delivery is None
        of_era = is_known or self._link.is_older_transport
        return GreetingRefusal(f"initialize: {refusal.message}", of_era=of_era)

    async def _late_discovery(self, flight: Flight) -> Greeting | None:
        """The greeting of a server that answers the probe late, before it answers ``flight``."""
        if self._probe is None:
            return None
        probe = self._probe
        await wait_for_any(probe.future, flight.future, self._link.closed, timeout=self._left)
        if not probe.future.done():
            return None
        self._probe = None
        greeting = _read_discovery(probe.future.result())
        return greeting if isinstance(greeting, Greeting) else None

    # -- waiting

    @property
    def _left(self) -> float:
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def _wait(self, flight: Flight, limit: float | None = None) -> Outcome | None:
        """Wait for the end of a flight; None when the link ends before, or time is up."""
        left = self._left if limit is None else min(limit, self._left)
        await wait_for_any(flight.future, self._link.closed, timeout=left)
        return flight.future.result() if flight.future.done() else None


class _VersionData(msgspec.Struct):
    supported: list[str] = []


class _VersionError(msgspec.Struct):
    data: _VersionData


def _read_discovery(outcome: Outcome) -> Greeting | GreetingRefusal:
    if outcome.kind is not OutcomeKind.RESULT:
        is_outage = outcome.delivery is Delivery.NOT_SENT
        return GreetingRefusal(f"server/discover: {outcome.message}", of_era=not is_outage)
    try:
        greeting = read_discovery(outcome.payload)
    except (ValueError, FrameError, msgspec.MsgspecError) as error:
        return GreetingRefusal(f"server/discover: {error}", of_era=True)
    return greeting or GreetingRefusal("server/discover: it shares no version with us", of_era=True)


def _shared_versions(outcome: Outcome) -> list[str]:
    """The stateless versions that we share with a server that refused another one."""
    if outcome.kind is OutcomeKind.RESULT or outcome.code != UNSUPPORTED_VERSION:
        return []
    try:
        named = msgspec.json.decode(outcome.payload, type=_VersionError).data.supported
    except msgspec.MsgspecError:
        return []
    return [version for version in STATELESS_VERSIONS if version in named]
