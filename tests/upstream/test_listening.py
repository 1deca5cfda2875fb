"""Listening to a stateless server: one stream, as long as it lives, for all that is wanted."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mcp_junction.protocol import encode
from mcp_junction.protocol.frames import Frame, decode
from mcp_junction.protocol.versions import METHOD_NOT_FOUND, SUBSCRIPTION_KEY, Era
from mcp_junction.testing.link import DeafInbox, FakeUpstream, greets, listeners_to
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.events import ServerChange, ServerChanged
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.handshake import ConnectPolicy
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

BOUND = 30.0
CHANGING = {"tools": {"listChanged": True}, "prompts": {}, "resources": {"listChanged": True}}
UPDATED = "notifications/resources/updated"


class Listener(DeafInbox):
    """Keeps what a server says, and counts the times that something may have been missed."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.announced: list[ServerChanged] = []
        self.renewals = 0

    def receive(self, upstream: Any, frame: Frame) -> None:
        self.frames.append(frame)

    def note(self, event: ServerChanged) -> None:
        if event.change is ServerChange.RENEWED:
            self.renewals += 1
        elif event.change is ServerChange.LISTS:
            self.announced.append(event)


class Server:
    """A stateless server that acknowledges what it is told to."""

    def __init__(self, capabilities: dict[str, Any] = CHANGING) -> None:
        self.refusal: Outcome | None = None
        self.acknowledges = True
        self.honours = lambda uris: uris
        self.ear = Listener()
        script = greets(["a"], self.called, [Era.STATELESS], capabilities)
        self.upstream = FakeUpstream(
            "s",
            script=script,
            connected=False,
            listeners=listeners_to(self.ear.note, self.ear),
            era=Era.STATELESS,
            policy=ConnectPolicy(start_timeout=BOUND, restart=True, name="hub", version="9"),
        )
        self.news = asyncio.Event()

    def called(self, flight: Flight) -> Outcome | None:
        if flight.method != "subscriptions/listen":
            return outcomes.result(flight.params)
        self.news.set()
        if self.refusal is not None:
            return self.refusal
        if self.acknowledges:
            asyncio.get_running_loop().call_soon(self.acknowledge, flight)
        return None

    def acknowledge(self, flight: Flight) -> None:
        wanted = json.loads(flight.params)["notifications"]
        if "resourceSubscriptions" in wanted:
            wanted["resourceSubscriptions"] = self.honours(wanted["resourceSubscriptions"])
        self.say("notifications/subscriptions/acknowledged", flight, notifications=wanted)

    def say(self, method: str, on: Flight, **params: Any) -> None:
        params["_meta"] = {SUBSCRIPTION_KEY: int(on.wire_id)}
        self.upstream.on_notification(decode(encode.notification(method, encode.dumps(params))))

    @property
    def streams(self) -> list[Flight]:
        """The streams that are open."""
        return [f for f in self.upstream.wire.waiting if f.method == "subscriptions/listen"]

    @property
    def listens(self) -> list[Any]:
        """What was wanted with each request to listen."""
        all_flights = [flight for link in self.upstream.links for flight in link.flights]
        asked = [f for f in all_flights if f.method == "subscriptions/listen"]
        return [json.loads(flight.params)["notifications"] for flight in asked]

    async def listened(self, times: int) -> None:
        async with asyncio.timeout(BOUND):
            while len(self.listens) < times:
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def living(server: Server) -> AsyncIterator[Server]:
    life = asyncio.create_task(server.upstream.run())
    try:
        async with asyncio.timeout(BOUND):
            await server.upstream.settled.wait()
        yield server
    finally:
        server.upstream.stop()
        await life


