"""The pipeline: in which order stages stand, and that every call leaves one event and one end."""

import asyncio

import pytest
from msgspec import Raw
from tests.calls.world import BOUND, World, body

from mcp_junction.calls.call import Snapshot
from mcp_junction.calls.deadlines import Deadlines
from mcp_junction.calls.pipeline import (
    ExtraStage,
    GovernedStages,
    build_handlers,
    compose,
    stages_of,
)
from mcp_junction.calls.stages.admit import AdmitCalls
from mcp_junction.calls.stages.fallback import FallbackCalls
from mcp_junction.calls.stages.idempotency import RunOnce
from mcp_junction.calls.stages.record import RecordCall
from mcp_junction.protocol import names
from mcp_junction.protocol.versions import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    RATE_LIMITED,
    SERVER_UNAVAILABLE,
)
from mcp_junction.testing.fakes import FakeClock, MemorySink
from mcp_junction.testing.link import FakeUpstream, greets, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.handshake import ConnectPolicy
from mcp_junction.upstream.outcome import Delivery, OutcomeKind


def quiet(key: str = "one", **options: object) -> FakeUpstream:
    return FakeUpstream(key, script=greets(["echo"], silence), **options)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_first_stage_is_the_outermost():
    seen = []

    def stage(name):
        async def run(call, following):
            seen.append(f"{name} down")
            outcome = await following(call)
            seen.append(f"{name} up")
            return outcome

        return run

    async def last(call):
        seen.append("last")
        return outcomes.result(b"{}")

    await compose([stage("a"), stage("b")], last)(None)
    assert seen == ["a down", "b down", "last", "b up", "a up"]


async def test_a_path_without_stages_is_its_end():
    async def last(call):
        return outcomes.result(b"{}")

    assert compose([], last) is last


REMEMBERED = pytest.mark.parametrize("is_remembered", [True, False], ids=["remembered", "new"])


def call_of(world: World, is_remembered: bool):
    """A call, with its route if that was found before."""
    call = world.call()
    if is_remembered:
        call.route = world.snapshot.catalog.view(names.STDIO).find("one:echo")
    return call


@REMEMBERED
async def test_a_remembered_route_passes_every_stage_that_may_stop_a_call(is_remembered):
    async def refuse(call, following):
        return outcomes.failed(RATE_LIMITED, "not now", Delivery.NOT_SENT)

    one = quiet()
    world = World(one, extra=[ExtraStage("resume", refuse)])
    outcome = await world.run(call_of(world, is_remembered))
    assert outcome.code == RATE_LIMITED
    assert one.wire.flights == []
    assert [(ended.name, ended.outcome) for ended in world.sink.calls] == [("one:echo", outcome)]
    assert [ended.outcome_name for ended in world.sink.calls] == ["error"]


@REMEMBERED
async def test_a_call_that_was_ended_before_it_began_is_shown_to_no_stage(is_remembered):
    asked = []

    async def ask(call, following):
        asked.append(call)
        return await following(call)

    one = quiet()
    world = World(one, extra=[ExtraStage("resolve", ask)])
    call = call_of(world, is_remembered)
    call.cancel("never mind")
    assert (await world.run(call)).kind is OutcomeKind.CANCELLED
    assert asked == []
    assert one.wire.flights == []


async def test_a_stage_is_only_on_the_path_of_the_methods_that_it_applies_to():
    stages = stages_of(World().parts)

    def path(method):
        return [stage.name for stage in stages if method in stage.methods]

    assert path("tools/call") == ["record", "resolve", "authorize", "own", "resume"]
    assert path("resources/subscribe") == ["record", "resolve", "authorize", "subscribe"]
    assert path("tasks/get") == ["record", "resolve_task", "authorize", "resume"]


