"""Calls with an idempotency key: run once, answered alike, whatever happens in between."""

import asyncio
import json
import secrets
from functools import partial
from typing import Any

import pytest
from msgspec import Raw
from tests.calls.governed_world import GovernedWorld
from tests.calls.world import BOUND, body, seen

from mcp_junction.calls.call import NOTHING_CARRIED, Call, Carried
from mcp_junction.calls.methods import address
from mcp_junction.calls.stages.idempotency import RunOnce, settle_resumed
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.eras.resume import ResumedClaims
from mcp_junction.eras.tickets import KEY_BYTES, Seal
from mcp_junction.errors import StoreUnavailable
from mcp_junction.governance.idempotency_claims import IdempotencyClaims
from mcp_junction.policy.decision import PolicyDecision
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.protocol import frames, names
from mcp_junction.protocol.versions import (
    DENIED,
    IDEMPOTENCY_CONFLICT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    SERVER_UNAVAILABLE,
    Era,
)
from mcp_junction.resilience.idempotency import MAX_RESULT
from mcp_junction.resilience.retry import RetryPolicy
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

ELICIT = "elicitation/create"
TOOL_ERROR = b'{"content":[],"isError":true}'
ONCE = RetryPolicy(max_attempts=1)


class OnceWorld(GovernedWorld):
    """A world whose server counts its runs, and answers each with its number."""

    def __init__(self, claims: IdempotencyClaims, era: Era = Era.HANDSHAKE, **more: Any) -> None:
        self.runs = 0
        self.answer = b'{"content":[],"n":%d}'
        self.server = FakeUpstream("one", script=self.script, era=era)
        self.server.refused_eras = {*Era} - {era}
        self.claims = claims
        super().__init__(self.server, idempotency=RunOnce(claims), policy=ONCE, **more)
        self.parts.resume.resumed_claims = ResumedClaims(claims, partial(settle_resumed, claims))
        self.parked_calls._give_claim_up = claims.give_up

    def script(self, flight: Flight) -> Outcome | None:
        self.runs += 1
        text = self.answer % self.runs if b"%d" in self.answer else self.answer
        return outcomes.result(text)

    def make(self, key: str | None = "k", caller: Any = None, **members: Any) -> Call:
        members = {"name": "one:echo", "arguments": {"a": 1}, **members}
        params = frames.members(json.dumps(members).encode())
        caller = caller or self.session
        where = address("tools/call", params)
        call = Call(caller, self.snapshot, "tools/call", where, params, caller)
        call.carried = Carried(idempotency_key=key)
        return call


@pytest.fixture
async def claims(store, opener):
    log = await opener.log(store)
    claims = IdempotencyClaims(store.claims, store.audit, log.writer, FastClock(), 600.0)
    tasks = TaskScope("claims")
    tasks.supervise("claims", claims.run)
    yield claims
    await tasks.close()


class FastClock:
    """The loop's clock, ten times as fast."""

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


@pytest.fixture
async def world(claims) -> OnceWorld:
    return OnceWorld(claims)


def stateless(world: OnceWorld) -> StatelessClient:
    asks = {"elicitation": Raw(b"{}")}
    return StatelessClient(LOCAL_OWNER, EVERYTHING, names.STDIO, asks, Raw(b"{}"))


@pytest.mark.req("REQ-MCP-CALL-003", "F-13")
async def test_fifty_callers_with_one_key_run_it_once_and_get_one_answer(world):
    clients = [world.session, stateless(world)]
    calls = [world.start(world.make(caller=clients[n % 2])) for n in range(50)]
    done = await asyncio.wait_for(asyncio.gather(*calls), BOUND)
    assert world.runs == 1
    assert {bytes(outcome.payload) for outcome in done} == {b'{"content":[],"n":1}'}
    assert {outcome.target for outcome in done} == {"one:echo"}
    assert len(world.claims) == 0


async def test_calls_without_a_key_and_with_another_run(world):
    for key in (None, None, "a", "b"):
        await world.run(world.make(key))
    assert world.runs == 4


@pytest.mark.req("R-IDEMPOTENCY")
async def test_other_arguments_are_refused_and_the_same_in_another_order_are_not(world):
    await world.run(world.make(arguments={"a": 1, "b": 2}))
    again = await world.run(world.make(arguments={"b": 2, "a": 1}))
    assert again.kind is OutcomeKind.RESULT
    refused = await world.run(world.make(arguments={"a": 1, "b": 3}))
    assert (refused.code, refused.delivery) == (IDEMPOTENCY_CONFLICT, Delivery.NOT_SENT)
    assert world.runs == 1


