"""How long an attempt may take, and for how long its server may say nothing."""

import asyncio

import pytest
from tests.calls.judged_world import JudgedWorld, grant
from tests.calls.world import World, body, raw

from mcp_junction.calls.deadlines import TICK
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.protocol.versions import CALL_TIMEOUT
from mcp_junction.testing.link import FakeUpstream, greets, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import OutcomeKind


def quiet(**options) -> FakeUpstream:
    return FakeUpstream("one", script=greets(["echo"], silence), **options)


async def flying(world, call):
    """A running call that is with its server."""
    sweeping = world.tasks.spawn(world.deadlines.run())
    running = world.start(call)
    while call.flight is None:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0)
    return running, sweeping


async def test_an_attempt_whose_server_says_nothing_ends():
    world = World(quiet())
    world.deadlines.idle = 10.0
    running, sweeping = await flying(world, world.call())
    await world.clock.advance(9.0)
    assert not running.done()
    await world.clock.advance(2.0)
    told = body(await running)
    assert told["code"] == CALL_TIMEOUT
    assert "said nothing for 10 s" in told["message"]
    assert told["data"]["delivery"] == "unknown"
    assert len(world.deadlines) == 0
    sweeping.cancel()


async def test_progress_begins_the_time_anew_but_not_that_of_the_attempt():
    one = quiet(timeout_ms=25_000)
    world = World(one)
    world.deadlines.idle = 10.0
    call = world.call(_meta={"progressToken": 1})
    running, sweeping = await flying(world, call)
    for _ in range(3):
        await world.clock.advance(8.0)
        assert not running.done()
        one.wire.flights[-1].caller.progress({"progress": raw(1)})
    await world.clock.advance(2.0)
    assert "did not answer within 25 s" in body(await running)["message"]
    sweeping.cancel()


async def test_the_time_stands_still_while_the_client_is_asked():
    world = World(quiet())
    world.deadlines.idle = 10.0
    call = world.call()
    running, sweeping = await flying(world, call)
    call.asking += 1
    await world.clock.advance(60.0)
    assert not running.done()
    call.asking -= 1
    await world.clock.advance(10.0 + 2 * TICK)
    assert running.done()
    sweeping.cancel()


async def test_without_a_limit_a_server_may_be_silent():
    one = quiet()
    world = World(one)
    running, sweeping = await flying(world, world.call())
    await world.clock.advance(10_000.0)
    assert not running.done()
    one.wire.flights[-1].end(outcomes.result(b"{}"))
    assert (await running).kind is OutcomeKind.RESULT
    sweeping.cancel()


@pytest.mark.parametrize(
    ("setting", "server_ms", "front", "limit"),
    [(5_000, 9_000, 7.0, 5), (None, 9_000, 7.0, 9), (None, 0, 7.0, 7)],
)
async def test_the_tools_limit_comes_before_the_servers_and_that_before_the_fronts(
    setting, server_ms, front, limit
):
    one = quiet(timeout_ms=server_ms)
    world = JudgedWorld(one, settings=(ToolSetting("id-one", "echo", timeout_ms=setting),))
    world.give(grant("*"))
    call = world.ask()
    call.attempt_timeout = front
    running, sweeping = await flying(world, call)
    await world.clock.advance(limit - 0.5)
    assert not running.done()
    await world.clock.advance(1.0)
    assert f"did not answer within {limit} s" in body(await running)["message"]
    sweeping.cancel()
