"""`GET /api/v1/events`: what happens, as it happens, and taken up again."""

import asyncio
import json

import httpx
import msgspec
import pytest
from tests.api.scope_door import Hiding
from tests.plugin_rest import SERVERS, registration
from tests.registry.toolbox import until

from mcp_junction.api.event_streams import is_of_own_call
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.names import Pair
from mcp_junction.store.records import EventRecord

EVENTS = "/api/v1/events"


class Reader:
    """One who reads the stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> dict:
        """The next event; comments are passed over."""
        event: dict[str, str] = {}
        async with asyncio.timeout(20):
            async for line in self._lines:
                if line and not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    event[name] = value
                elif not line and "data" in event:
                    return {**event, "data": json.loads(event["data"])}
        raise AssertionError("the stream has ended")

    async def ended(self) -> bool:
        async with asyncio.timeout(20):
            async for _ in self._lines:
                pass
        return True


def reading(served, role="admin", **how):
    return served.client(role).stream("GET", EVENTS, **how)


@pytest.mark.req("R-QUOTA")
async def test_who_opens_too_many_streams_loses_his_own_oldest(gateway):
    served = await gateway(max_streams_per_principal=1)
    async with reading(served, "viewer"), reading(served) as first, reading(served) as second:
        assert await Reader(first).ended()
        await until(lambda: len(served.context.streams) == 2)
        await served.client().post(SERVERS, json=registration(auto_connect=False))
        assert (await Reader(second).next())["event"] == "server.registered"


async def test_what_happens_is_told_as_it_happens(served):
    async with reading(served, params={"types": "server.registered,server.removed"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        reader = Reader(response)
        await served.client().post(SERVERS, json=registration(auto_connect=False))
        first = await reader.next()
        assert first["event"] == "server.registered"
        assert first["data"]["data"]["name"] == "peer"
        await served.client().delete(f"{SERVERS}/peer")
        second = await reader.next()
        assert second["event"] == "server.removed"
        assert int(second["id"]) > int(first["id"])


async def test_a_stream_is_taken_up_after_the_last_event_that_was_seen(served):
    async with reading(served) as response:
        reader = Reader(response)
        await served.client().post(SERVERS, json=registration("one", auto_connect=False))
        seen = await reader.next()
    for name in ("two", "three"):
        await served.client().post(SERVERS, json=registration(name, auto_connect=False))
    await served.bus.flush()
    async with reading(served, headers={"last-event-id": seen["id"]}) as response:
        reader = Reader(response)
        names = [(await reader.next())["data"]["data"]["name"] for _ in range(2)]
    assert names == ["two", "three"]


async def test_what_is_there_can_be_read_to_its_end(served):
    await served.client().post(SERVERS, json=registration("one", auto_connect=False))
    await served.bus.flush()
    from_the_beginning = {"last-event-id": "0"}
    answer = await served.client().get(
        EVENTS, params={"follow": "false"}, headers=from_the_beginning
    )
    assert answer.text.count("event: server.registered\n") == 1
    assert "id: 1\n" in answer.text


async def test_no_secret_is_in_an_event(served):
    config = {"command": "true", "env": {"TOKEN": "hunter2"}}
    await served.client().post(
        SERVERS, json=registration("one", connection_config=config, auto_connect=False)
    )
    await served.bus.flush()
    answer = await served.client().get(
        EVENTS, params={"follow": "false"}, headers={"last-event-id": "0"}
    )
    assert "one" in answer.text
    assert "hunter2" not in answer.text


async def test_a_stream_ends_with_the_key_it_was_opened_with(served):
    async with reading(served, "viewer") as response:
        reader = Reader(response)
        key_id = served.keys["viewer"].split("_")[1]
        await served.ring.revoke(key_id, "test")
        assert await reader.ended()
    assert (await served.client("viewer").get(SERVERS)).status_code == 401


async def test_a_stream_does_not_outlive_its_key_when_the_agent_has_another(served):
    await served.ring.create(Role.VIEWER, "the-viewer", "test")
    async with reading(served, "viewer") as response:
        reader = Reader(response)
        await served.ring.revoke(served.keys["viewer"].split("_")[1], "test")
        assert await reader.ended()


async def test_a_key_that_is_revoked_while_its_stream_is_opened_reads_nothing(served, monkeypatch):
    events = served.registry._context.store.events
    real, expel = events.bounds, served.context.expel
    looked = asyncio.Event()

    def looking(is_allowed):
        expel(is_allowed)
        looked.set()

    async def slow():
        found = await real()
        await served.ring.revoke(served.keys["viewer"].split("_")[1], "test")
        await asyncio.wait_for(looked.wait(), 20)
        return found

    await served.client("viewer").get(SERVERS)
    monkeypatch.setattr(events, "bounds", slow)
    monkeypatch.setattr(served.context, "expel", looking)
    async with reading(served, "viewer") as response:
        assert await Reader(response).ended()
    assert len(served.context.streams) == 0


async def test_who_comes_back_too_late_is_told_how_much_is_gone(served, monkeypatch):
    for name in ("one", "two", "three"):
        await served.client().post(SERVERS, json=registration(name, auto_connect=False))
    await served.bus.flush()
    store = served.registry._context.store
    first, last = await store.events.bounds()
    assert first == 1

    async def shortened():
        return 3, last

    monkeypatch.setattr(store.events, "bounds", shortened)
    late = {"last-event-id": "0"}
    answer = await served.client().get(EVENTS, params={"follow": "false"}, headers=late)
    assert "event: stream.gap" in answer.text
    assert '"missed":2' in answer.text
    async with reading(served, headers=late) as response:
        told = await Reader(response).next()
    assert (told["event"], told["data"]["data"]) == ("stream.gap", {"missed": 2})


async def test_a_number_that_is_none_is_refused(served):
    for odd in ("x", "-1", "1.5", "9" * 30):
        answer = await served.client().get(EVENTS, headers={"last-event-id": odd})
        assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR")


async def test_a_reader_that_leaves_leaves_nothing_behind(served):
    async with reading(served) as response:
        assert response.status_code == 200
        assert len(served.context.streams) == 1
    await until(lambda: not served.context.streams and not served.bus.has_readers)


async def test_the_end_of_a_call_tells_in_whose_name_and_how_it_ended(served):
    await served.register()
    async with reading(served, params={"types": "call.completed"}) as response:
        reader = Reader(response)
        await until(lambda: served.bus.has_readers)
        await served.call("peer.echo")
        await served.call("peer.fail")
        good, bad = [(await reader.next())["data"]["data"] for _ in range(2)]
    assert (good["agent"], good["principal"], good["role"]) == ("the-admin", "the-admin", "admin")
    assert (good["success"], good["outcome"], good["attempts"]) == (True, "ok", 1)
    assert (bad["success"], bad["outcome"]) == (False, "error")
    assert good["correlation_id"] != bad["correlation_id"]
    assert {"server_id", "name", "method", "delivery", "latency_ms"} <= good.keys()


@pytest.mark.req("S-07")
async def test_an_agent_reads_the_ends_of_its_own_calls_and_nothing_else(gateway):
    served = await gateway(policy=Hiding(frozenset({("tools", Pair("peer", "fail"))})))
    await served.register()
    async with reading(served, "agent", headers={"last-event-id": "0"}) as response:
        reader = Reader(response)
        await until(lambda: served.bus.has_readers)
        await served.call("peer.fail")
        await served.client().post(SERVERS, json=registration("other", auto_connect=False))
        await served.bus.flush()
        for name in ("peer.fail", "peer.nope", "peer.echo"):
            await served.call(name, role="agent")
        told = [await reader.next() for _ in range(3)]
    assert {event["event"] for event in told} == {"call.completed"}
    assert not any("id" in event for event in told), "no number tells of other events"
    hidden, unknown, echo = (event["data"]["data"] for event in told)
    assert (echo["agent"], echo["outcome"]) == ("the-agent", "ok")
    for event in (hidden, unknown):
        for differing in ("name", "correlation_id", "latency_ms"):
            del event[differing]
    assert hidden == unknown
    stored = await served.client("agent").get(
        EVENTS, params={"follow": "false"}, headers={"last-event-id": "0"}
    )
    assert "data:" not in stored.text


@pytest.mark.parametrize(
    ("data", "is_own"),
    [
        ({}, True),
        ({"agent": "eve"}, False),
        ({"role": "admin"}, False),
        ({"role": "admin", "principal": "boss"}, True),
        ({"role": "admin", "principal": "boss", "outcome": "denied"}, False),
        ({"role": "orchestrator", "principal": "boss", "server_id": None}, False),
        ({"principal": "eve"}, False),
    ],
)
def test_an_event_of_an_agents_own_is_told_from_one_of_a_namesake(data, is_own):
    given = {"agent": "bob", "principal": "bob", "role": "agent", "server_id": "s", "outcome": "ok"}
    bob = Principal("bob", Role.AGENT)
    event = EventRecord(0, 1.0, "", "call.completed", None, {**given, **data})
    assert is_of_own_call(event, bob) is is_own
    assert not is_of_own_call(msgspec.structs.replace(event, type="call.escalated"), bob)
