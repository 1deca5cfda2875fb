"""Fallbacks: which tool is called in place of one that failed, for whom, and what is told of it."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw
from tests.calls.governed_world import GovernedWorld, make_circuits
from tests.calls.world import BOUND, body

from mcp_junction.calls.call import Call, Carried, Handler, Snapshot
from mcp_junction.calls.methods import address
from mcp_junction.calls.pipeline import MethodStage
from mcp_junction.calls.stages.fallback import FallbackCalls
from mcp_junction.calls.stages.judge import Authorizer
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import TOOLS
from mcp_junction.policy.grants import Grant
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.policy.risk import RiskLevel
from mcp_junction.policy.tool_settings import FallbackTarget, ToolSetting
from mcp_junction.protocol import envelope, frames, names
from mcp_junction.protocol.versions import (
    CALL_TIMEOUT,
    LINK_LOST,
    RATE_LIMITED,
    SERVER_UNAVAILABLE,
    Era,
)
from mcp_junction.resilience.retry import RetryPolicy
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.store.store import default_url, open_store
from mcp_junction.telemetry.bus import Bus
from mcp_junction.testing.link import FakeUpstream, catalog_of
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Delivery, Outcome, OutcomeKind

REFUSED = outcomes.unavailable("x", "nobody listens", outcomes.LINK_FAILED)
AWAY = outcomes.unavailable("x", "it is away")
LOST = outcomes.link_lost("x", Delivery.UNKNOWN, "it was cut")
ELICIT = "elicitation/create"
POLICY = RetryPolicy(max_attempts=2, base=0.0)
SERVERS = {"one": "id-one", "two": "id-two", "three": "id-three"}


def done(who: str) -> Outcome:
    return outcomes.result(json.dumps({"content": [], "by": who}).encode())


def setting(*targets: tuple[str, str], arguments: Any = None, **more: Any) -> ToolSetting:
    found = tuple(FallbackTarget(f"id-{key}", name, arguments) for key, name in targets)
    return ToolSetting("id-one", "echo", fallbacks=found, **more)


class FallbackWorld(GovernedWorld):
    """Three servers, each of which ends its calls as it is told."""

    def __init__(
        self,
        *settings: ToolSetting,
        era: Era = Era.HANDSHAKE,
        checks: tuple[Any, ...] = (),
        **more: Any,
    ) -> None:
        self.ends: dict[str, Any] = {key: done(key) for key in SERVERS}
        self.params: dict[str, list[dict[str, Any]]] = {key: [] for key in SERVERS}
        self.servers = {
            key: FakeUpstream(key, ["echo", "other"], self.script(key), era=era) for key in SERVERS
        }
        for server in self.servers.values():
            server.refused_eras = {*Era} - {era}
        self.live = LivePolicy(SERVERS, conditions=more.pop("conditions", {}))
        self.checks = checks
        super().__init__(*self.servers.values(), settings=settings, policy=POLICY, **more)

    def more_stages(self) -> dict[str, Any]:
        authorizer = Authorizer(self.live, self.facts)
        return {
            "authorize": MethodStage(authorizer.bind_authorize),
            "fallback": FallbackCalls(authorizer, self.checks),
            "recheck": MethodStage(authorizer.bind_recheck),
        }

    def script(self, key: str) -> Any:
        def answer(flight: Flight) -> Outcome | None:
            self.params[key].append(json.loads(flight.params))
            end = self.ends[key]
            return end(flight) if callable(end) else end

        return answer

    @property
    def counted(self) -> dict[str, int]:
        return {key: len(params) for key, params in self.params.items() if params}

    def make(self, caller: Any = None, **members: Any) -> Call:
        members = {"name": "one:echo", "arguments": {"a": 1}, **members}
        params = frames.members(json.dumps(members).encode())
        caller, token = caller or self.session, envelope.progress_token(params)
        where = address("tools/call", params)
        return Call(caller, self.snapshot, "tools/call", where, params, caller, token)

    async def flying(self, key: str) -> Flight:
        """Wait for a flight to a server that does not answer."""
        async with asyncio.timeout(BOUND):
            while not self.servers[key].wire.waiting:
                await self.clock.advance(0)
        return self.servers[key].wire.waiting[0]


def agent(name: str) -> Session:
    return Session(Principal(name, Role.AGENT), names.STDIO, lambda _: None)


TWO = setting(("two", "other"))
BOTH = setting(("two", "other"), ("three", "echo"))


@pytest.mark.req("REQ-MCP-CALL-004", "R-FALLBACK")
@pytest.mark.parametrize("end", [REFUSED, AWAY])
async def test_the_target_is_called_after_all_retries_and_named_in_the_outcome(end):
    world = FallbackWorld(TWO)
    world.ends["one"] = end
    outcome = await world.run(call := world.make())
    assert body(outcome)["by"] == "two"
    assert outcome.target == "two:other"
    assert world.counted == {"one": 2 if end is REFUSED else 1, "two": 1}
    assert outcome.attempts == call.attempts == sum(world.counted.values())
    assert world.params["two"] == [{"name": "other", "arguments": {"a": 1}}]
    (ended,) = world.sink.calls
    assert ended.fallback == "two:other"
    assert call.substitute is None


@pytest.mark.req("REQ-MCP-CALL-004")
async def test_targets_are_tried_in_order_and_their_own_fallbacks_are_not_followed():
    chain = ToolSetting("id-two", "other", fallbacks=(FallbackTarget("id-three", "other"),))
    world = FallbackWorld(BOTH, chain)
    world.ends |= {"one": REFUSED, "two": REFUSED}
    assert body(await world.run(world.make()))["by"] == "three"
    assert world.counted == {"one": 2, "two": 2, "three": 1}
    assert [params["name"] for params in world.params["three"]] == ["echo"]


@pytest.mark.req("REQ-MCP-CALL-004")
async def test_arguments_are_mapped_with_numbers_as_they_were_written():
    mapping = {"to": "/deep/0", "limit": {"value": 5}, "absent": "/nothing"}
    world = FallbackWorld(setting(("two", "other"), arguments=mapping))
    world.ends["one"] = AWAY
    call = world.make()
    call.params["arguments"] = Raw(b'{"deep":[12345678901234567890123]}')
    await world.run(call)
    sent = {"to": 12345678901234567890123, "limit": 5}
    assert world.params["two"][0]["arguments"] == sent
    twice = world.make()
    twice.params["arguments"] = Raw(b'{"deep":[1],"deep":[2]}')
    assert (await world.run(twice)).code == SERVER_UNAVAILABLE, "they have two readings"
    assert len(world.params["two"]) == 1


@pytest.mark.req("R-FALLBACK")
@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_after_what_may_have_run_only_for_a_tool_that_may_be_repeated(is_idempotent):
    world = FallbackWorld(setting(("two", "other"), idempotent=is_idempotent))
    world.ends["one"] = LOST
    outcome = await world.run(world.make())
    if is_idempotent:
        assert body(outcome)["by"] == "two"
    else:
        assert (outcome.code, outcome.delivery) == (LINK_LOST, Delivery.UNKNOWN)
        assert world.counted == {"one": 1}


@pytest.mark.req("R-FALLBACK")
async def test_a_target_that_may_have_run_is_the_last_and_the_call_is_never_not_sent():
    world = FallbackWorld(BOTH)
    world.ends |= {"one": REFUSED, "two": LOST}
    outcome = await world.run(world.make())
    assert world.counted == {"one": 2, "two": 1}
    assert (outcome.code, outcome.delivery) == (SERVER_UNAVAILABLE, Delivery.UNKNOWN)
    assert b"not_sent" not in outcome.payload
    assert outcome.attempts == 3


@pytest.mark.parametrize(
    "end",
    [
        outcomes.result(b'{"isError":true}'),
        outcomes.refused(b'{"code":-32602,"message":"no"}'),
        outcomes.failed(-32603, "its answer is damaged", Delivery.EXECUTED),
    ],
)
async def test_an_answer_is_an_answer(end):
    world = FallbackWorld(TWO)
    world.ends["one"] = end
    outcome = await world.run(world.make())
    assert bytes(outcome.payload) == bytes(end.payload)
    assert world.counted == {"one": 1}


async def test_the_error_of_a_target_is_the_answer_and_all_failing_leaves_the_first_error():
    world = FallbackWorld(TWO)
    world.ends |= {"one": AWAY, "two": outcomes.refused(b'{"code":-32602,"message":"no"}')}
    assert (await world.run(world.make())).code == -32602
    world.ends["two"] = REFUSED
    outcome = await world.run(world.make())
    assert (outcome.message, outcome.target) == (AWAY.message, "one:echo")
    assert outcome.delivery is Delivery.NOT_SENT


# -- who may


def grants(world: FallbackWorld, *tools: tuple[str, str], **more: Any) -> Session:
    given = [Grant(f"g{n}", "a", SERVERS[key], name, **more) for n, (key, name) in enumerate(tools)]
    world.live.put("a", given, [], 0.0)
    return agent("a")


@pytest.mark.req("REQ-MCP-CALL-004", "R-FALLBACK")
async def test_a_target_that_the_agent_may_not_call_is_passed_over():
    world = FallbackWorld(BOTH)
    world.ends["one"] = AWAY
    caller = grants(world, ("one", "echo"), ("three", "echo"))
    assert body(await world.run(world.make(caller)))["by"] == "three"
    assert world.counted == {"one": 1, "three": 1}


@pytest.mark.req("R-FALLBACK")
async def test_a_target_that_needs_a_token_which_the_call_lacks_is_passed_over():
    risky = ToolSetting("id-two", "other", risk=RiskLevel.HIGH)
    world = FallbackWorld(BOTH, risky)
    world.ends["one"] = AWAY
    caller = grants(world, ("one", "echo"), ("two", "other"), ("three", "echo"))
    assert body(await world.run(world.make(caller)))["by"] == "three"


async def test_a_target_passes_the_checks_of_a_call_of_its_own():
    async def limit(call: Call, following: Handler) -> Outcome:
        assert call.route is not None
        if call.route.pair.server == "two":
            return outcomes.failed(RATE_LIMITED, "too many", Delivery.NOT_SENT)
        return await following(call)

    world = FallbackWorld(BOTH, checks=(limit,))
    world.ends["one"] = AWAY
    assert body(await world.run(world.make()))["by"] == "three"
    assert world.counted == {"one": 1, "three": 1}


async def test_targets_that_are_not_there_or_are_the_tool_itself_are_passed_over():
    gone = FallbackTarget("id-nobody", "echo")
    targets = (gone, FallbackTarget("id-two", "nothing"), FallbackTarget("id-one", "echo"))
    world = FallbackWorld(ToolSetting("id-one", "echo", fallbacks=targets))
    world.ends["one"] = AWAY
    assert (await world.run(world.make())).code == SERVER_UNAVAILABLE
    assert world.counted == {"one": 1}


# -- circuits


@pytest.mark.req("REQ-MCP-CALL-004", "REQ-MCP-CALL-005")
async def test_an_open_circuit_leads_to_the_target_which_has_its_own(tmp_path, vault):
    async with await open_store(default_url(tmp_path), vault) as store:
        circuits = make_circuits(store, Bus(store.events), threshold=2)
        world = FallbackWorld(TWO, circuits=circuits)
        world.ends["one"] = REFUSED
        for _ in range(3):
            assert body(await world.run(world.make()))["by"] == "two"
        assert world.counted == {"one": 2, "two": 3}
        states = {row.circuit_key: row.state.value for row in circuits.breakers.rows()}
        assert states["id-one:*"] == "OPEN"
        assert states["id-two:*"] == states["id-two:other"] == "CLOSED"


# -- while a target is called


async def test_progress_of_a_target_reaches_the_client_under_its_own_token():
    world = FallbackWorld(TWO)

    def speak(flight: Flight) -> Outcome:
        flight.caller.progress({"progress": Raw(b"1")})
        return LOST

    world.ends |= {"one": AWAY, "two": speak}
    outcome = await world.run(call := world.make(_meta={"progressToken": "mine"}))
    (heard,) = world.told()
    assert heard["params"] == {"progressToken": "mine", "progress": 1}
    assert call.spoke
    assert outcome.delivery is Delivery.UNKNOWN


async def test_after_something_was_relayed_nothing_else_is_called():
    world = FallbackWorld(setting(("two", "other"), idempotent=True))

    def speak(flight: Flight) -> Outcome:
        flight.caller.progress({"progress": Raw(b"1")})
        return LOST

    world.ends["one"] = speak
    await world.run(world.make(_meta={"progressToken": "mine"}))
    assert world.counted == {"one": 1}


@pytest.mark.parametrize("how", ["cancelled", "deadline", "dropped"])
async def test_what_ends_the_call_ends_the_call_of_the_target(how):
    world = FallbackWorld(TWO)
    world.ends |= {"one": AWAY, "two": lambda _: None}
    running = world.start(call := world.make())
    await world.flying("two")
    assert call.delivery is Delivery.UNKNOWN
    if how == "cancelled":
        call.cancel("never mind")
    elif how == "deadline":
        call.expire(1.0)
    else:
        call.drop("the key was revoked")
    outcome = await asyncio.wait_for(running, BOUND)
    assert outcome.delivery is Delivery.UNKNOWN
    assert len(world.servers["two"].wire.cancelled) == 1
    codes = {"cancelled": CALL_TIMEOUT, "deadline": CALL_TIMEOUT, "dropped": SERVER_UNAVAILABLE}
    assert outcome.code == codes[how]


async def test_the_deadline_stands_still_while_a_target_asks_the_client():
    world = FallbackWorld(TWO)
    world.session.capabilities = {"roots": Raw(b"{}")}
    world.ends |= {"one": AWAY, "two": lambda _: None}
    running = world.start(call := world.make())
    flight = await world.flying("two")
    assert not call.is_paused
    asking = world.tasks.spawn(flight.caller.ask("roots/list", Raw(b"{}")))
    await world.clock.advance(0)
    assert call.is_paused
    asking.cancel()
    flight.end(done("two"))
    assert (await asyncio.wait_for(running, BOUND)).kind is OutcomeKind.RESULT
    assert call.spoke


async def test_a_grant_of_the_target_that_is_revoked_meanwhile_is_noticed():
    world = FallbackWorld(TWO)
    world.ends |= {"one": AWAY, "two": lambda _: None}
    caller = grants(world, ("one", "echo"), ("two", "other"))
    running = world.start(call := world.make(caller))
    flight = await world.flying("two")
    authorizer = Authorizer(world.live, world.facts)
    made = call.substitute
    assert authorizer.decide(made, made.route, TOOLS)[1].allowed
    grants(world, ("one", "echo"))
    assert not authorizer.decide(made, made.route, TOOLS)[1].allowed
    flight.end(done("two"))
    await asyncio.wait_for(running, BOUND)


# -- a target that asks a stateless client


def stateless(world: FallbackWorld, principal: Principal = LOCAL_OWNER) -> StatelessClient:
    asks = {"elicitation": Raw(b"{}")}
    return StatelessClient(principal, EVERYTHING, names.STDIO, asks, Raw(b"{}"))


async def test_a_parked_call_of_a_target_is_resumed_there():
    world = FallbackWorld(TWO)
    world.ends |= {"one": AWAY, "two": lambda _: None}
    client = stateless(world)
    running = world.start(world.make(client))
    flight = await world.flying("two")
    flight.caller.park(ELICIT, Raw(b'{"message":"who?"}'), lambda _: None)
    asked = await asyncio.wait_for(running, BOUND)
    assert asked.kind is OutcomeKind.SUSPENDED
    back = world.make(
        client,
        requestState=body(asked)["requestState"],
        inputResponses={"q1": {"action": "decline"}},
    )
    running = world.start(back)
    await world.clock.advance(0)
    assert back.substitute is not None
    assert back.substitute.route.pair == ("two", "other"), "a revocation looks at that"
    flight.end(done("two"))
    outcome = await asyncio.wait_for(running, BOUND)
    assert back.substitute is None
    assert (body(outcome)["by"], outcome.target) == ("two", "two:other")
    assert world.counted == {"one": 1, "two": 1}


async def test_the_state_of_a_stateless_target_goes_back_to_it():
    world = FallbackWorld(setting(("two", "other"), arguments={"b": "/a"}), era=Era.STATELESS)
    asks = b'{"resultType":"input_required","inputRequests":{},"requestState":"theirs"}'
    world.ends |= {"one": AWAY, "two": outcomes.result(asks)}
    client = stateless(world)
    asked = await world.run(world.make(client))
    assert asked.kind is OutcomeKind.SUSPENDED
    world.ends |= {"one": done("one"), "two": done("two")}
    outcome = await world.run(world.make(client, requestState=body(asked)["requestState"]))
    assert (body(outcome)["by"], outcome.target) == ("two", "two:other")
    assert world.params["two"][1]["requestState"] == "theirs"
    assert world.params["two"][1]["arguments"] == {"b": 1}
    assert world.counted == {"one": 1, "two": 2}


async def test_a_call_for_an_agent_falls_back_under_that_agents_grants():
    world = FallbackWorld(BOTH)
    world.ends["one"] = AWAY
    grants(world, ("one", "echo"), ("three", "echo"))
    call = world.make(Session(Principal("boss", Role.ADMIN), names.STDIO, lambda _: None))
    call.carried = Carried(agent_id="a")
    assert body(await world.run(call))["by"] == "three"


async def ask_in_place(world: FallbackWorld, client: StatelessClient) -> str:
    """Have a target in place of ``one`` ask the client; return the state that it is given."""
    asks = b'{"resultType":"input_required","inputRequests":{},"requestState":"theirs"}'
    world.ends |= {"one": AWAY, "two": outcomes.result(asks)}
    asked = await world.run(world.make(client))
    assert asked.kind is OutcomeKind.SUSPENDED
    world.ends |= {"one": done("one"), "two": done("two")}
    state: str = body(asked)["requestState"]
    return state


async def test_the_answers_that_a_stateless_target_wants_without_a_state_go_back_to_it():
    world = FallbackWorld(TWO, era=Era.STATELESS)
    asks = b'{"resultType":"input_required","inputRequests":{"q":{}}}'
    world.ends |= {"one": AWAY, "two": outcomes.result(asks)}
    client = stateless(world)
    asked = await world.run(world.make(client))
    world.ends |= {"one": done("one"), "two": done("two")}
    given = {"requestState": body(asked)["requestState"], "inputResponses": {"q": {"n": 1}}}
    outcome = await world.run(world.make(client, **given))
    assert (body(outcome)["by"], outcome.target) == ("two", "two:other")
    assert world.params["two"][1]["inputResponses"] == {"q": {"n": 1}}
    assert world.counted == {"one": 1, "two": 2}


@pytest.mark.parametrize("why", ["revoked", "unset", "gone"])
async def test_what_a_target_has_asked_is_told_to_no_other_server(why):
    world = FallbackWorld(TWO, era=Era.STATELESS)
    grants(world, ("one", "echo"), ("two", "other"))
    client = stateless(world, Principal("a", Role.AGENT))
    state = await ask_in_place(world, client)
    if why == "revoked":
        grants(world, ("one", "echo"))
    elif why == "unset":
        world.facts.settings.put(setting())
    else:
        world.snapshot = Snapshot(catalog_of(world.servers["one"]), world.handlers)
    outcome = await world.run(world.make(client, requestState=state, inputResponses={"q": {}}))
    assert outcome.kind is OutcomeKind.ERROR
    assert world.counted == {"one": 1, "two": 1}
