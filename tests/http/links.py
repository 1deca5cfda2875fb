"""A link to a server without a gateway: what it sends, hears and makes of calls."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.http.origin import BOUND, Handler, Origin, Visit

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import DEFAULT_LIMITS, Limits
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import DEFAULT_LIMIT
from mcp_junction.resilience.clock import Clock, SystemClock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight, new_flight
from mcp_junction.upstream.handshake import Hello
from mcp_junction.upstream.http.link import HttpLink
from mcp_junction.upstream.http.sse_link import SseLink
from mcp_junction.upstream.outcome import Outcome

VERSION = "2025-11-25"
GREETING = {"protocolVersion": VERSION, "capabilities": {}, "serverInfo": {"name": "x"}}


class Ears:
    """Hears what belongs to no call."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.renewals = 0
        self.dropped: list[str] = []
        self._news = asyncio.Event()

    def on_notification(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._news.set()

    async def on_request(self, frame: Frame) -> Outcome:
        return outcomes.result(b'{"from":"nobody"}')

    def on_unattributed(self, method: str) -> None:
        self.dropped.append(method)

    def on_renewed(self) -> None:
        self.renewals += 1

    async def heard_all(self, count: int) -> list[str]:
        async with asyncio.timeout(BOUND):
            while len(self.frames) < count:
                self._news.clear()
                await self._news.wait()
        return [frame.method for frame in self.frames]


class Impatient(SystemClock):
    """A clock on which waiting takes a turn of the loop; it notes how long was to be waited."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.waited.append(seconds)
        await asyncio.sleep(0)


class Rider:
    """A passenger: who a call is for."""

    def __init__(self) -> None:
        self.replays = 0
        self.session = self
        self.principal = Principal("ann", Role.AGENT)
        self.steps: list[Any] = []
        self.logs: list[Any] = []

    def progress(self, params: dict[str, Any]) -> None:
        self.steps.append(json.loads(bytes(params["progress"])))

    def log(self, params: Any) -> None:
        self.logs.append(json.loads(bytes(params)))

    async def ask(self, method: str, params: Any) -> Outcome:
        return outcomes.result(json.dumps({"asked": method}).encode())

    can_replay = True

    def count_replay(self) -> None:
        self.replays += 1


def fly(link: Any, method: str = "tools/call", rider: Rider | None = None) -> Flight:
    """Send a call without waiting."""
    flight = new_flight(method, rider)
    flight.params = b'{"name":"t"}'
    link.send(flight)
    return flight


async def landed(flight: Flight) -> Outcome:
    async with asyncio.timeout(BOUND):
        return await flight.future


async def call(link: Any, **how: Any) -> Any:
    """The result of a call."""
    outcome = await landed(fly(link, **how))
    assert outcome.kind is outcomes.OutcomeKind.RESULT, bytes(outcome.payload)
    return json.loads(bytes(outcome.payload))


async def failure(link_or_flight: Any) -> dict[str, Any]:
    """The error that a call ended with."""
    flight = link_or_flight if isinstance(link_or_flight, Flight) else fly(link_or_flight)
    outcome = await landed(flight)
    assert outcome.kind is outcomes.OutcomeKind.ERROR, bytes(outcome.payload)
    return json.loads(bytes(outcome.payload))


def definition(
    url: str, transport: str = "http", limits: Limits = DEFAULT_LIMITS, **headers: str
) -> ServerDefinition:
    return ServerDefinition("far", transport, url=url, headers=headers, limits=limits)


def opening(calls: Handler, session: str | None = "s1") -> Handler:
    """A handler that opens sessions, has no standing stream, and leaves calls to another."""

    async def answer(visit: Visit) -> None:
        if visit.rpc == "initialize":
            visit.result(GREETING, **({"mcp_session_id": session} if session else {}))
        elif visit.method == "DELETE":
            visit.answer(200)
        elif visit.method == "GET" and "last-event-id" not in visit.headers:
            visit.answer(405)
        elif visit.method == "POST" and "id" not in visit.message:
            visit.accepted()
        else:
            await calls(visit)

    return answer


@asynccontextmanager
async def http_link(
    url: str,
    *,
    limit: int = DEFAULT_LIMIT,
    ears: Ears | None = None,
    clock: Clock | None = None,
    **more: Any,
) -> AsyncIterator[HttpLink]:
    """A link whose conversation is open."""
    clock = clock or Impatient()
    link = HttpLink(definition(url, **more), ears or Ears(), limit, clock=clock)
    try:
        flight = new_flight("initialize")
        flight.params = Hello().params("test", "1")
        link.send(flight)
        await landed(flight)
        await link.begin_session(VERSION)
        yield link
    finally:
        await link.end(0.0)


@asynccontextmanager
async def linked(calls: Handler, **how: Any) -> AsyncIterator[tuple[Origin, HttpLink]]:
    """A server that answers calls like this, and an open link to it."""
    async with Origin(opening(calls)) as origin, http_link(origin.url, **how) as link:
        yield origin, link


@asynccontextmanager
async def sse_link(
    origin: Origin, ears: Ears | None = None, limits: Limits = DEFAULT_LIMITS
) -> AsyncIterator[SseLink]:
    link = SseLink(definition(origin.url, "sse", limits), ears or Ears(), DEFAULT_LIMIT)
    try:
        await link.start()
        yield link
    finally:
        await link.end(0.0)
