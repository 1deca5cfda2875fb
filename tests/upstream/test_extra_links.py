"""Further links to one server: in the other era, and pooled for those who share a key."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import Era
from mcp_junction.resilience.clock import Clock
from mcp_junction.testing.fakes import FakeClock
from mcp_junction.testing.link import DeafInbox, FakeUpstream, greets, listeners_to, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.events import ServerChanged
from mcp_junction.upstream.extra_links import IDLE_AFTER, MAX_POOLED
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.handshake import ConnectPolicy, Hello
from mcp_junction.upstream.outcome import Outcome, OutcomeKind
from mcp_junction.upstream.state import ServerState
from mcp_junction.upstream.upstream import Upstream

BOUND = 30.0
OLD, NEW = Era.HANDSHAKE, Era.STATELESS


class Asking(DeafInbox):
    """Answers what is asked of nobody in particular, and keeps whose news it is told."""

    def __init__(self) -> None:
        self.heard_from: list[Upstream] = []
        self.news = asyncio.Event()

    def note(self, event: ServerChanged) -> None:
        self.news.set()

    def receive(self, upstream: Upstream, frame: Frame) -> None:
        self.heard_from.append(upstream)

    async def ask(self, upstream: Upstream, frame: Frame) -> Outcome:
        return outcomes.result(b'{"by":"someone"}')


@asynccontextmanager
async def living(
    eras: Iterable[Era],
    prefers: Era = NEW,
    clock: Clock | None = None,
    calls: Any = silence,
) -> AsyncIterator[FakeUpstream]:
    asking = Asking()
    upstream = FakeUpstream(
        "s",
        script=greets(["a"], calls, eras),
        connected=False,
        listeners=listeners_to(asking.note, asking),
        clock=clock,
        hello=Hello(prefers=prefers),
        policy=ConnectPolicy(start_timeout=BOUND, restart=True),
        transport="http",  # a program that is shared has no twins
    )
    life = asyncio.create_task(upstream.run())
    try:
        async with asyncio.timeout(BOUND):
            await upstream.settled.wait()
            yield upstream
    finally:
        upstream.stop()
        await life


def openings(upstream: FakeUpstream) -> list[list[str]]:
    """How each link was opened."""
    return [
        [flight.method for flight in link.flights if flight.method != "subscriptions/listen"]
        for link in upstream.links
    ]


async def connected(twin: Upstream | None) -> Upstream:
    assert twin is not None
    assert await twin.wait_for_link(BOUND) is not None
    return twin


async def until(upstream: FakeUpstream, found: Callable[[], bool]) -> None:
    """Wait for something that comes with a change of state."""
    news = upstream._listeners.inbox.news
    while not found():
        news.clear()
        await news.wait()


def is_gone(twin: Upstream) -> Callable[[], bool]:
    return lambda: twin.state is ServerState.DISCONNECTED


# -- in the other era


async def test_a_server_stands_for_itself_in_its_own_era():
    async with living([OLD, NEW]) as upstream:
        assert await upstream.for_era(NEW) is upstream
        assert upstream.extra_links.speaks(NEW) is True
        assert upstream.extra_links.speaks(OLD) is None
        assert len(upstream.links) == 1


@pytest.mark.parametrize(("prefers", "other"), [(NEW, OLD), (OLD, NEW)])
async def test_a_server_of_both_eras_gets_a_twin_when_the_other_one_is_first_wanted(prefers, other):
    async with living([OLD, NEW], prefers) as upstream:
        one, two = await asyncio.gather(upstream.for_era(other), upstream.for_era(other))
        assert one is two
        assert one.link.era is other
        assert upstream.extra_links.speaks(other) is True
        assert len(upstream.links) == 2
        assert await upstream.for_era(other) is one
        assert list(upstream.extra_links) == [one]
    assert one.state is ServerState.DISCONNECTED


async def test_a_twin_of_the_handshake_era_is_told_all_that_can_be_relayed():
    async with living([OLD, NEW]) as upstream:
        await upstream.for_era(OLD)
        told = json.loads(upstream.wire.flights[0].params)
        assert set(told["capabilities"]) == {"elicitation", "roots", "sampling"}


@pytest.mark.parametrize("only", [OLD, NEW])
async def test_a_server_that_refused_an_era_is_not_asked_again(only):
    other = NEW if only is OLD else OLD
    async with living([only], prefers=other) as upstream:
        assert upstream.link.era is only
        assert await upstream.for_era(other) is None
        assert upstream.extra_links.speaks(other) is False
        assert len(upstream.links) == 1


async def test_a_twin_that_is_refused_is_remembered_until_the_server_has_a_new_life(caplog):
    async with living([OLD], prefers=OLD) as upstream:
        assert await upstream.for_era(NEW) is None
        assert await upstream.for_era(NEW) is None
        assert upstream.extra_links.speaks(NEW) is False
        assert openings(upstream) == [["initialize"], ["server/discover"]]
        assert caplog.records == []
        upstream.script = greets(["a"], silence, [OLD, NEW])
        upstream.links[0].lose()
        await until(upstream, lambda: upstream.link not in (None, upstream.links[0]))
        assert upstream.extra_links.speaks(NEW) is None
        assert (await connected(await upstream.for_era(NEW))).link.era is NEW


async def test_a_refusal_that_nobody_waited_for_says_nothing_of_a_later_life():
    async with living([OLD], prefers=OLD) as upstream:
        asking = asyncio.create_task(upstream.for_era(NEW))
        await asyncio.sleep(0)
        (twin,) = upstream.extra_links
        asking.cancel()
        await until(upstream, lambda: twin.state is ServerState.ERROR)
        upstream.script = greets(["a"], silence, [OLD, NEW])
        upstream.links[0].lose()
        await until(upstream, lambda: upstream.link not in (None, upstream.links[0]))
        assert (await connected(await upstream.for_era(NEW))).link.era is NEW


async def test_while_a_server_is_down_it_stands_for_itself():
    upstream = FakeUpstream("s")
    upstream.go_down()
    assert await upstream.for_era(NEW) is upstream


async def test_isolation_is_for_the_handshake_era():
    async with living([OLD, NEW]) as upstream:
        upstream.definition = type(upstream.definition)("s", "stdio", isolation="per-session")
        session = object()
        assert upstream.for_session(session, Hello) is upstream
        old = await upstream.for_era(OLD)
        old.definition = upstream.definition
        twin = await connected(old.for_session(session, Hello))
        assert twin is not old
        assert twin.link.era is OLD
        assert set(upstream.extra_links) == {old, twin}
        upstream.extra_links.end_session(session)
        assert list(upstream.extra_links) == [old]
        await until(upstream, is_gone(twin))


# -- pooled


async def test_those_who_share_a_key_share_a_twin():
    async with living([OLD]) as upstream:
        hello = Hello(capabilities=b'{"roots":{}}')
        one = await connected(upstream.extra_links.pooled(("ann", "roots"), hello))
        assert upstream.extra_links.pooled(("ann", "roots"), hello) is one
        assert json.loads(upstream.wire.flights[0].params)["capabilities"] == {"roots": {}}
        other = await connected(upstream.extra_links.pooled(("bob", "roots"), hello))
        assert other is not one
        assert openings(upstream)[1:] == [["initialize"], ["initialize"]]


async def test_a_pooled_twin_asks_nobody_and_tells_nobody():
    async with living([OLD]) as upstream:
        twin = await connected(upstream.extra_links.pooled("k", Hello()))
        question = Frame("2.0", method="roots/list")
        assert (await upstream.on_request(question)).kind is OutcomeKind.RESULT
        assert (await twin.on_request(question)).kind is OutcomeKind.ERROR
        twin.on_notification(Frame("2.0", method="notifications/message"))
        assert upstream._listeners.inbox.heard_from == []


async def test_the_idle_one_that_was_used_least_recently_makes_room():
    async with living([OLD]) as upstream:
        extra_links = [
            await connected(upstream.extra_links.pooled(key, Hello())) for key in range(MAX_POOLED)
        ]
        busy = new_flight("tools/call")
        extra_links[0].link.send(busy)
        upstream.extra_links.pooled(1, Hello())  # so that 2 is the one
        assert await connected(upstream.extra_links.pooled("new", Hello())) not in extra_links
        assert upstream.extra_links.pooled(0, Hello()) is extra_links[0]
        assert upstream.extra_links.pooled(1, Hello()) is extra_links[1]
        await until(upstream, is_gone(extra_links[2]))
        assert not busy.future.done()


async def test_when_all_of_them_work_there_is_no_further_one():
    async with living([OLD]) as upstream:
        for key in range(MAX_POOLED):
            (await connected(upstream.extra_links.pooled(key, Hello()))).link.send(
                new_flight("tools/call")
            )
        assert upstream.extra_links.pooled("new", Hello()) is None
        assert upstream.extra_links.pooled(0, Hello()) is not None


async def test_a_pooled_twin_that_nobody_uses_is_ended():
    clock = FakeClock()
    async with living([OLD], clock=clock) as upstream:
        idle = await connected(upstream.extra_links.pooled("idle", Hello()))
        busy = await connected(upstream.extra_links.pooled("busy", Hello()))
        flight = new_flight("tools/call")
        busy.link.send(flight)
        for _ in itertools.repeat(None, 6):
            await clock.advance(IDLE_AFTER / 5)
        assert idle.state is ServerState.DISCONNECTED
        assert busy.state is ServerState.CONNECTED
        flight.end(outcomes.result(b"{}"))
        for _ in itertools.repeat(None, 6):
            await clock.advance(IDLE_AFTER / 5)
        assert busy.state is ServerState.DISCONNECTED
        assert upstream.link is not None


async def test_a_key_whose_twin_was_ended_gets_another():
    clock = FakeClock()
    async with living([OLD], clock=clock) as upstream:
        first = await connected(upstream.extra_links.pooled("k", Hello()))
        await clock.advance(IDLE_AFTER * 2)
        assert (await connected(upstream.extra_links.pooled("k", Hello()))) is not first
