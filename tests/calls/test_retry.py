"""Retries at run time: what is made again, when, and what the call is told to be in the end."""

import asyncio

import pytest
from tests.calls.governed_world import GovernedWorld, allow_repeating
from tests.calls.world import BOUND

from mcp_junction.protocol.versions import CALL_TIMEOUT, SERVER_UNAVAILABLE
from mcp_junction.resilience.failures import Failure, FailureKind
from mcp_junction.resilience.retry import RetryPolicy
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.link import FakeUpstream, silence
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

LOST = outcomes.link_lost("one", Delivery.UNKNOWN, "it was cut")
REFUSED = outcomes.unavailable("one", "nobody listens", outcomes.LINK_FAILED)
LIMITED = outcomes.failed(
    -32603, "429", Delivery.NOT_SENT, failure=Failure(FailureKind.RATE_LIMITED, retry_after=7.0)
)
FORGOTTEN = outcomes.failed(
    -32603, "404", Delivery.NOT_SENT, failure=Failure(FailureKind.SESSION_LOST)
)
BUSY = outcomes.failed(
    -32603, "503", Delivery.UNKNOWN, failure=Failure(FailureKind.BUSY, retry_after=2.0)
)
DONE = outcomes.result(b'{"content":[]}')


class Server(FakeUpstream):
    """A server that ends its calls as it is told, one after the other."""

    def __init__(self, *ends: Outcome, **more) -> None:
        self.ends = list(ends)
        super().__init__("one", script=lambda _: self.ends.pop(0), **more)


async def run(world: GovernedWorld, call=None, seconds: float = 60.0) -> Outcome:
    running = world.start(call or world.call())
    await world.clock.advance(seconds)
    return await asyncio.wait_for(running, BOUND)


@pytest.mark.req("REQ-MCP-CALL-002", "R-RETRY")
@pytest.mark.parametrize("ends", [(REFUSED, REFUSED), (REFUSED, LIMITED), (LIMITED, REFUSED)])
async def test_what_was_not_sent_or_refused_before_it_ran_is_made_again(ends):
    server = Server(*ends, DONE)
    outcome = await run(GovernedWorld(server))
    assert (outcome.kind, outcome.attempts) == (OutcomeKind.RESULT, 3)
    assert outcome.target == "one:echo"


@pytest.mark.req("R-RETRY")
@pytest.mark.parametrize("ends", [(LIMITED, LIMITED), (LIMITED, FORGOTTEN), (FORGOTTEN, LIMITED)])
async def test_refusals_are_believed_once_for_a_tool_that_must_not_run_twice(ends):
    server = Server(*ends, DONE)
    outcome = await run(GovernedWorld(server))
    assert (outcome.delivery, outcome.attempts) == (Delivery.NOT_SENT, 2)
    again = await run(GovernedWorld(Server(LIMITED, LIMITED, DONE), settings=(allow_repeating(),)))
    assert (again.kind, again.attempts) == (OutcomeKind.RESULT, 3)


@pytest.mark.req("R-RETRY")
@pytest.mark.parametrize("end", [LOST, BUSY])
async def test_what_may_have_run_is_made_again_only_for_a_tool_that_allows_it(end):
    server = Server(end, DONE)
    outcome = await run(GovernedWorld(server))
    assert (outcome.delivery, outcome.attempts) == (Delivery.UNKNOWN, 1)
    again = await run(GovernedWorld(Server(end, DONE), settings=(allow_repeating(),)))
    assert (again.kind, again.attempts) == (OutcomeKind.RESULT, 2)


@pytest.mark.req("REQ-MCP-CALL-002")
async def test_it_waits_half_a_second_then_one_and_gives_up_after_three():
    world = GovernedWorld(Server(REFUSED, REFUSED, REFUSED, DONE))
    running = world.start(world.call())
    for seconds, made in ((0.0, 1), (0.49, 1), (0.01, 2), (0.99, 2), (0.01, 3)):
        await world.clock.advance(seconds)
        assert len(world.snapshot.catalog.offering("one").upstream.wire.flights) == made
    outcome = await asyncio.wait_for(running, BOUND)
    assert (outcome.code, outcome.attempts) == (SERVER_UNAVAILABLE, 3)
    assert outcome.delivery is Delivery.NOT_SENT


@pytest.mark.req("REQ-MCP-CALL-002")
async def test_it_waits_as_long_as_the_server_asks():
    world = GovernedWorld(server := Server(LIMITED, DONE))
    running = world.start(world.call())
    await world.clock.advance(6.9)
    assert len(server.wire.flights) == 1
    await world.clock.advance(0.2)
    assert (await asyncio.wait_for(running, BOUND)).kind is OutcomeKind.RESULT


@pytest.mark.req("R-RETRY")
@pytest.mark.parametrize("last", [REFUSED, LIMITED])
async def test_a_call_that_may_have_run_never_ends_as_not_sent(last):
    world = GovernedWorld(Server(LOST, last, last), settings=(allow_repeating(),))
    outcome = await run(world)
    assert (outcome.code, outcome.delivery) == (last.code, Delivery.UNKNOWN)
    assert outcome.attempts == 3
    assert b'"delivery":"unknown"' in outcome.payload
    assert b"not_sent" not in outcome.payload


