"""Grants decide about each call, and about each of its attempts."""

import json

import pytest
from msgspec import Raw
from tests.calls.judged_world import (
    ADMIN,
    AGENT,
    ORCHESTRATOR,
    VIEWER,
    JudgedWorld,
    grant,
    token_of,
)
from tests.calls.judged_world import NOW as JUDGED_AT
from tests.calls.world import body

from mcp_junction.calls.call import NOTHING_CARRIED, Call
from mcp_junction.calls.methods import address
from mcp_junction.catalog.endpoints import EVERYTHING
from mcp_junction.catalog.items import TOOLS
from mcp_junction.eras.tickets import SealedTask
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.policy.risk import RiskLevel
from mcp_junction.policy.tokens import TokenMode
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.protocol import names
from mcp_junction.protocol.versions import DENIED, INVALID_PARAMS, RESOURCE_NOT_FOUND
from mcp_junction.sessions.stateless import StatelessClient
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream.outcome import Delivery, OutcomeKind

HIGH = ToolSetting("id-one", "echo", risk=RiskLevel.HIGH)


def fails_with(outcome, code: int) -> str:
    assert outcome.kind is OutcomeKind.ERROR
    told = body(outcome)
    assert told["code"] == code, told
    assert told["data"]["delivery"] == "not_sent"
    return told["message"]


@pytest.fixture
async def running():
    """Make a World whose agent has some grants."""

    async def make(*grants, tools=("echo", "read_file"), tokens=(), **options):
        one = FakeUpstream("one", tools)
        world = JudgedWorld(one, **options)
        world.one = one
        world.give(*grants, tokens=tokens)
        return world

    return make


# -- what is allowed


REVOKING = {
    "revoked": lambda world: world.give(),
    "expired": lambda world: setattr(world, "time", world.time + 60),
    "unknown": lambda world: world.policy.set_blind(True),
    "high-risk": lambda world: world.facts.settings.put(HIGH),
}


@pytest.mark.parametrize("change", REVOKING.values(), ids=REVOKING)
async def test_a_decision_is_used_again_until_something_changes_it(running, change):
    world = await running(grant("echo", expires_at=JUDGED_AT + 60, token_mode=TokenMode.SINGLE_USE))

    def plain_call() -> Call:
        call = world.ask()
        call.carried = NOTHING_CARRIED
        return call

    calls = [plain_call() for _ in range(4)]
    for call in calls:
        assert (await world.run(call)).kind is OutcomeKind.RESULT
    assert calls[2].decision is calls[3].decision
    assert [call.is_plain for call in calls] == [True] * 4
    change(world)
    assert (await world.run(plain_call())).delivery is Delivery.NOT_SENT
    assert len(world.one.wire.flights) == 4


@pytest.mark.req("REQ-MCP-AUTH-001")
async def test_a_call_that_a_grant_allows_is_made(running):
    world = await running(grant("echo"))
    call = world.ask()
    assert (await world.run(call)).kind is OutcomeKind.RESULT
    assert call.decision.rule.startswith("grant:")
    assert call.facts.target.name == "echo"


@pytest.mark.req("REQ-MCP-AUTH-001")
async def test_what_no_grant_allows_is_refused_as_an_unknown_name_is(running):
    world = await running(grant("read_file"))
    hidden = await world.run(world.ask("one:echo"))
    unknown = await world.run(world.ask("one:none"))
    echoed = bytes(hidden.payload).replace(b"one:echo", b"one:none")
    assert echoed == bytes(unknown.payload)
    assert b"no grant" not in hidden.payload
    assert not world.one.link.flights


@pytest.mark.parametrize("principal", [ADMIN, LOCAL_OWNER], ids=["admin", "owner"])
async def test_owner_and_admin_call_as_themselves_without_grants(running, principal):
    world = await running(settings=(HIGH,))
    assert (await world.run(world.ask(principal=principal))).kind is OutcomeKind.RESULT


