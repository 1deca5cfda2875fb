"""A server of either era behind us: how its era is found, kept, and found again."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.processes import fixture, fixture_entry

from mcp_junction.app import Junction
from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.param_headers import name_line
from mcp_junction.protocol.versions import Era
from mcp_junction.testing.link import DeafInbox
from mcp_junction.upstream.events import ServerChange, ServerChanged, ServerListeners
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.handshake import Hello
from mcp_junction.upstream.link import add_own_envelope
from mcp_junction.upstream.outcome import OutcomeKind
from mcp_junction.upstream.state import ServerState
from mcp_junction.upstream.upstream import Upstream

BOUND = 30.0
OLD, NEW = Era.HANDSHAKE, Era.STATELESS


@asynccontextmanager
async def behind(entry: ServerDefinition, hello: Hello, **how: Any) -> AsyncIterator[Upstream]:
    """A gateway with one server behind it, once it is up or has failed."""
    async with Junction(Config("test", (entry,), Settings(), "test", {}), **how) as junction:
        junction.greet(hello)
        upstream = junction.servers[entry.key]
        async with asyncio.timeout(BOUND):
            await upstream.settled.wait()
        yield upstream


def python(*args: str) -> ServerDefinition:
    return ServerDefinition("s", "stdio", command=sys.executable, args=args)


Fixtures = Callable[..., AbstractAsyncContextManager[Upstream]]


@pytest.fixture(scope="module")
def fixture_behind() -> Iterator[Fixtures]:
    """The conformance fixture, as a server of some era, behind a gateway.

    Over HTTP there is one of each era: every gateway is a new client to it.
    """
    with ExitStack() as stack:
        url = cache(lambda era: stack.enter_context(fixture(era)))

        def started(transport: str, era: str, hello: Hello) -> Any:
            if transport == "stdio":
                return behind(ServerDefinition("s", "stdio", **fixture_entry(era)), hello)
            return behind(ServerDefinition("s", "http", url=url(era)), hello)

        yield started


async def listed(upstream: Upstream) -> list[str]:
    outcome = await upstream.request("tools/list", b"{}", BOUND)
    assert outcome.kind is OutcomeKind.RESULT, outcome.message
    return [tool["name"] for tool in json.loads(bytes(outcome.payload))["tools"]]


EXPECTED = [
    ("old", NEW, OLD),
    ("old", OLD, OLD),
    ("new", NEW, NEW),
    ("new", OLD, NEW),
    ("both", NEW, NEW),
    ("both", OLD, OLD),
]


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize(("spoken", "preferred", "found"), EXPECTED)
async def test_a_server_is_talked_to_in_the_preferred_era_it_speaks(
    fixture_behind, transport, spoken, preferred, found
):
    async with fixture_behind(transport, spoken, Hello(prefers=preferred)) as upstream:
        await check(upstream, found)


async def check(upstream: Upstream, found: Era) -> None:
    assert upstream.state is ServerState.CONNECTED, upstream.error
    assert (upstream.link.era, upstream.greeting.era) == (found, found)
    assert upstream.starts == 1
    assert upstream.greeting.name
    assert "test_simple_text" in await listed(upstream)


# -- servers with bad manners


ODD = Path(__file__).with_name("odd_server.py")


async def test_a_server_that_exits_on_the_first_question_is_started_again_for_the_handshake(caplog):
    async with behind(python(str(ODD), "exits"), Hello()) as upstream:
        assert (upstream.state, upstream.starts) == (ServerState.CONNECTED, 2)
        assert upstream.link.era is OLD
        assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
        assert await listed(upstream) == ["t"]
        assert await upstream.for_era(NEW) is None


async def test_a_server_that_exits_whatever_it_is_asked_is_started_twice_and_said_to_fail():
    async with behind(python("-c", "import sys; input(); sys.exit(3)"), Hello()) as upstream:
        assert (upstream.state, upstream.starts) == (ServerState.ERROR, 2)
        assert upstream.error.message == "exited with code 3 before it answered initialize"


async def test_a_server_that_is_silent_is_greeted_with_the_handshake_and_first_so_next_time():
    entry = python(str(ODD), "silent")._replace(restart=True)
    async with behind(entry, Hello()) as upstream:
        assert (upstream.link.era, upstream.starts) == (OLD, 1)
        slow = upstream.start_seconds
        upstream.link._ward.kill()
        await upstream.link.wait_closed()
        upstream._gate._open.clear()
        async with asyncio.timeout(BOUND):
            await upstream._gate._open.wait()
        assert upstream.starts == 2
        assert upstream.link.era is OLD
        assert upstream.start_seconds < slow


async def test_a_server_that_is_only_slow_to_start_is_not_misjudged():
    async with behind(python(str(ODD), "slow"), Hello()) as upstream:
        assert (upstream.link.era, upstream.starts) == (NEW, 1)
        assert await listed(upstream) == ["t"]


@pytest.mark.parametrize("prefers", [OLD, NEW])
async def test_a_version_that_a_refusal_names_is_tried(prefers):
    async with behind(python(str(ODD), "refuses"), Hello(prefers=prefers)) as upstream:
        assert (upstream.link.era, upstream.starts) == (NEW, 1)


async def test_a_server_that_fails_in_both_eras_says_why():
    for prefers in (OLD, NEW):
        async with behind(python(str(ODD), "denies"), Hello(prefers=prefers)) as upstream:
            assert (upstream.state, upstream.starts) == (ServerState.ERROR, 1)
            assert upstream.error.message == "initialize: no"


# -- a real server of both eras: its twin, and what it announces


@pytest.mark.parametrize(("prefers", "other"), [(NEW, OLD), (OLD, NEW)])
async def test_a_remote_server_of_both_eras_is_there_in_both(fixture_behind, prefers, other):
    async with fixture_behind("http", "both", Hello(prefers=prefers)) as upstream:
        twin = await upstream.for_era(other)
        assert twin.link.era is other
        assert await listed(twin) == await listed(upstream)


@pytest.mark.parametrize(("prefers", "other"), [(NEW, OLD), (OLD, NEW)])
async def test_a_shared_program_of_both_eras_is_there_in_one(fixture_behind, prefers, other):
    async with fixture_behind("stdio", "both", Hello(prefers=prefers)) as upstream:
        assert upstream.link.era is prefers
        assert upstream.extra_links.speaks(other) is False
        assert await upstream.for_era(other) is None
        assert upstream.starts == 1


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize(("spoken", "other"), [("new", OLD), ("old", NEW)])
async def test_a_server_of_one_era_is_there_in_that_one(fixture_behind, transport, spoken, other):
    async with fixture_behind(transport, spoken, Hello(prefers=other)) as upstream:
        assert await upstream.for_era(other) is None
    era = OLD if other is NEW else NEW
    async with fixture_behind(transport, spoken, Hello(prefers=era)) as upstream:
        assert await upstream.for_era(other) is None
        assert await listed(upstream)


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_changes_are_heard_and_wishes_acknowledged(fixture_behind, transport):
    async with fixture_behind(transport, "new", Hello()) as upstream:
        heard = Heard()
        upstream._listeners = ServerListeners(heard.note, (), heard)
        assert (await upstream.subscribe("test://watched-resource")).kind is OutcomeKind.RESULT
        called = {"name": "test_trigger_tool_change", "arguments": {}}
        await call(upstream, called)
        async with asyncio.timeout(BOUND):
            assert await heard.announced.get() == ServerChanged(
                upstream,
                ServerChange.LISTS,
                upstream.state,
                method="notifications/tools/list_changed",
            ), "that it changed is all that is passed on, without any params"
        assert heard.frames == [], "the notification itself, which names our stream, is not"


async def call(upstream: Upstream, params: dict[str, Any]) -> Any:
    """Call a tool as the call path does: with its headers made beforehand."""
    flight = new_flight("tools/call")
    flight.params = add_own_envelope(json.dumps(params).encode(), upstream._meta)
    flight.headers = name_line(json.dumps(params["name"]).encode())
    upstream.link.send(flight)
    async with asyncio.timeout(BOUND):
        outcome = await flight.future
    assert outcome.kind is OutcomeKind.RESULT, outcome.message
    return json.loads(bytes(outcome.payload))


class Heard(DeafInbox):
    """Keeps what is heard."""

    def __init__(self) -> None:
        self.announced: asyncio.Queue[ServerChanged] = asyncio.Queue()
        self.frames: list[Frame] = []

    def receive(self, upstream: Upstream, frame: Frame) -> None:
        self.frames.append(frame)

    def note(self, event: ServerChanged) -> None:
        if event.change is ServerChange.LISTS:
            self.announced.put_nowait(event)