async def test_plain_calls_take_the_path_without_the_stages_that_would_pass_them_on():
    asked = []

    def note(name):
        def stage(call, following):
            asked.append(name)
            return following(call)

        return stage

    world = World(FakeUpstream("one"))
    parts = world.parts._replace(own=note("own"), resume=note("resume"))
    handle = build_handlers(parts)["tools/call"]
    assert (await handle(world.call())).kind is OutcomeKind.RESULT
    assert asked == []
    call = world.call()
    call.params["requestState"] = Raw(b"null")
    assert (await handle(call)).kind is OutcomeKind.RESULT
    assert asked == ["own", "resume"]


async def test_a_stage_that_plain_calls_do_not_take_would_pass_them_on_as_they_are():
    parts = World().parts
    special = [AdmitCalls(None, None), RunOnce(None), FallbackCalls(None), parts.own, parts.resume]
    governed = GovernedStages(admit=special[0], idempotency=special[1], fallback=special[2])
    placed = stages_of(parts._replace(governed=governed))
    assert {one.stage for one in placed if not one.takes_plain} == set(special)
    call, passed = World(FakeUpstream("one")).call(), object()
    for stage in special:
        assert stage(call, lambda _: passed) is passed


async def test_the_intent_is_written_right_before_each_call_is_forwarded():
    async def intend(call, following):
        return await following(call)

    parts = World().parts._replace(intend=intend)
    assert stages_of(parts)[-1].name == "intent"
    assert set(build_handlers(parts)) >= {"tools/call", "tasks/get", "resources/unsubscribe"}


@pytest.mark.req("FR-006", "US3-1")
async def test_a_call_leaves_one_event_of_its_success():
    world = World(FakeUpstream("one"), FakeUpstream("two"))
    outcome = await world.run(world.call("two__echo"))
    assert outcome.kind is OutcomeKind.RESULT
    (event,) = world.sink.calls
    assert (event.route.pair.server, event.target) == ("two", "two:echo"), "the canonical name"
    assert (event.method, event.principal.id) == ("tools/call", "local-owner")
    assert (event.outcome_name, event.outcome, event.seconds) == ("ok", outcome, 0.0)


@pytest.mark.req("J-NOT-FOUND")
async def test_a_call_to_an_unknown_tool_leaves_one_event_too():
    world = World(FakeUpstream("one"))
    outcome = await world.run(world.call("one:nothing"))
    assert body(outcome)["code"] == INVALID_PARAMS
    (event,) = world.sink.calls
    assert (event.route, event.target) == (None, "one:nothing")
    assert (event.outcome_name, event.outcome.delivery) == ("error", "not_sent")


async def test_a_very_long_unknown_name_is_quoted_in_part():
    world = World(FakeUpstream("one"))
    outcome = await world.run(world.call("x" * 100_000))
    assert len(outcome.payload) < 1000


@pytest.mark.req("R-ANSWER", "EDGE-CRASH")
async def test_a_call_whose_link_is_lost_fails_with_one_event():
    one = quiet()
    world = World(one)
    task = world.start(world.call())
    await turns()
    one.wire.lose("it crashed")
    outcome = await asyncio.wait_for(task, BOUND)
    assert body(outcome)["data"]["delivery"] == "unknown"
    (event,) = world.sink.calls
    assert (event.outcome_name, event.outcome.delivery) == ("error", "unknown")


@pytest.mark.req("FR-009")
async def test_a_call_to_a_server_that_is_down_is_not_sent_and_says_why():
    one = FakeUpstream("one")
    world = World(one)
    one.go_down("exited with code 3")
    outcome = await world.run(world.call())
    error = body(outcome)
    assert error["code"] == SERVER_UNAVAILABLE
    assert "exited with code 3" in error["message"]
    assert error["data"]["delivery"] == "not_sent"
    assert len(world.sink.calls) == 1


