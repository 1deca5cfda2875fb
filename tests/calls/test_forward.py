"""Forward: which params it changes, and when the time of an attempt begins."""

import asyncio
import json

import pytest
from hypothesis import given
from msgspec import Raw
from tests.calls.world import BOUND, World, raw
from tests.protocol import json_texts

from mcp_junction.calls.call import tool_call
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import frames, names
from mcp_junction.protocol.versions import CALL_TIMEOUT, Era
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.testing.link import FakeUpstream, greets
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Delivery, Outcome


async def forwarded(params: bytes, name: str = "one:echo") -> tuple[bytes, bytes]:
    """What arrives at the server, and under which wire id."""
    one = FakeUpstream("one")
    world = World(one)
    await world.run(world.call_raw(name, params))
    (flight,) = one.wire.flights
    return bytes(flight.params), flight.wire_id


@pytest.mark.req("FR-006", "FR-007")
async def test_the_name_becomes_the_servers_own_and_the_rest_stays():
    params = b'{"x":1.0,"name":"one:echo","arguments":{"b":1e5,"a":[ -0 ]},"other":{"k":"\\u00e9"}}'
    arrived, _ = await forwarded(params)
    assert arrived == params.replace(b'"one:echo"', b'"echo"')


@pytest.mark.req("FR-007")
@given(arguments=json_texts.payloads)
async def test_arguments_arrive_byte_for_byte(arguments):
    text = arguments.encode()
    arrived, _ = await forwarded(b'{"name":"one:echo","arguments":%b}' % text)
    assert arrived == b'{"name":"echo","arguments":%b}' % text


@pytest.mark.req("FR-007")
@pytest.mark.parametrize(
    "meta", [b"null", b"5", b"[]", b'"x"', b"{}", b'{"a":{"b":1.0}, "traceparent" : "x"}']
)
async def test_meta_without_a_token_arrives_as_it_was_written(meta):
    arrived, _ = await forwarded(b'{"name":"one:echo","_meta":%b}' % meta)
    assert arrived == b'{"name":"echo","_meta":%b}' % meta


@pytest.mark.req("FR-007", "F-12")
@pytest.mark.parametrize("token", [b'"mine"', b"7", b"0"])
async def test_a_progress_token_becomes_ours_and_the_rest_of_meta_stays(token):
    meta = b'{"x":1.0,"progressToken":%b,"y":[ ]}'
    arrived, wire_id = await forwarded(b'{"name":"one:echo","_meta":%b}' % (meta % token))
    assert arrived == b'{"name":"echo","_meta":%b}' % (meta % wire_id)


@pytest.mark.req("F-12")
async def test_progress_comes_back_under_the_callers_token():
    one = FakeUpstream("one")
    world = World(one)
    calls = [world.call(_meta={"progressToken": "same"}) for _ in range(2)]
    for call in calls:
        await world.run(call)
    first, second = one.wire.flights
    assert first.wire_id != second.wire_id
    calls[0].progress({"progressToken": raw(1), "progress": raw(0.5)})
    (notice,) = world.told()
    assert notice["method"] == "notifications/progress"
    assert notice["params"] == {"progressToken": "same", "progress": 0.5}


async def test_progress_nobody_asked_for_is_not_passed_on():
    world = World(FakeUpstream("one"))
    call = world.call()
    await world.run(call)
    call.progress({})
    assert world.told() == []


@pytest.mark.req("FR-008")
async def test_the_servers_answer_is_the_outcome():
    one = FakeUpstream("one")
    world = World(one)
    outcome = await world.run(world.call(arguments={"n": 1}))
    assert json.loads(bytes(outcome.payload)) == {"name": "echo", "arguments": {"n": 1}}


# -- time


@pytest.mark.parametrize("era", Era)
async def test_the_wait_for_a_link_is_not_the_time_of_the_attempt(era):
    greet = greets(("echo",), eras=[Era.HANDSHAKE])

    def answer(flight: Flight) -> Outcome | None:
        return None if flight.method == "tools/call" else greet(flight)

    late = FakeUpstream("one", script=answer, connected=False, timeout_ms=1000)
    late.refused_eras = {Era.STATELESS}
    world = World(late)
    world.tasks.spawn(world.deadlines.run())
    caller = world.session
    if era is Era.STATELESS:
        caller = StatelessClient(LOCAL_OWNER, EVERYTHING, names.STDIO, {}, Raw(b"{}"))
    params = frames.members(b'{"name":"one:echo","_meta":{}}')
    call = tool_call(caller, world.snapshot, "one:echo", params)
    running = world.start(call)
    await world.clock.advance(3)
    assert (running.done(), call.attempts, len(world.deadlines)) == (False, 0, 0)
    life = world.tasks.spawn(late.run())
    await asyncio.wait_for(late.settled.wait(), BOUND)
    await world.clock.advance(0.9)
    assert (running.done(), call.attempts, call.sent_at) == (False, 1, 3.0)
    await world.clock.advance(0.2)
    outcome = await asyncio.wait_for(running, BOUND)
    assert (outcome.code, outcome.delivery) == (CALL_TIMEOUT, Delivery.UNKNOWN)
    (ended,) = world.sink.calls
    assert ended.waited == 3.0
    assert 4.0 <= ended.seconds < 4.2
    late.stop()
    await life
    await world.tasks.close()
