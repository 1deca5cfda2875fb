"""FakeLink and FakeUpstream behave as the real ones do, as far as others can tell."""

import asyncio

import pytest

from mcp_junction.errors import ServerError
from mcp_junction.resilience.clock import SystemClock
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.link import (
    DeafInbox,
    FakeLink,
    FakeUpstream,
    catalog_of,
    echo,
    greets,
    listeners_to,
    silence,
)
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight, FlightState, new_flight
from mcp_junction.upstream.handshake import ConnectPolicy
from mcp_junction.upstream.link import Link, LinkEnd
from mcp_junction.upstream.outcome import Delivery, OutcomeKind
from mcp_junction.upstream.state import ServerState


def flight(params: bytes = b"{}", method: str = "tools/call") -> Flight:
    made = new_flight(method)
    made.params = params
    return made


async def test_a_link_answers_as_its_script_says_and_keeps_what_it_was_given() -> None:
    link = FakeLink("led", echo)
    as_owned: Link = link
    sent = flight(b'{"a":1}')
    as_owned.send(sent)
    as_owned.notify("notifications/initialized")
    assert sent.future.result() == outcomes.result(b'{"a":1}')
    assert link.flights == [sent]
    assert link.waiting == []
    assert link.notified == [("notifications/initialized", b"")]


async def test_a_silent_link_leaves_the_answer_to_the_test() -> None:
    link = FakeLink("led", silence)
    sent = flight()
    link.send(sent)
    assert link.waiting == [sent]
    assert sent.state is FlightState.WRITTEN
    sent.abandon(outcomes.cancelled("enough", sent.delivery), "enough")
    assert link.cancelled == [(sent, "enough")]
    assert link.waiting == []


async def test_a_lost_link_ends_what_is_in_the_air_and_refuses_the_rest() -> None:
    link = FakeLink("led", silence)
    before, after = flight(), flight()
    link.send(before)
    link.lose("cut", code=9)
    link.send(after)
    assert before.future.result().delivery is Delivery.UNKNOWN
    assert after.future.result().delivery is Delivery.NOT_SENT
    await link.wait_closed()
    assert await link.describe_end() == LinkEnd("exited with code 9", 9)


async def test_an_upstream_is_connected_and_offers_its_tools() -> None:
    upstream = FakeUpstream("led", ["one", "two"], timeout_ms=250)
    view = catalog_of(upstream, FakeUpstream("other")).view(catalog_of().canonical)
    assert upstream.state is ServerState.CONNECTED
    assert view.find("led:two").upstream is upstream
    assert view.find("led:two").timeout == 0.25
    assert view.find("other:echo") is not None
    outcome = await upstream.request("tools/call", b'{"b":2}', 1)
    assert outcome == outcomes.result(b'{"b":2}')
    upstream.go_down("it was pulled")
    assert upstream.link is None
    assert upstream.unavailable().delivery is Delivery.NOT_SENT


@pytest.mark.parametrize("restart", [False, True])
async def test_an_upstream_can_live_its_own_life_on_fake_links(restart: bool) -> None:
    states: list[ServerState] = []
    upstream = FakeUpstream(
        "led",
        script=greets(["t"]),
        connected=False,
        listeners=listeners_to(lambda event: states.append(event.state)),
        policy=ConnectPolicy(start_timeout=1, restart=restart),
        clock=SystemClock(),
    )
    tasks = TaskScope("test")
    life = tasks.spawn(upstream.run())
    async with asyncio.timeout(10):
        await upstream.settled.wait()
        assert upstream.greeting.name == "fake"
        upstream.wire.lose("cut", code=1)
        while len(states) < (5 if restart else 3):  # noqa: ASYNC110 - no one tells us
            await asyncio.sleep(0)
        upstream.stop()
        await life
    expected = [ServerState.CONNECTING, ServerState.CONNECTED, ServerState.ERROR]
    if restart:
        expected += [ServerState.CONNECTING, ServerState.CONNECTED, ServerState.DISCONNECTED]
        assert len(upstream.links) == 2
    else:
        assert isinstance(upstream.error, ServerError)
        assert upstream.error.exit_code == 1
        expected += states[3:]
    assert states == expected


async def test_a_script_may_refuse() -> None:
    refusing = greets(["t"], calls=lambda _: outcomes.failed(-32000, "no", Delivery.NOT_SENT))
    upstream = FakeUpstream("led", ["t"], refusing)
    assert (await upstream.request("tools/list", b"{}", 1)).kind is OutcomeKind.RESULT
    assert (await upstream.request("tools/call", b"{}", 1)).kind is OutcomeKind.ERROR
    inbox = DeafInbox()
    inbox.receive(upstream, None)
    assert (await inbox.ask(upstream, None)).kind is OutcomeKind.ERROR