@pytest.mark.req("FR-009", "US2-5")
@pytest.mark.parametrize("name", ["one:echo", "one__echo"])
async def test_a_call_to_a_tool_of_a_server_that_left_says_that_it_is_down(name):
    one = FakeUpstream("one")
    world = World(one, FakeUpstream("two"))
    one.go_down("exited with code 3")
    call = world.call(name)
    call.snapshot = Snapshot(world.snapshot.catalog.without("one"), world.handlers)
    error = body(await world.run(call))
    assert error["code"] == SERVER_UNAVAILABLE
    assert "exited with code 3" in error["message"]
    assert error["data"]["delivery"] == "not_sent"
    assert (await world.run(world.call("two:echo"))).kind is OutcomeKind.RESULT


@pytest.mark.req("F-10")
async def test_a_cancelled_call_leaves_one_event():
    one = quiet()
    world = World(one)
    call = world.call()
    task = world.start(call)
    await turns()
    call.cancel("enough")
    outcome = await asyncio.wait_for(task, BOUND)
    assert outcome.kind is OutcomeKind.CANCELLED
    (event,) = world.sink.calls
    assert (event.outcome_name, event.outcome.delivery) == ("cancelled", "unknown")


@pytest.mark.req("R-ANSWER")
@pytest.mark.parametrize("sink", [MemorySink(), None], ids=["watched", "unwatched"])
async def test_a_fault_of_ours_in_a_stage_becomes_an_answer(sink, caplog):
    async def broken(call):
        raise LookupError("a secret thing")

    world = World(FakeUpstream("one"))
    outcome = await compose(
        [RecordCall(FakeClock(), Deadlines(FakeClock()), [sink] if sink else [])], broken
    )(world.call())
    error = body(outcome)
    assert (error["code"], error["message"]) == (INTERNAL_ERROR, "an internal error of Junction")
    assert "secret" not in error["message"]
    assert "a call failed inside Junction" in caplog.text
    if sink is not None:
        assert [event.outcome_name for event in sink.calls] == ["error"]


@pytest.mark.req("R-ANSWER")
async def test_a_fault_after_the_call_was_sent_says_that_it_may_have_run():
    async def broken(call):
        await world.snapshot.handle(call)
        raise LookupError

    world = World(quiet())
    call = world.call()
    task = world.tasks.spawn(compose([RecordCall(FakeClock(), world.deadlines)], broken)(call))
    await turns()
    call.flight.end(outcomes.result(b"{}"))
    outcome = await asyncio.wait_for(task, BOUND)
    assert outcome.delivery is Delivery.UNKNOWN


async def test_the_time_a_call_took_is_in_its_event():
    one = quiet()
    world = World(one)
    task = world.start(world.call())
    await world.clock.advance(1.5)
    one.wire.flights[0].end(outcomes.result(b"{}"))
    await asyncio.wait_for(task, BOUND)
    assert world.sink.calls[0].seconds == 1.5


async def test_a_call_waits_for_a_supervised_server_that_was_lost_moments_ago():
    one = FakeUpstream(
        "one", connected=False, policy=ConnectPolicy(start_timeout=BOUND, restart=True)
    )
    world = World(one)
    life = world.tasks.spawn(one.run())
    await asyncio.wait_for(one.settled.wait(), BOUND)
    one.wire.lose("it crashed", code=3)
    while one.link is not None:  # noqa: ASYNC110 - no one tells us
        await asyncio.sleep(0)
    outcome = await asyncio.wait_for(world.run(world.call()), BOUND)
    assert outcome.kind is OutcomeKind.RESULT
    assert len(one.links) == 2
    one.stop()
    await asyncio.wait_for(life, BOUND)


async def test_a_call_does_not_go_on_waiting_for_a_server_that_has_failed_for_good():
    one = FakeUpstream("one", script=lambda _: outcomes.refused(b"{}"), connected=False)
    world = World(one)
    task = world.start(world.call())
    await turns()
    await asyncio.wait_for(one.run(), BOUND)
    outcome = await asyncio.wait_for(task, BOUND)  # less than a call may wait
    assert (outcome.code, outcome.delivery) == (SERVER_UNAVAILABLE, Delivery.NOT_SENT)
