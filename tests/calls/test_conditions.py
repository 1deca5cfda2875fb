"""Conditions on the path of a call: what is judged is what is sent, or nothing is sent."""

import gc
import json
from weakref import WeakValueDictionary

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.calls.judged_world import ADMIN, AGENT, NOW, JudgedWorld, grant
from tests.calls.test_fallback import REFUSED, FallbackWorld, agent, setting
from tests.calls.test_judge import fails_with
from tests.calls.world import body

from mcp_junction.calls.call import Call
from mcp_junction.calls.methods import address
from mcp_junction.catalog.items import TOOLS
from mcp_junction.policy.conditions import GrantCondition
from mcp_junction.policy.grants import Grant
from mcp_junction.policy.risk import RiskLevel
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.protocol.versions import DENIED, INVALID_PARAMS
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream.outcome import OutcomeKind

PUBLIC = 'args.path.startsWith("/srv/public/")'
OPEN = {"path": "/srv/public/a"}


class Compiled(dict):
    """All conditions, compiled when they are asked for."""

    def get(self, source, default=None):
        return self[source] if source else default

    def __missing__(self, source):
        self[source] = made = GrantCondition(source)
        return made


def make(*grants, tools=("echo", "read_file")):
    one = FakeUpstream("one", tools)
    world = JudgedWorld(one, conditions=Compiled())
    world.one = one
    world.give(*grants)
    return world


async def test_a_call_passes_when_its_arguments_meet_the_condition():
    world = make(grant("echo", when=PUBLIC))
    assert (await world.run(world.ask(arguments=OPEN))).kind is OutcomeKind.RESULT
    message = fails_with(await world.run(world.ask(arguments={"path": "/etc"})), DENIED)
    assert "does not meet the condition" in message
    assert "/etc" not in message
    assert [json.loads(flight.params)["arguments"] for flight in world.one.wire.flights] == [OPEN]


def count_evaluations(condition: GrantCondition) -> list[str]:
    """The evaluations of a condition by its library, from now on."""
    counted = []

    def count(execute):
        def counting(given):
            counted.append(condition.source)
            return execute(given)

        return counting

    condition._execute = count(condition._execute)
    condition._execute_flat = condition._execute_flat and count(condition._execute_flat)
    return counted


@pytest.mark.parametrize(
    ("when", "passing", "failing"),
    [
        ("args.n + 1 > 1", {"n": 1}, {"n": "one"}),
        ("args.n + 1 > 1", {"n": 1}, {"n": 0}),
        ("args.n / args.m == 1", {"n": 1, "m": 1}, {"n": 1, "m": 0}),
        ("args.n + args.m == 2", {"n": 1, "m": 1}, {"n": 1}),
        ("args.n.m + 1 > 1", {"n": {"m": 1}}, {"n": {"m": "one"}}),
        ("args.n.m + 1 > 1", {"n": {"m": 1}}, {"n": "one"}),
        ("args.n[0] + 1 > 1", {"n": [1]}, {"n": []}),
        ("has(args.n) && args.n + 1 > 1", {"n": 1}, {"n": "one"}),
        ("args.n", {"n": True}, {"n": 1}),
    ],
)
async def test_a_condition_is_evaluated_once_for_a_call_whatever_it_comes_to(
    when, passing, failing
):
    world = make(given := grant("echo", when=when))
    counted = count_evaluations(world.policy.of("ann").conditions[given.id])
    for arguments, passes in ((failing, False), (passing, True)) * 2:
        outcome = await world.run(world.ask(arguments=arguments))
        assert (outcome.kind is OutcomeKind.RESULT) is passes
        assert counted == [when]
        counted.clear()


async def test_a_call_denied_at_once_is_told_the_same_as_one_denied_by_all_grants():
    world = make(grant("echo", when=PUBLIC))
    first = await world.run(world.ask(arguments={"path": "/etc"}))
    assert (await world.run(world.ask(arguments=OPEN))).kind is OutcomeKind.RESULT
    again = await world.run(world.ask(arguments={"path": "/etc"}))
    assert body(again) == body(first)
    twice = b'{"name":"one:echo","arguments":{"path":"/srv/public/a","path":"/etc"}}'
    assert "twice" in fails_with(await world.run(world.ask_raw(twice)), INVALID_PARAMS)


async def test_a_call_like_one_that_passed_is_denied_when_the_grant_has_ended():
    world = make(given := grant("echo", when=PUBLIC, expires_at=NOW + 10))
    passing = {"arguments": OPEN}
    for _ in range(2):
        assert (await world.run(world.ask(**passing))).kind is OutcomeKind.RESULT
    world.time = NOW + 10
    assert (await world.run(world.ask(**passing))).kind is not OutcomeKind.RESULT
    world.time = NOW
    assert (await world.run(world.ask(**passing))).kind is OutcomeKind.RESULT
    world.give(replace(given, when='args.path == "/"'))
    message = fails_with(await world.run(world.ask(**passing)), DENIED)
    assert "does not meet the condition" in message  # not that it was revoked meanwhile
    world.give()
    assert (await world.run(world.ask(**passing))).kind is not OutcomeKind.RESULT


async def test_a_call_like_one_that_passed_needs_a_token_when_the_tool_has_become_risky():
    world = make(grant("echo", when=PUBLIC))
    assert (await world.run(world.ask(arguments=OPEN))).kind is OutcomeKind.RESULT
    world.facts.settings.put(ToolSetting("id-one", "echo", risk=RiskLevel.HIGH))
    assert (await world.run(world.ask(arguments=OPEN))).kind is not OutcomeKind.RESULT