@pytest.mark.parametrize("principal", [ADMIN, ORCHESTRATOR], ids=["admin", "orchestrator"])
async def test_who_names_an_agent_calls_under_its_grants(running, principal):
    world = await running(grant("echo"))
    passed = await world.run(world.ask(principal=principal, agent_id="ann"))
    assert passed.kind is OutcomeKind.RESULT
    refused = await world.run(world.ask("one:read_file", principal, agent_id="ann"))
    assert "no grant of agent 'ann' allows it" in fails_with(refused, DENIED)
    nobody = await world.run(world.ask("one:echo", principal, agent_id="unheard-of"))
    assert "'unheard-of'" in fails_with(nobody, DENIED)


@pytest.mark.parametrize(
    ("principal", "named", "words"),
    [
        (ORCHESTRATOR, None, "name one as agent_id"),
        (ORCHESTRATOR, "conductor", "does not call for itself"),
        (VIEWER, None, "the role viewer"),
        (VIEWER, "ann", "the role viewer"),
        (AGENT, "bob", "another agent"),
    ],
)
async def test_a_role_that_may_not_call_so_is_told(running, principal, named, words):
    world = await running(grant("*"), grant("*", agent="bob"))
    call = world.ask(principal=principal, agent_id=named)
    assert words in fails_with(await world.run(call), DENIED)
    assert words in call.denial


async def test_an_agent_may_name_itself(running):
    world = await running(grant("echo"))
    assert (await world.run(world.ask(agent_id="ann"))).kind is OutcomeKind.RESULT


# -- tokens


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_listed_tool_refused_for_its_token_says_so(running):
    given = grant("echo")
    world = await running(given, settings=(HIGH,))
    told = fails_with(await world.run(world.ask()), DENIED)
    assert "high-risk" in told
    assert "have it renewed" in told
    token, _ = token_of(given)
    world.give(given, tokens=(token,))
    assert (await world.run(world.ask())).kind is OutcomeKind.RESULT
    world.time = token.expires_at
    fails_with(await world.run(world.ask()), DENIED)


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_grant_that_wants_its_token_presented_gets_it_from_the_call(running):
    given = grant("echo", token_mode=TokenMode.PRESENT)
    token, text = token_of(given)
    world = await running(given, tokens=(token,), settings=(HIGH,))
    assert "carries no token" in fails_with(await world.run(world.ask()), DENIED)
    assert (await world.run(world.ask(token=text))).kind is OutcomeKind.RESULT


# -- kinds


@pytest.mark.parametrize(
    ("method", "name", "kind", "code"),
    [
        ("prompts/get", "one:hello", "prompts", INVALID_PARAMS),
        ("resources/read", "note://a", "resources", RESOURCE_NOT_FOUND),
        ("resources/subscribe", "note://a", "resources", RESOURCE_NOT_FOUND),
    ],
)
async def test_each_kind_needs_a_grant_of_its_own(running, method, name, kind, code):
    world = await running(grant("*"))
    world.offer(
        world.one, prompts=[{"name": "hello"}], resources=[{"uri": "note://a", "name": "a"}]
    )
    hidden = await world.run(world.ask(name, method=method))
    fails_with(hidden, code)
    world.give(grant("*", kinds=(kind,)))
    assert (await world.run(world.ask(name, method=method))).kind is OutcomeKind.RESULT


async def test_completions_follow_what_they_complete(running):
    world = await running(grant("hello", kinds=("prompts",)))
    world.offer(world.one, prompts=[{"name": "hello"}, {"name": "secret"}])

    def complete(name):
        ref = {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "a", "value": ""}}
        return world.ask_raw(json.dumps(ref).encode(), method="completion/complete")

    assert (await world.run(complete("one:hello"))).kind is OutcomeKind.RESULT
    refused = await world.run(complete("one:secret"))
    unknown = await world.run(complete("one:nosuch"))
    assert bytes(refused.payload).replace(b"secret", b"nosuch") == bytes(unknown.payload)


# -- again before each attempt


class Between:
    """A stage that does something between authorize and the attempt, and calls twice."""

    def __init__(self, act, attempts=1):
        self._act = act
        self._attempts = attempts

    async def __call__(self, call, following):
        if self._attempts == 1:
            self._act()
            return await following(call)
        await following(call)
        self._act()
        return await following(call)


