"""A call's end and its deadline: by answer, cancel or time, whichever comes first."""

import asyncio

import pytest
from tests.calls.world import BOUND, World, body, raw

from mcp_junction.calls.attempt import Attempt
from mcp_junction.calls.deadlines import TICK
from mcp_junction.calls.stages.forward import Forward
from mcp_junction.protocol import frames
from mcp_junction.protocol.versions import CALL_TIMEOUT
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.link import FakeUpstream, greets, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, OutcomeKind


def quiet(key: str = "one", timeout_ms: int = 0) -> FakeUpstream:
    return FakeUpstream(key, script=greets(["echo"], silence), timeout_ms=timeout_ms)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def sweeping():
    """Run the sweep of a world; it ends with the test."""
    scope = TaskScope("sweep")
    yield lambda world: scope.spawn(world.deadlines.run())
    await scope.close()


# -- cancelling


@pytest.mark.req("F-10")
async def test_a_call_cancelled_before_it_starts_is_never_sent():
    one = quiet()
    world = World(one)
    call = world.call()
    call.cancel("changed my mind")
    outcome = await world.run(call)
    assert (outcome.kind, outcome.delivery) == (OutcomeKind.CANCELLED, Delivery.NOT_SENT)
    assert one.wire.flights == []


@pytest.mark.req("F-10")
async def test_an_attempt_of_a_cancelled_call_ends_without_being_sent():
    one = quiet()
    world = World(one)
    call = world.call()
    call.route = world.snapshot.catalog.view(world.session.spelling).find("one:echo")
    call.cancel("changed my mind")
    attempt = Attempt(call, call.route)
    assert attempt.fly(one.wire, attempt.params()).result().kind is OutcomeKind.CANCELLED
    assert one.wire.flights == []


@pytest.mark.req("F-10")
async def test_a_call_cancelled_between_the_stages_is_never_sent():
    one = quiet()
    world = World(one)
    call = world.call()
    call.route = world.snapshot.catalog.view(world.session.spelling).find("one:echo")
    call.cancel("changed my mind")
    assert (
        await Forward(world.clock, world.deadlines, world.links)(call)
    ).kind is OutcomeKind.CANCELLED
    assert one.wire.flights == []


@pytest.mark.req("F-10")
async def test_a_call_cancelled_in_the_air_is_cancelled_upstream_once():
    one = quiet()
    world = World(one)
    call = world.call()
    task = world.start(call)
    await turns()
    call.cancel("enough")
    call.cancel("really")
    outcome = await asyncio.wait_for(task, BOUND)
    assert (outcome.kind, outcome.delivery) == (OutcomeKind.CANCELLED, Delivery.UNKNOWN)
    assert one.wire.cancelled == [(one.wire.flights[0], "enough")]


async def test_a_call_that_has_been_answered_cannot_be_cancelled():
    one = FakeUpstream("one")
    world = World(one)
    call = world.call()
    outcome = await world.run(call)
    call.cancel("late")
    assert outcome.kind is OutcomeKind.RESULT
    assert one.wire.cancelled == []


@pytest.mark.req("R-ANSWER")
async def test_a_dropped_call_is_answered_and_cancelled_upstream():
    one = quiet()
    world = World(one)
    call = world.call()
    task = world.start(call)
    await turns()
    call.drop("Junction is ending")
    outcome = await asyncio.wait_for(task, BOUND)
    assert outcome.kind is OutcomeKind.ERROR
    assert body(outcome)["data"]["delivery"] == "unknown"
    assert len(one.wire.cancelled) == 1


async def test_an_ended_call_passes_no_more_progress_on():
    world = World(quiet())
    call = world.call(_meta={"progressToken": "t"})
    world.start(call)
    await turns()
    call.cancel("enough")
    call.progress({"progress": raw(1)})
    assert world.told() == []
    assert call.spoke is False


# -- deadlines


@pytest.mark.req("US3-3")
async def test_without_a_deadline_a_call_lasts_as_long_as_it_takes(sweeping):
    one = quiet()
    world = World(one)
    sweeping(world)
    task = world.start(world.call())
    await world.clock.advance(100_000)
    assert not task.done()
    assert len(world.deadlines) == 0
    one.wire.flights[0].end(outcomes.result(b"{}"))
    assert (await asyncio.wait_for(task, BOUND)).kind is OutcomeKind.RESULT


@pytest.mark.req("R-ANSWER")
async def test_a_call_past_its_deadline_ends_and_is_cancelled_upstream(sweeping):
    one = quiet(timeout_ms=1500)
    world = World(one)
    sweeping(world)
    task = world.start(world.call())
    await world.clock.advance(1.5 - TICK)
    assert not task.done()
    await world.clock.advance(2 * TICK)
    outcome = await asyncio.wait_for(task, BOUND)
    error = body(outcome)
    assert error["code"] == CALL_TIMEOUT
    assert error["data"] == {"server": "one", "delivery": "unknown"}
    assert "1.5 s" in error["message"]
    assert one.wire.cancelled == [(one.wire.flights[0], "timed out")]
    assert len(world.deadlines) == 0


async def test_an_answer_before_the_deadline_is_the_end_of_it(sweeping):
    one = quiet(timeout_ms=1000)
    world = World(one)
    sweeping(world)
    task = world.start(world.call())
    await world.clock.advance(0.5)
    one.wire.flights[0].end(outcomes.result(b"{}"))
    assert (await asyncio.wait_for(task, BOUND)).kind is OutcomeKind.RESULT
    assert len(world.deadlines) == 0
    await world.clock.advance(5)
    assert one.wire.cancelled == []


@pytest.mark.req("R-ANSWER")
async def test_the_deadline_stands_still_while_the_client_is_asked(sweeping):
    one = quiet(timeout_ms=1000)
    world = World(one)
    world.session.capabilities = {"elicitation": raw({})}
    sweeping(world)
    call = world.call()
    task = world.start(call)
    await world.clock.advance(0.5)
    question = world.tasks.spawn(call.ask("elicitation/create", raw({})))
    await world.clock.advance(60)
    assert not task.done()
    (asked,) = world.told()
    world.session.take_answer(
        frames.decode(b'{"jsonrpc":"2.0","id":"%b","result":{}}' % asked["id"].encode())
    )
    await asyncio.wait_for(question, BOUND)
    await world.clock.advance(0.4)
    assert not task.done()
    await world.clock.advance(0.2)
    assert body(await asyncio.wait_for(task, BOUND))["code"] == CALL_TIMEOUT


async def test_each_call_has_its_own_deadline(sweeping):
    one, two = quiet("one", 1000), quiet("two", 3000)
    world = World(one, two)
    sweeping(world)
    first, second = world.start(world.call("one:echo")), world.start(world.call("two:echo"))
    await world.clock.advance(1.1)
    assert (first.done(), second.done()) == (True, False)
    await world.clock.advance(2)
    assert second.done()


async def test_the_sweep_sleeps_while_there_is_nothing_to_sweep(sweeping):
    world = World(quiet(timeout_ms=100))
    sweeping(world)
    await world.clock.advance(10)
    assert world.clock.sleepers == 0
    task = world.start(world.call())
    await world.clock.advance(1)
    assert task.done()
    await world.clock.advance(1)
    assert world.clock.sleepers == 0