@pytest.mark.req("R-IDEMPOTENCY")
@pytest.mark.parametrize("answer", [TOOL_ERROR, b'{"content":[{"type":"text","text":"x"}]}'])
async def test_the_errors_of_tools_are_kept_too(world, answer):
    world.answer = answer
    first, second = [await world.run(world.make()) for _ in range(2)]
    assert bytes(first.payload) == bytes(second.payload) == answer
    assert world.runs == 1


async def test_the_servers_own_error_is_an_answer(world):
    world.server.wire.script = lambda _: outcomes.refused(b'{"code":-32602,"message":"no"}')
    await world.run(world.make())
    world.server.wire.script = world.script
    again = await world.run(world.make())
    assert (again.kind, again.code, again.delivery) == (OutcomeKind.ERROR, -32602, None)
    assert world.runs == 0


@pytest.mark.req("R-IDEMPOTENCY")
async def test_what_was_not_sent_releases_its_key(world):
    world.server.wire.script = lambda _: outcomes.unavailable("one", "away")
    assert (await world.run(world.make())).delivery is Delivery.NOT_SENT
    world.server.wire.script = world.script
    assert (await world.run(world.make())).kind is OutcomeKind.RESULT


@pytest.mark.req("R-IDEMPOTENCY")
@pytest.mark.parametrize("how", ["lost", "raises", "cancelled"])
async def test_what_may_have_run_is_not_run_again(world, how):
    def script(flight: Flight) -> Outcome | None:
        if how == "raises":
            raise RuntimeError("a fault of ours")
        return None if how == "cancelled" else outcomes.link_lost("one", Delivery.UNKNOWN, "cut")

    world.server.wire.script = script
    running = world.start(call := world.make())
    if how == "cancelled":
        async with asyncio.timeout(BOUND):
            while not world.server.wire.waiting:  # noqa: ASYNC110 - a call on its way
                await asyncio.sleep(0)
        call.cancel("never mind")
    await asyncio.wait_for(running, BOUND)
    world.server.wire.script = world.script
    again = await world.run(world.make())
    assert (again.code, again.delivery) == (INTERNAL_ERROR, Delivery.UNKNOWN)
    assert "may have run" in again.message
    assert world.runs == 0


@pytest.mark.req("R-IDEMPOTENCY")
async def test_a_result_too_large_to_keep_is_answered_once_and_never_run_again(world):
    world.answer = b'{"content":[{"type":"text","text":"' + b"x" * MAX_RESULT + b'"}]}'
    first = await world.run(world.make())
    assert bytes(first.payload) == world.answer
    again = await world.run(world.make())
    assert (again.code, again.delivery) == (INTERNAL_ERROR, Delivery.EXECUTED)
    assert world.runs == 1


async def test_a_key_must_be_printable_and_short_and_arguments_clear(world):
    for key in ("", "x" * 256, "a\nb"):
        refused = await world.run(world.make(key))
        assert (refused.code, refused.delivery) == (INVALID_PARAMS, Delivery.NOT_SENT)
    call = world.make()
    call.params["arguments"] = Raw(b'{"a":1,"a":2}')
    assert (await world.run(call)).code == INVALID_PARAMS
    assert world.runs == 0


async def test_an_agent_does_not_get_what_an_administrator_of_its_name_was_answered(world):
    for number, role in enumerate((Role.ADMIN, Role.AGENT, Role.ADMIN, Role.AGENT), 1):
        session = Session(Principal("x", role), names.STDIO, world.sent.append)
        outcome = await world.run(world.make(caller=session))
        assert body(outcome)["n"] == (number - 1) % 2 + 1
    named = world.make(caller=Session(Principal("boss", Role.ADMIN), names.STDIO, print))
    named.carried = Carried(agent_id="x", idempotency_key="k")
    assert body(await world.run(named))["n"] == 2, "under the agent's name it is the agent's"


async def test_a_call_that_may_only_be_answered_from_its_record_is_never_sent(world):
    call = world.make()
    call.decision = PolicyDecision(True, "grant:g", "", replay_only=True)
    refused = await world.run(call)
    assert (refused.code, refused.delivery) == (DENIED, Delivery.NOT_SENT)
    await world.run(world.make())
    again = world.make()
    again.decision = PolicyDecision(True, "grant:g", "", replay_only=True)
    assert body(await world.run(again))["n"] == 1
    assert world.runs == 1


