"""Limits in the pipeline: whom they count, and what a caller is told."""

import json

import pytest
from tests.calls.judged_world import ADMIN, AGENT, JudgedWorld, grant
from tests.calls.world import body

from mcp_junction.calls.methods import OF_TASKS
from mcp_junction.calls.stages.limit import LimitCalls
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.eras.tickets import SealedTask, server_ref
from mcp_junction.governance.call_limits import CallLimits
from mcp_junction.governance.governance import buckets_of
from mcp_junction.policy.grants import KINDS, CallLimit
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol.versions import RATE_LIMITED
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream.outcome import OutcomeKind

RESULT = OutcomeKind.RESULT


@pytest.fixture
def world():
    def make(**rates) -> JudgedWorld:
        limits = CallLimits(
            **{name: buckets_of(rate) for name, rate in rates.items()}, now=lambda: made.time
        )
        one = FakeUpstream("one", ("echo", "look"))
        made = JudgedWorld(one, limit=LimitCalls(limits))
        made.one = one
        made.give(grant("*"))
        return made

    return make


@pytest.mark.req("J-LIMIT")
async def test_a_call_too_many_is_told_how_long_to_wait(world):
    made = world(agents="1/10")
    assert (await made.run(made.ask())).kind is RESULT
    outcome = await made.run(made.ask())
    told = body(outcome)
    assert told["code"] == RATE_LIMITED
    assert told["data"]["delivery"] == "not_sent"
    assert told["data"]["retry_after_ms"] == 10_000
    assert "the agent" in told["message"]
    assert "again in 10 s" in told["message"]
    assert len(made.one.wire.flights) == 1
    made.time += 10
    assert (await made.run(made.ask())).kind is RESULT


@pytest.mark.req("J-LIMIT")
async def test_the_owner_has_no_limits(world):
    made = world(agents="1/10", servers="1/10", tools="1/10")
    for _ in range(5):
        assert (await made.run(made.ask(principal=LOCAL_OWNER))).kind is RESULT


async def test_calls_for_a_named_agent_count_for_that_agent(world):
    made = world(agents="1/10")
    made.give(grant("*", agent="bob"), agent="bob")
    assert (await made.run(made.ask(principal=ADMIN, agent_id="ann"))).kind is RESULT
    assert body(await made.run(made.ask()))["code"] == RATE_LIMITED
    assert (await made.run(made.ask(principal=ADMIN, agent_id="bob"))).kind is RESULT


async def test_what_is_refused_before_counts_nothing(world):
    made = world(agents="1/10")
    for _ in range(3):
        await made.run(made.ask("one:none"))
    assert (await made.run(made.ask())).kind is RESULT


async def test_the_grant_whose_limit_has_room_is_the_calls(world):
    made = world()
    scarce, free = grant("echo", limits=CallLimit(1, 60)), grant("look")
    made.give(scarce, free)
    call = made.ask()
    assert (await made.run(call)).kind is RESULT
    assert call.grant is scarce
    assert body(await made.run(made.ask()))["data"]["limit"] == f"grant {scarce.id}"
    assert (await made.run(made.ask("one:look"))).kind is RESULT


async def test_a_continued_call_is_not_counted_again(world):
    made = world(agents="1/10")
    await made.run(made.ask())
    call = made.ask()
    call.is_resume = True
    assert (await made.run(call)).kind is RESULT


@pytest.mark.parametrize("method", [*sorted(OF_TASKS), "resources/unsubscribe"])
async def test_what_belongs_to_a_call_that_was_counted_meets_rates_alone(world, method):
    made = world(agents="3/10")
    made.offer(made.one, tools=[{"name": "echo"}], resources=[{"uri": "file:///a"}])
    made.give(grant("*", kinds=KINDS, limits=CallLimit(1, 3600)))
    assert (await made.run(made.ask())).kind is RESULT
    assert body(await made.run(made.ask()))["code"] == RATE_LIMITED
    if method in OF_TASKS:
        task = SealedTask("1", server_ref(made.one.definition), "tools", "echo")
        sealed = made.parked_calls.seal.seal_task(task, AGENT, EVERYTHING.name)
        params = {"taskId": sealed}
    else:
        params = {"uri": "file:///a"}
    text = json.dumps(params).encode()
    codes = [body(await made.run(made.ask_raw(text, method=method))).get("code") for _ in range(3)]
    assert RATE_LIMITED not in codes[:2]
    assert codes[2] == RATE_LIMITED
