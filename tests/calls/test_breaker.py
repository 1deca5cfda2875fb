"""Circuits at run time: who is let through, what is counted, and that everybody leaves."""

import asyncio
import json

import pytest
from tests.calls.governed_world import GovernedWorld, make_circuits
from tests.calls.world import BOUND, body

from mcp_junction.calls.call import Carried
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol import names
from mcp_junction.protocol.versions import CIRCUIT_OPEN, LINK_LOST
from mcp_junction.resilience.retry import RetryPolicy
from mcp_junction.sessions.session import Session
from mcp_junction.store.store import default_url, open_store
from mcp_junction.telemetry.bus import Bus
from mcp_junction.testing.link import FakeUpstream, echo, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, OutcomeKind

LOST = outcomes.link_lost("one", Delivery.UNKNOWN, "it was cut")
LATE = outcomes.timed_out("one", Delivery.UNKNOWN, 1.0)
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
async def circuits(tmp_path, vault):
    async with await open_store(default_url(tmp_path), vault) as store:
        yield make_circuits(store, Bus(store.events), threshold=3)


def states(circuits) -> dict[str, str]:
    return {row.tool_name: row.state.value for row in circuits.breakers.rows()}


async def fail(world: GovernedWorld, times: int, **more) -> None:
    for _ in range(times):
        await world.run(world.call(**more))


@pytest.mark.req("REQ-MCP-CALL-005", "R-BREAKER")
async def test_a_tool_that_keeps_timing_out_is_given_a_rest(circuits):
    server = FakeUpstream("one", ["echo", "other"], script=lambda _: LATE)
    world = GovernedWorld(server, circuits=circuits, policy=ONCE)
    await fail(world, 3)
    refused = await world.run(world.call())
    data = body(refused)["data"]
    assert (refused.code, refused.delivery) == (CIRCUIT_OPEN, Delivery.NOT_SENT)
    assert data["retry_after_ms"] == 60_000
    assert (data["server"], data["tool"], data["delivery"]) == ("one", "echo", "not_sent")
    assert "60 s" in data["hint"]
    assert len(server.wire.flights) == 3
    server.wire.script = echo
    assert (await world.run(world.call("one:other"))).kind is OutcomeKind.RESULT
    assert states(circuits) == {"*": "CLOSED", "echo": "OPEN", "other": "CLOSED"}


@pytest.mark.req("R-BREAKER")
async def test_lost_links_open_the_whole_server_for_every_method(circuits):
    server = FakeUpstream("one", ["echo", "other"], script=lambda _: LOST)
    world = GovernedWorld(server, circuits=circuits, policy=ONCE)
    await fail(world, 3)
    refused = await world.run(world.call("one:other"))
    assert (refused.code, body(refused)["data"]["tool"]) == (CIRCUIT_OPEN, "*")


@pytest.mark.req("REQ-MCP-CALL-005")
async def test_after_the_rest_a_few_calls_test_it_and_close_it(circuits):
    server = FakeUpstream("one", script=lambda _: LATE)
    world = GovernedWorld(server, circuits=circuits, policy=ONCE)
    await fail(world, 3)
    server.wire.script = silence
    await world.clock.advance(60.0)
    testing = [world.start(world.call()) for _ in range(4)]
    await world.clock.advance(0)
    assert [running.done() for running in testing] == [False, False, False, True]
    assert testing[3].result().code == CIRCUIT_OPEN
    for flight in server.wire.waiting:
        flight.end(outcomes.result(b"{}"))
    await asyncio.wait_for(asyncio.wait(testing[:3]), BOUND)
    assert states(circuits)["echo"] == "CLOSED"


@pytest.mark.req("R-BREAKER")
@pytest.mark.parametrize("how", ["cancelled", "raises", "task cancelled"])
async def test_an_attempt_that_is_abandoned_leaves_its_circuit(circuits, how):
    def answer(flight):
        if how == "raises":
            raise RuntimeError("a fault of ours")

    server = FakeUpstream("one", script=lambda _: LATE)
    world = GovernedWorld(server, circuits=circuits, policy=ONCE)
    await fail(world, 3)
    server.wire.script = answer
    await world.clock.advance(60.0)
    for _ in range(10):  # more than it admits at once
        running = world.start(call := world.call())
        await world.clock.advance(0)
        if how == "cancelled":
            call.cancel("never mind")
        elif how == "task cancelled":
            running.cancel()
        await asyncio.wait({running}, timeout=BOUND)
    server.wire.script = echo
    for _ in range(3):
        assert (await world.run(world.call())).kind is OutcomeKind.RESULT
    assert states(circuits)["echo"] == "CLOSED"


@pytest.mark.req("R-BREAKER")
async def test_one_agent_alone_does_not_close_a_tool_to_the_others(circuits):
    server = FakeUpstream("one", script=lambda _: LATE)
    world = GovernedWorld(server, circuits=circuits, policy=ONCE)
    admin = Session(Principal("root", Role.ADMIN), names.STDIO, world.sent.append)

    async def call(agent: str) -> int:
        made = world.call()
        made.caller = admin
        made.carried = Carried(agent_id=agent)
        return (await world.run(made)).code

    server.wire.script = echo
    await call("well")
    server.wire.script = lambda _: LATE
    for _ in range(20):
        assert await call("broken") != CIRCUIT_OPEN
    await call("well")
    await call("well")
    assert states(circuits)["echo"] == "OPEN"


@pytest.mark.req("R-BREAKER")
@pytest.mark.parametrize("end", ["caller's deadline", "tool error", "parameters", "away"])
async def test_what_says_nothing_against_a_server_is_not_counted(circuits, end):
    ends = {
        "caller's deadline": outcomes.timed_out(
            "one", Delivery.UNKNOWN, 0.1, outcomes.CALLER_DEADLINE
        ),
        "tool error": outcomes.result(b'{"isError":true}'),
        "parameters": outcomes.refused(b'{"code":-32602,"message":"no"}'),
        "away": outcomes.unavailable("one", "it is down"),
    }
    server = FakeUpstream("one", script=lambda _: ends[end])
    world = GovernedWorld(server, circuits=circuits, policy=ONCE)
    await fail(world, 10)
    assert set(states(circuits).values()) == {"CLOSED"}


@pytest.mark.req("REQ-MCP-CALL-005")
async def test_a_retry_that_meets_an_open_circuit_ends_with_what_opened_it(circuits):
    server = FakeUpstream("one", script=lambda _: outcomes.link_lost("one", Delivery.NOT_SENT, "x"))
    world = GovernedWorld(server, circuits=circuits, policy=RetryPolicy(base=0.0, max_attempts=9))
    outcome = await world.run(world.call())
    assert (outcome.code, outcome.attempts) == (LINK_LOST, 3)
    assert (await world.run(world.call())).code == CIRCUIT_OPEN


async def test_arguments_and_names_of_callers_make_no_circuits(circuits):
    server = FakeUpstream("one")
    world = GovernedWorld(server, circuits=circuits)
    for number in range(50):
        await world.run(world.call(f"one:unknown{number}"))
        await world.run(world.call(arguments=json.loads(f'{{"n":{number}}}')))
    assert set(states(circuits)) == {"*", "echo"}