LISTS = {"toolsListChanged": True, "resourcesListChanged": True}


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_the_server_can_announce_is_listened_to_before_its_lists_are_read():
    async with living(Server()) as server:
        assert server.listens == [LISTS]
        methods = [flight.method for flight in server.upstream.wire.flights]
        assert methods == ["server/discover", "subscriptions/listen"]
        (stream,) = server.streams
        said = json.loads(stream.params)["_meta"]
        assert said["io.modelcontextprotocol/clientInfo"] == {"name": "hub", "version": "9"}
        assert said["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


async def test_what_is_heard_is_passed_on_without_the_number_of_our_stream():
    async with living(Server()) as server:
        (stream,) = server.streams
        server.say("notifications/tools/list_changed", stream)
        server.say(UPDATED, stream, uri="a:1")
        (changed,), (updated,) = server.ear.announced, server.ear.frames
        assert changed == ServerChanged(
            server.upstream,
            ServerChange.LISTS,
            server.upstream.state,
            method="notifications/tools/list_changed",
        ), "that it changed is all that is passed on, without any params"
        assert (updated.method, bytes(updated.params)) == (UPDATED, b'{"uri":"a:1"}')


async def test_a_server_that_announces_nothing_is_not_listened_to_until_something_is_wanted():
    async with living(Server({"tools": {}, "resources": {"subscribe": True}})) as server:
        assert server.listens == []
        assert (await server.upstream.subscribe("a:1")).kind is OutcomeKind.RESULT
        assert server.listens == [{"resourceSubscriptions": ["a:1"]}]


async def test_another_wish_opens_another_stream_before_the_old_one_is_closed():
    async with living(Server()) as server:
        (first,) = server.streams
        server.acknowledges = False
        wish = asyncio.create_task(server.upstream.subscribe("a:1"))
        await server.listened(2)
        await turns()
        old, new = server.streams
        assert old is first
        assert not wish.done()
        server.acknowledge(new)
        assert (await wish).kind is OutcomeKind.RESULT
        assert server.streams == [new]
        assert server.listens[1] == {**LISTS, "resourceSubscriptions": ["a:1"]}
        assert [flight for flight, _ in server.upstream.wire.cancelled] == [first]
        assert server.ear.renewals == 0


async def test_wishes_that_come_together_share_a_stream():
    async with living(Server()) as server:
        uris = [f"a:{number}" for number in range(50)]
        outcomes_ = await asyncio.gather(*map(server.upstream.subscribe, uris))
        assert {outcome.kind for outcome in outcomes_} == {OutcomeKind.RESULT}
        assert len(server.listens) == 2
        assert server.listens[-1]["resourceSubscriptions"] == sorted(uris)
        await asyncio.gather(*map(server.upstream.unsubscribe, uris))
        assert server.listens[2:] == [LISTS]
        assert len(server.streams) == 1


async def test_a_wish_that_is_not_honoured_is_answered_with_an_error():
    async with living(Server()) as server:
        server.honours = lambda uris: [uri for uri in uris if uri != "b:1"]
        good, bad = await asyncio.gather(*map(server.upstream.subscribe, ["a:1", "b:1"]))
        assert (good.kind, bad.kind) == (OutcomeKind.RESULT, OutcomeKind.ERROR)
        await turns()
        assert len(server.listens) == 2
        assert (await server.upstream.subscribe("a:1")).kind is OutcomeKind.RESULT
        assert len(server.listens) == 2


async def test_a_wish_that_is_refused_leaves_the_old_stream_open():
    async with living(Server()) as server:
        server.refusal = outcomes.refused(encode.error_object(-32602, "no such thing"))
        refused = await server.upstream.subscribe("a:1")
        assert refused.message == "no such thing"
        server.refusal = None
        assert len(server.streams) == 1
        assert (await server.upstream.subscribe("a:2")).kind is OutcomeKind.RESULT
        assert server.listens[-1]["resourceSubscriptions"] == ["a:2"]


async def test_a_stream_that_ends_is_opened_again_and_what_was_missed_is_read():
    async with living(Server()) as server:
        await server.upstream.subscribe("a:1")
        (stream,) = server.streams
        stream.end(outcomes.link_lost("s", Delivery.UNKNOWN, "it was cut"))
        await server.listened(3)
        await turns()
        assert server.listens[2] == server.listens[1]
        assert server.ear.renewals == 1


@pytest.mark.parametrize("code", [METHOD_NOT_FOUND, -32602])
async def test_a_server_that_refuses_to_be_listened_to_is_left_alone(code):
    server = Server()
    server.refusal = outcomes.refused(encode.error_object(code, "not here"))
    async with living(server):
        assert server.upstream.link is not None
        refused = await server.upstream.subscribe("a:1")
        assert (refused.kind, refused.message) == (OutcomeKind.ERROR, "not here")
        assert len(server.listens) == 1


async def test_wishes_outlive_a_link():
    async with living(Server()) as server:
        await server.upstream.subscribe("a:1")
        server.upstream.wire.lose()
        await server.listened(3)
        assert server.listens[-1]["resourceSubscriptions"] == ["a:1"]


async def test_a_wish_of_a_link_that_ends_is_answered():
    async with living(Server()) as server:
        server.acknowledges = False
        wish = asyncio.create_task(server.upstream.subscribe("a:1"))
        await server.listened(2)
        server.upstream.wire.lose()
        async with asyncio.timeout(BOUND):
            assert (await wish).kind is OutcomeKind.ERROR


async def test_our_own_requests_say_who_asks():
    async with living(Server()) as server:
        outcome = await server.upstream.request("tools/list", b'{"cursor":"x"}', BOUND)
        assert outcome.kind is OutcomeKind.RESULT
        said = json.loads(server.upstream.wire.flights[-1].params)
        assert said["cursor"] == "x"
        assert said["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}
        assert server.upstream.wire.notified == []


async def test_what_is_no_longer_wanted_while_the_server_is_down_is_not_asked_for_again():
    async with living(Server()) as server:
        await server.upstream.subscribe("a:1")
        await server.upstream.subscribe("a:2")
        server.upstream.wire.lose()
        while server.upstream.current is not None:
            await turns()
        await server.upstream.unsubscribe("a:1")
        await server.listened(4)
        assert server.listens[-1]["resourceSubscriptions"] == ["a:2"]


async def test_a_wish_to_a_server_that_is_not_connected_is_answered_at_once():
    upstream = FakeUpstream("s", era=Era.STATELESS)
    assert (await upstream.subscribe("a:1")).kind is OutcomeKind.ERROR