@pytest.mark.req("REQ-MCP-AUTH-001")
@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_grant_revoked_before_an_attempt_ends_the_call(running, attempts):
    world = None
    stage = Between(lambda: world.give(), attempts)
    world = await running(grant("echo"), retry=stage)
    outcome = await world.run(world.ask())
    told = body(outcome)
    assert told["code"] == DENIED
    assert "revoked" in told["message"]
    assert len(world.one.link.flights) == attempts - 1
    assert outcome.delivery is (Delivery.NOT_SENT if attempts == 1 else Delivery.UNKNOWN)


async def test_another_agents_change_does_not_end_a_call(running):
    world = None
    stage = Between(lambda: world.give(agent="bob"))
    world = await running(grant("echo"), retry=stage)
    assert (await world.run(world.ask())).kind is OutcomeKind.RESULT


async def test_a_grant_that_expires_between_two_attempts_ends_the_call(running):
    world = None

    def pass_time():
        world.time += 100

    world = await running(grant("echo", expires_at=1_000_050.0), retry=Between(pass_time, 2))
    assert body(await world.run(world.ask()))["code"] == DENIED
    assert len(world.one.link.flights) == 1


async def test_a_call_that_has_spent_its_token_is_not_asked_for_it_again(running):
    given = grant("echo", token_mode=TokenMode.SINGLE_USE)
    token, text = token_of(given)

    async def admit(call, following):
        used = token_of(given, used_at=world.time)[0]
        world.give(given, tokens=(used,))
        call.intent, call.passed_by = "writer:1", given.id
        return await following(call)

    world = await running(given, tokens=(token,), settings=(HIGH,), admit=admit)
    assert (await world.run(world.ask(token=text))).kind is OutcomeKind.RESULT


# -- for others


async def test_a_fallback_target_is_decided_about_for_the_same_caller(running):
    world = await running(grant("echo"))
    call = world.ask()
    await world.run(call)
    view = world.snapshot.catalog.view(call.caller.spelling, TOOLS)
    other = view.find("one:read_file")
    _, decision = world.authorizer.decide(call, other, TOOLS)
    assert not decision.allowed
    world.give(grant("*"))
    facts, decision = world.authorizer.decide(call, other, TOOLS)
    assert decision.allowed
    assert facts.target.name == "read_file"


# -- what was begun goes on, by the grant that it began with


async def test_another_grant_does_not_carry_on_what_a_revoked_one_began(running):
    given = grant("echo", token_mode=TokenMode.SINGLE_USE)
    other = grant("ech*")  # whose token is not there
    token, text = token_of(given)

    async def admit(call, following):
        world.give(other)
        call.intent, call.passed_by = "writer:1", given.id
        return await following(call)

    world = await running(given, other, tokens=(token,), settings=(HIGH,), admit=admit)
    assert "revoked" in fails_with(await world.run(world.ask(token=text)), DENIED)


def task_call(world, principal, sealed: SealedTask):
    described = {}, Raw(b"{}"), None, world.scopes
    client = StatelessClient(principal, EVERYTHING, names.STDIO, *described)
    name = world.parked_calls.seal.seal_task(sealed, principal, EVERYTHING.name)
    params = {"taskId": Raw(json.dumps(name).encode())}
    target = address("tasks/get", params)
    return Call(client, world.snapshot, "tasks/get", target, params, client)


async def test_a_task_follows_the_grants_of_the_tool_that_made_it(running):
    world = await running(grant("echo"), settings=(HIGH,))
    mine, theirs = (SealedTask("t1", "id-one", "tools", name) for name in ("echo", "read_file"))
    call = task_call(world, AGENT, mine)  # though its grant has no token any more
    outcome = await world.run(call)
    assert call.decision.allowed, outcome
    assert "no such task" in fails_with(await world.run(task_call(world, AGENT, theirs)), -32602)
    world.give()
    assert "no such task" in fails_with(await world.run(task_call(world, AGENT, mine)), -32602)


async def test_an_id_from_before_ids_said_what_made_them_is_for_those_who_may_use_all(running):
    world = await running(grant("*"))
    old = SealedTask("t1", "id-one")
    assert "no such task" in fails_with(await world.run(task_call(world, AGENT, old)), -32602)
    call = task_call(world, ADMIN, old)
    await world.run(call)
    assert call.decision.allowed