async def test_a_call_that_fails_the_condition_of_one_grant_may_pass_by_another():
    either = grant("echo", when=PUBLIC), grant("ech*", when='args.path == "/etc"')
    world = make(*either)
    for path in ("/srv/public/a", "/etc") * 2:
        asked = world.ask(arguments={"path": path})
        assert (await world.run(asked)).kind is OutcomeKind.RESULT
    fails_with(await world.run(world.ask(arguments={"path": "/"})), DENIED)


async def test_calls_of_before_hold_no_condition_that_has_changed_since():
    compiled = WeakValueDictionary()
    world = JudgedWorld(FakeUpstream("one", ("echo", "read_file")), conditions=compiled)
    for tool in ("echo", "read_file"):
        held = compiled[tool] = GrantCondition(f'args.path == "/{tool}"')
        world.give(grant(tool, when=tool))
        del held
        call = world.ask(f"one:{tool}", arguments={"path": f"/{tool}"})
        assert (await world.run(call)).kind is OutcomeKind.RESULT
    gc.collect()
    assert list(compiled) == ["read_file"]


async def test_arguments_with_two_readings_are_refused_as_wrong_not_as_denied():
    world = make(grant("echo", when=PUBLIC))
    raw = b'{"name":"one:echo","arguments":{"path":"/srv/public/a","path":"/etc"}}'
    outcome = await world.run(world.ask_raw(raw))
    assert "twice" in fails_with(outcome, INVALID_PARAMS)
    assert body(outcome)["data"]["errors"]
    assert not world.one.wire.flights


async def test_a_condition_on_request_reads_what_the_call_carries():
    world = make(grant("echo", when='request.ticket_id == "T-1" && request.endpoint == ""'))
    world.session_of(AGENT).client_info = Raw(b'{"name": "c"}')
    assert fails_with(await world.run(world.ask()), DENIED)
    passed = await world.run(world.ask(ticket_id="T-1"))
    assert passed.kind in (OutcomeKind.RESULT, OutcomeKind.ERROR)
    world.give(grant("echo", when='request.client == "c"'))
    assert (await world.run(world.ask())).kind is OutcomeKind.RESULT


async def test_who_acts_for_an_agent_meets_the_conditions_of_that_agent():
    world = make(grant("echo", when=PUBLIC))
    named = world.ask(principal=ADMIN, arguments={"path": "/etc"}, agent_id="ann")
    assert fails_with(await world.run(named), DENIED)
    assert (await world.run(world.ask(principal=ADMIN))).kind is OutcomeKind.RESULT


async def test_completions_and_subscriptions_never_pass_by_a_condition_on_arguments():
    kinds = ("tools", "prompts", "resources")
    world = make(grant("*", when="!has(args.x)", kinds=kinds))
    world.offer(world.one, prompts=[{"name": "p"}], resources=[{"uri": "file:///a", "name": "a"}])
    ref = b'{"ref":{"type":"ref/prompt","name":"one:p"},"argument":{"name":"x","value":""}}'
    assert fails_with(await world.run(world.ask_raw(ref, method="completion/complete")), DENIED)
    uri = world.ask("file:///a", method="resources/subscribe")
    assert fails_with(await world.run(uri), DENIED)
    assert (await world.run(world.ask("one:p", method="prompts/get"))).kind is OutcomeKind.RESULT
    world.give(grant("*", when='tool.kind == "prompts"', kinds=kinds))
    passed = await world.run(world.ask_raw(ref, method="completion/complete"))
    assert passed.kind is OutcomeKind.RESULT


async def test_a_task_never_passes_by_a_condition_on_arguments():
    world = make(grant("echo", when=PUBLIC))
    route = world.snapshot.catalog.view(world.session_of(AGENT).spelling, TOOLS).find("one:echo")
    params = {"taskId": Raw(b'"t"'), "arguments": Raw(json.dumps(OPEN).encode())}
    session = world.session_of(AGENT)
    call = Call(session, world.snapshot, "tasks/get", address("tasks/get", params), params, session)
    call.route, call.origin = route, (route, TOOLS)

    async def following(_):
        raise AssertionError("it was let pass")

    outcome = await world.authorizer.bind_authorize(following)(call)
    assert "arguments" in fails_with(outcome, DENIED)


async def test_a_changed_condition_holds_at_the_next_attempt():
    world = make(given := grant("echo", when=PUBLIC))
    call = world.ask(arguments=OPEN)
    call.route = world.snapshot.catalog.view(call.caller.spelling, TOOLS).find("one:echo")

    async def following(_):
        return None

    assert await world.authorizer.bind_authorize(following)(call) is None
    world.give(Grant(given.id, "ann", "id-one", "echo", when="args.path == 'other'"))
    refusal = world.authorizer.find_refusal(call)
    assert refusal is not None
    assert fails_with(await refusal, DENIED)


@pytest.mark.req("R-FALLBACK")
@pytest.mark.parametrize(("when", "passes"), [("args.q == 1", True), ("args.a == 1", False)])
async def test_a_fallback_is_judged_by_the_arguments_that_it_is_sent(when, passes):
    mapped = setting(("two", "other"), arguments={"q": "/a"})
    world = FallbackWorld(mapped, conditions=Compiled())
    grants = [Grant("g1", "ann", "id-one", "*"), Grant("g2", "ann", "id-two", "*", when=when)]
    world.live.put("ann", grants, [], 0.0)
    world.ends["one"] = REFUSED
    outcome = await world.run(world.make(agent("ann")))
    assert (outcome.kind is OutcomeKind.RESULT) is passes
    assert (world.params["two"] == [{"name": "other", "arguments": {"q": 1}}]) is passes


async def test_arguments_are_read_once_for_condition_and_schema():
    world = make(grant("echo", when=PUBLIC))
    call = world.ask(arguments=OPEN)
    await world.run(call)
    assert call.arguments is not None
    assert call.arguments.value == OPEN
