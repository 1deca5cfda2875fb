"""FakeLink and FakeUpstream: a server in memory, for tests of everything above the wire.

A FakeLink records the flights it is given and answers as its script says. It has no bytes, no
process and no time of its own: what a real link makes of frames is tested on the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from msgspec import Raw
from msgspec.structs import replace

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import ListItem, ServerLists
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import Phase, ServerError
from mcp_junction.protocol import encode
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import (
    LATEST_HANDSHAKE,
    LATEST_STATELESS,
    METHOD_NOT_FOUND,
    SERVER_INFO_KEY,
    Era,
    era_of,
)
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.events import Inbox, ServerListeners, ServerSink
from mcp_junction.upstream.flight import Flight, FlightState
from mcp_junction.upstream.handshake import ConnectPolicy, Hello
from mcp_junction.upstream.link import Link, LinkEnd
from mcp_junction.upstream.outcome import RESULT, Outcome
from mcp_junction.upstream.state import ServerState
from mcp_junction.upstream.upstream import Upstream

Script = Callable[[Flight], Outcome | None]
"""Answers a flight with its outcome, or None when the test answers."""


def silence(_: Flight) -> Outcome | None:
    """Never answer; the test does."""
    return None


def echo(flight: Flight) -> Outcome | None:
    """Answer with the params, as they came."""
    return outcomes.result(flight.params)


def greets(
    tools: Iterable[str],
    calls: Script = echo,
    eras: Iterable[Era] = (Era.HANDSHAKE,),
    capabilities: dict[str, object] | None = None,
) -> Script:
    """Greet in these eras, list these tools, and leave calls to another script."""
    offered = {"tools": {}} if capabilities is None else capabilities
    listed = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
    greeting = {
        "protocolVersion": LATEST_HANDSHAKE,
        "capabilities": offered,
        "serverInfo": {"name": "fake", "version": "0"},
    }
    discovery = {
        "resultType": "complete",
        "supportedVersions": [LATEST_STATELESS],
        "capabilities": offered,
        "_meta": {SERVER_INFO_KEY: {"name": "fake", "version": "0"}},
    }
    openings = {
        "initialize": (Era.HANDSHAKE, encode.dumps(greeting)),
        "server/discover": (Era.STATELESS, encode.dumps(discovery)),
    }
    spoken = frozenset(eras)

    def answer(flight: Flight) -> Outcome | None:
        if flight.method in openings:
            era, said = openings[flight.method]
            if era in spoken:
                return outcomes.result(said)
            return outcomes.refused(encode.error_object(METHOD_NOT_FOUND, "Method not found"))
        if flight.method == "tools/list":
            return outcomes.result(encode.dumps(listed))
        return calls(flight)

    return answer


class FakeLink(Link):
    """A Link without a wire."""

    def __init__(self, server: str, script: Script = echo, era: Era = Era.HANDSHAKE) -> None:
        super().__init__(server)
        self.era = era
        self.script = script
        self.flights: list[Flight] = []
        self.cancelled: list[tuple[Flight, str]] = []
        self.notified: list[tuple[str, bytes]] = []
        self.code: int | None = None

    # -- the Link protocol

    def send(self, flight: Flight) -> None:
        if self.closed.done():
            flight.end(outcomes.unavailable(self.server, "it no longer reads its input"))
            return
        flight.link = self
        flight.state = FlightState.WRITTEN
        if flight.caller is not None:
            self.users.note(flight.caller.principal)
        self.flights.append(flight)
        answer = self.script(flight)
        if answer is not None:
            is_enveloped = answer.kind is RESULT and self.era is Era.STATELESS
            flight.end(replace(answer, is_enveloped=True) if is_enveloped else answer)

    def cancel(self, flight: Flight, reason: str) -> None:
        self.cancelled.append((flight, reason))

    def notify(self, method: str, params: Raw | bytes = b"") -> None:
        if self.era is Era.HANDSHAKE:
            self.notified.append((method, bytes(params)))

    # -- its life

    async def begin_session(self, protocol_version: str) -> None:
        self.era = era_of(protocol_version)
        self.notify("notifications/initialized")

    async def describe_end(self) -> LinkEnd:
        if self.code is None:
            return LinkEnd("closed its output")
        return LinkEnd(f"exited with code {self.code}", self.code)

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting)

    @property
    def calls(self) -> int:
        return sum(flight.caller is not None for flight in self.waiting)

    async def release(self, why: str) -> None:
        self.lose(why)

    def mark_lost(self, why: str) -> None:
        self.lose(why)

    async def end(self, grace: float) -> None:
        self.lose("it was stopped")

    # -- for the test

    @property
    def waiting(self) -> list[Flight]:
        """Flights that were sent and have not ended."""
        return [flight for flight in self.flights if not flight.future.done()]

    def lose(self, why: str = "it was cut", code: int | None = None) -> None:
        """Cut the connection: what is in the air ends, as on a real one."""
        if not self.closed.done():
            self.code = code
            self.closed.set_result(None)
        for flight in self.waiting:
            flight.end(outcomes.link_lost(self.server, flight.delivery, why))


class FakeUpstream(Upstream):
    """An Upstream over FakeLinks: connected from the start, or else waiting for its ``run``."""

    def __init__(
        self,
        key: str,
        tools: Iterable[str] = ("echo",),
        script: Script | None = None,
        *,
        connected: bool = True,
        timeout_ms: int = 0,
        listeners: ServerListeners | None = None,
        policy: ConnectPolicy | None = None,
        clock: Clock | None = None,
        era: Era = Era.HANDSHAKE,
        hello: Hello | None = None,
        transport: str = "stdio",
        server_id: str = "",
    ) -> None:
        self.tools = tuple(tools)
        self.script = script or greets(self.tools, eras=[era])
        self.era = era
        self.links: list[FakeLink] = []
        told: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        told.set_result(hello or Hello(prefers=era))
        super().__init__(
            ServerDefinition(
                key, transport, command="fake", timeout_ms=timeout_ms, id=server_id or f"id-{key}"
            ),
            opener=self._opened,
            hello=told,
            listeners=listeners or listeners_to(),
            policy=policy or ConnectPolicy(start_timeout=1.0),
            clock=clock or SystemClock(),
        )
        if connected:
            self.link = self.current = self._new_link(era)
            self.state = ServerState.CONNECTED
            self.settled.set()

    async def _opened(self, upstream: Upstream) -> FakeLink:
        return self._new_link()

    def _new_link(self, era: Era = Era.HANDSHAKE) -> FakeLink:
        self.links.append(FakeLink(self.definition.key, self.script, era))
        return self.links[-1]

    @property
    def wire(self) -> FakeLink:
        """The newest link."""
        return self.links[-1]

    def go_down(self, why: str = "it was cut") -> None:
        """Lose the link and be in error, without a life to notice it."""
        self.link = self.current = None
        self.wire.lose(why)
        self.error = ServerError(self.key, Phase.RUNTIME, why)
        self.state = ServerState.ERROR

    def offering(self) -> ServerLists:
        return ServerLists(
            self, tuple(ListItem(name, {"name": Raw(encode.dumps(name))}) for name in self.tools)
        )


def catalog_of(*upstreams: FakeUpstream) -> Catalog:
    """A catalog that holds what these offer, in this order."""
    catalog = Catalog()
    order = [upstream.key for upstream in upstreams]
    for upstream in upstreams:
        catalog = catalog.with_offering(upstream.offering(), order)
    return catalog


class DeafInbox:
    """An Inbox that drops everything."""

    def receive(self, upstream: Upstream, frame: Frame) -> None:
        return None

    async def ask(self, upstream: Upstream, frame: Frame) -> Outcome:
        return outcomes.failed(METHOD_NOT_FOUND, "nobody to ask")

    def count_unattributed(self, method: str) -> None:
        return None


def listeners_to(sink: ServerSink = lambda _: None, inbox: Inbox | None = None) -> ServerListeners:
    """Listeners for a server outside of a Junction: no step has to be taken to connect it."""
    return ServerListeners(sink, (), inbox or DeafInbox())