async def test_who_waits_for_another_call_ends_by_its_own_deadline(world):
    world.server.wire.script = lambda _: None
    first = world.start(world.make())
    second = world.start(waiting := world.make())
    async with asyncio.timeout(BOUND):
        while not world.server.wire.waiting:  # noqa: ASYNC110 - a call on its way
            await asyncio.sleep(0)
    waiting.expire(0.1)
    outcome = await asyncio.wait_for(second, BOUND)
    assert (outcome.delivery, outcome.attempts) == (Delivery.UNKNOWN, 0)
    world.server.wire.waiting[0].end(outcomes.result(b"{}"))
    assert (await asyncio.wait_for(first, BOUND)).kind is OutcomeKind.RESULT


async def test_without_the_store_a_call_with_a_key_is_refused_and_others_go_on(world, monkeypatch):
    async def fail(*_: Any) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(world.claims._table, "make", fail)
    refused = await world.run(world.make())
    assert (refused.code, refused.delivery) == (SERVER_UNAVAILABLE, Delivery.NOT_SENT)
    assert (await world.run(world.make(None))).kind is OutcomeKind.RESULT


# -- eras


@pytest.mark.parametrize("era", Era)
async def test_what_is_kept_has_no_envelope_of_an_era(claims, era):
    world = OnceWorld(claims, era)
    if era is Era.STATELESS:
        world.answer = b'{"resultType":"complete","content":[],"n":%d}'
    told = []
    for caller in (stateless(world), world.session, stateless(world)):
        told.append(await world.run(world.make(caller=caller)))
    assert world.runs == 1
    assert body(told[1]) == {"content": [], "n": 1}
    assert seen(told[0])["resultType"] == seen(told[2])["resultType"] == "complete"
    assert seen(told[2])["n"] == 1


async def suspend(world: OnceWorld, call: Call) -> tuple[Outcome, Flight]:
    """Make a call whose handshake server asks something; the question, and its flight."""
    world.server.wire.script = lambda _: None
    running = world.start(call)
    async with asyncio.timeout(BOUND):
        while not world.server.wire.waiting:  # noqa: ASYNC110 - a call on its way
            await asyncio.sleep(0)
    (flight,) = world.server.wire.waiting
    flight.caller.park(ELICIT, Raw(b'{"message":"who?"}'), lambda _: None)
    asked = await asyncio.wait_for(running, BOUND)
    assert asked.kind is OutcomeKind.SUSPENDED
    return asked, flight


@pytest.mark.req("R-IDEMPOTENCY")
@pytest.mark.parametrize("end", ["resumed", "withdrawn", "expired"])
async def test_a_parked_call_holds_its_key_and_its_end_settles_it(world, end):
    client = stateless(world)
    asked, flight = await suspend(world, world.make(caller=client))
    state = body(asked)["requestState"]
    other = world.start(world.make())
    if end == "resumed":
        replies = {"q1": {"action": "decline"}}
        back = world.make(None, client, requestState=state, inputResponses=replies)
        resumed = world.start(back)
        await world.clock.advance(0)
        flight.end(outcomes.result(b'{"content":[],"n":7}'))
        assert body(await asyncio.wait_for(resumed, BOUND))["n"] == 7
        assert body(await asyncio.wait_for(other, BOUND))["n"] == 7
    else:
        if end == "withdrawn":
            world.parked_calls.withdraw(state, "never mind")
        else:
            await world.clock.advance(601)
            world.parked_calls.sweep()
        outcome = await asyncio.wait_for(other, BOUND)
        assert (outcome.code, outcome.delivery) == (INTERNAL_ERROR, Delivery.UNKNOWN)
    assert len(world.server.wire.flights) == 1