@pytest.mark.req("R-RETRY")
async def test_a_server_that_refuses_without_running_is_believed_where_the_operator_says_so():
    server = Server(BUSY, DONE)
    server.definition = server.definition._replace(trust_retry_after=True)
    outcome = await run(GovernedWorld(server))
    assert (outcome.kind, outcome.attempts) == (OutcomeKind.RESULT, 2)


@pytest.mark.req("R-RETRY")
async def test_nothing_is_made_again_once_something_was_relayed():
    def speak(flight):
        flight.caller.progress({"progress": b"1"})
        return LOST

    world = GovernedWorld(
        server := FakeUpstream("one", script=speak), settings=(allow_repeating(),)
    )
    outcome = await run(world, world.call(_meta={"progressToken": 1}))
    assert (outcome.attempts, outcome.delivery) == (1, Delivery.UNKNOWN)
    assert len(server.wire.flights) == 1


@pytest.mark.req("R-RETRY")
async def test_a_resumed_call_is_not_made_again():
    world = GovernedWorld(Server(REFUSED, DONE))
    call = world.call()
    call.is_resume = True
    assert (await run(world, call)).attempts == 1


@pytest.mark.req("R-RETRY")
async def test_it_is_not_made_again_when_its_deadline_comes_first():
    world = GovernedWorld(Server(REFUSED, DONE))
    call = world.call()
    call.timeout = 0.4
    assert (await run(world, call, seconds=0.0)).attempts == 1


@pytest.mark.parametrize("first", [REFUSED, LOST])
async def test_a_call_that_is_cancelled_while_it_waits_ends_at_once(first):
    world = GovernedWorld(server := Server(first, DONE), settings=(allow_repeating(),))
    running = world.start(call := world.call())
    await world.clock.advance(0.1)
    call.cancel("never mind")
    outcome = await asyncio.wait_for(running, BOUND)
    assert (outcome.kind, outcome.delivery) == (OutcomeKind.CANCELLED, first.delivery)
    assert (outcome.attempts, len(server.wire.flights)) == (1, 1)


async def test_a_deadline_that_ends_it_while_it_waits_tells_what_may_have_run():
    world = GovernedWorld(Server(LOST, REFUSED, DONE), settings=(allow_repeating(),))
    scope = TaskScope("sweep")
    scope.spawn(world.deadlines.run())
    call = world.call()
    call.timeout = 2.0
    running = world.start(call)
    await world.clock.advance(0.6)
    call.deadline = 0.7  # as if the client had been asked before
    await world.clock.advance(0.3)
    outcome = await asyncio.wait_for(running, BOUND)
    assert (outcome.code, outcome.delivery) == (CALL_TIMEOUT, Delivery.UNKNOWN)
    assert outcome.attempts == 2
    await scope.close()


@pytest.mark.req("R-RETRY")
async def test_a_tool_whose_time_is_over_is_tried_again_only_if_it_may_be():
    for settings, attempts in (((), 1), ((allow_repeating(),), 3)):
        server = FakeUpstream("one", script=silence, timeout_ms=1000)
        world = GovernedWorld(server, settings=settings)
        scope = TaskScope("sweep")
        scope.spawn(world.deadlines.run())
        outcome = await run(world)
        assert (outcome.code, outcome.attempts) == (CALL_TIMEOUT, attempts)
        assert len(server.wire.cancelled) == attempts
        await scope.close()


@pytest.mark.req("R-RETRY")
async def test_an_outage_does_not_double_the_load():
    server = FakeUpstream("one", script=lambda _: REFUSED)
    world = GovernedWorld(server, policy=RetryPolicy(base=0.0))
    for _ in range(100):
        await run(world, seconds=0.0)
    assert len(server.wire.flights) == 100 + 10 + 10  # ten seconds saved, and a tenth of the calls


async def test_a_server_that_is_away_is_not_asked_again():
    server = FakeUpstream("one", connected=False)
    server.stop()
    world = GovernedWorld(server)
    outcome = await run(world)
    assert (outcome.code, outcome.attempts) == (SERVER_UNAVAILABLE, 0)


@pytest.mark.req("R-RETRY")
async def test_no_link_replays_a_call_by_itself():
    def refuse(flight):
        assert not flight.caller.can_replay, "so that it is sent three times at most"
        return REFUSED

    outcome = await run(GovernedWorld(FakeUpstream("one", script=refuse)))
    assert outcome.attempts == 3


@pytest.mark.parametrize(("method", "attempts"), [("prompts/get", 2), ("tasks/update", 1)])
async def test_prompts_may_be_made_again_and_updates_of_tasks_may_not(method, attempts):
    world = GovernedWorld(Server(LOST, DONE))
    call = world.call()
    view = world.snapshot.catalog.view(world.session.spelling)
    call.method, call.route = method, view.find("one:echo")
    running = world.tasks.spawn(world.parts.governed.retry.bind(world.handlers["tools/call"])(call))
    await world.clock.advance(60.0)
    assert (await asyncio.wait_for(running, BOUND)).attempts == attempts