@pytest.mark.req("R-IDEMPOTENCY")
async def test_the_claim_travels_in_the_ticket_of_a_stateless_servers_state(claims):
    world, client = OnceWorld(claims, Era.STATELESS), None
    client = stateless(world)
    world.answer = b'{"resultType":"input_required","inputRequests":{},"requestState":"theirs"}'
    asked = await world.run(world.make(caller=client))
    assert asked.kind is OutcomeKind.SUSPENDED
    world.server.wire.script = lambda _: outcomes.unavailable("one", "away")
    state = body(asked)["requestState"]
    failed = await world.run(world.make(None, client, requestState=state))
    assert failed.delivery is Delivery.NOT_SENT
    other = world.start(world.make())
    world.server.wire.script = world.script
    world.answer = b'{"resultType":"complete","content":[],"n":9}'
    back = await world.run(world.make(None, client, requestState=state))
    assert body(back)["n"] == 9
    assert body(await asyncio.wait_for(other, BOUND))["n"] == 9
    assert world.runs == 2


@pytest.mark.req("R-IDEMPOTENCY")
@pytest.mark.parametrize("state", ["", ',"requestState":null'])
async def test_the_claim_travels_in_a_ticket_of_a_stateless_server_without_a_state(claims, state):
    world = OnceWorld(claims, Era.STATELESS)
    client = stateless(world)
    asks = f'{{"resultType":"input_required","inputRequests":{{"q":{{}}}}{state}}}'
    world.answer = asks.encode()
    asked = await world.run(world.make(caller=client))
    assert asked.kind is OutcomeKind.SUSPENDED
    world.answer = b'{"resultType":"complete","content":[],"n":9}'
    given = {"requestState": body(asked)["requestState"], "inputResponses": {"q": {}}}
    back = world.start(world.make(caller=client, **given))
    assert body(await asyncio.wait_for(back, BOUND))["n"] == 9
    sent = [json.loads(flight.params) for flight in world.server.wire.flights]
    assert [("inputResponses" in one, "requestState" in one) for one in sent] == [
        (False, False),
        (True, False),
    ]
    again = await world.run(world.make(caller=client))
    assert (body(again)["n"], world.runs) == (9, 2)


async def test_a_call_that_takes_nothing_along_gets_no_state_that_its_server_does_not_want(claims):
    world = OnceWorld(claims, Era.STATELESS)
    world.answer = b'{"resultType":"input_required","inputRequests":{"q":{}}}'
    call = world.make(caller=stateless(world))
    call.carried = NOTHING_CARRIED
    asked = await world.run(call)
    assert "requestState" not in body(asked)


@pytest.mark.req("R-IDEMPOTENCY")
async def test_a_call_that_was_resumed_is_waited_for_however_long_it_takes(world, monkeypatch):
    client = stateless(world)
    asked, flight = await suspend(world, world.make(caller=client))
    given = {"requestState": body(asked)["requestState"], "inputResponses": {"q1": {}}}
    resumed = world.start(world.make(caller=client, **given))
    async with asyncio.timeout(BOUND):
        while flight.caller.questions:  # noqa: ASYNC110 - it is being answered
            await asyncio.sleep(0.001)
    now = world.claims._now()
    monkeypatch.setattr(world.claims, "_now", lambda: now + 601)
    other = world.start(world.make())
    flight.end(outcomes.result(b'{"content":[],"n":7}'))
    assert body(await asyncio.wait_for(resumed, BOUND))["n"] == 7
    assert body(await asyncio.wait_for(other, BOUND))["n"] == 7


@pytest.mark.req("R-IDEMPOTENCY")
async def test_a_state_is_good_once_in_all_processes_together(claims):
    keys = [secrets.token_bytes(KEY_BYTES)]
    worlds = [OnceWorld(claims, Era.STATELESS) for _ in range(3)]
    for world in worlds:
        world.parked_calls.seal = Seal(lambda: keys)
        world.answer = b'{"resultType":"input_required","inputRequests":{},"requestState":"theirs"}'
    first = worlds[0]
    asked = await first.run(first.make(caller=stateless(first)))
    state = body(asked)["requestState"]
    for world in worlds:
        world.server.wire.script = lambda _: outcomes.unavailable("one", "away")
    away = await worlds[1].run(worlds[1].make(caller=stateless(worlds[1]), requestState=state))
    assert away.code == SERVER_UNAVAILABLE  # it was not sent, so it may come again
    for world in worlds:
        world.server.wire.script = world.script
        world.answer = b'{"resultType":"complete","content":[],"n":9}'
    calls = [w.start(w.make(caller=stateless(w), requestState=state)) for w in worlds]
    done = await asyncio.wait_for(asyncio.gather(*calls), BOUND)
    assert sorted(outcome.kind.value for outcome in done) == ["error", "error", "result"]
    assert sum(world.runs for world in worlds) == 2
