"""Conditions of grants: what they mean, what they are given, and what they must not cost."""

import json
import time
from datetime import UTC, datetime

import msgspec
import pytest
from tests.policy.cel_reference import Dice, evaluate, write
from tests.policy.deciding import decide

from mcp_junction.errors import ArgumentsError, ConditionError
from mcp_junction.policy.arguments import Arguments, read_arguments
from mcp_junction.policy.cel_syntax import MAX_SOURCE, find_reads, parse_condition
from mcp_junction.policy.condition_values import MAX_READ
from mcp_junction.policy.conditions import GrantCondition
from mcp_junction.policy.decision import CallTarget
from mcp_junction.policy.explanation import explain
from mcp_junction.policy.grant_set import GrantSet, GrantsInForce
from mcp_junction.policy.grants import Grant
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.risk import assess
from mcp_junction.policy.simple_conditions import flatten_reads
from mcp_junction.policy.tokens import NONE

NOW = 1_800_000_000.0
AGENT = Principal("ann", Role.AGENT)
READ = CallTarget("s1", "read", risk=assess("read"), server="files")
PUBLIC = 'args.path.startsWith("/srv/public/")'


class Facts:
    """What a condition reads, given by a test."""

    def __init__(self, arguments: Arguments | None = None, **fields: dict) -> None:
        self.arguments = arguments
        self.fields = fields
        self.asked: list[str] = []

    def read_arguments(self):
        self.asked.append("args")
        return self.arguments

    def read_field(self, root, name):
        self.asked.append(f"{root}.{name}")
        return self.fields.get(root, {}).get(name)


class Asked:
    """A call, as the policy reads it."""

    def __init__(self, raw: bytes = b"{}", **fields: str) -> None:
        self.raw, self.fields = raw, fields

    def read_arguments(self):
        return read_arguments(self.raw)

    def read_field(self, name):
        return self.fields.get(name)

    def read_claims(self):
        return {"team": "blue"}


def failure(source: str, args: object = None, **fields) -> str | None:
    raw = args if isinstance(args, bytes) else json.dumps(args or {}).encode()
    return GrantCondition(source).find_failure(Facts(read_arguments(raw), **fields), NOW)


def granted(*whens: str, agent_type: str = "", **more) -> GrantSet:
    grants = [
        Grant(f"g{n}", "ann", "s1", "*", when=when, token_mode=NONE, **more)
        for n, when in enumerate(whens)
    ]
    conditions = {when: GrantCondition(when) for when in whens if when}
    return GrantSet("ann", grants, 1, conditions, agent_type, {"files": "s1"})


@pytest.mark.bulk
@pytest.mark.req("P-1")
def test_100_000_random_conditions_decide_as_a_slow_evaluator_does():
    dice = Dice(20)
    calls = [dice.arguments() for _ in range(200)]
    facts = [Facts(read_arguments(json.dumps(one).encode())) for one in calls]
    passed = 0
    for _ in range(500):
        tree = dice.condition()
        condition = GrantCondition(write(tree))
        for args, given in zip(calls, facts, strict=True):
            is_met = condition.find_failure(given, NOW) is None
            assert is_met is (evaluate(tree, args) is True), (write(tree), args)
            passed += is_met
    assert 5_000 < passed < 95_000


@pytest.mark.parametrize(
    ("source", "args", "expected"),
    [
        (PUBLIC, {"path": "/srv/public/a"}, True),
        (PUBLIC, {"path": "/etc/passwd"}, False),
        (PUBLIC, {}, False),
        (PUBLIC, {"path": 3}, False),
        ("args.n < 10", {"n": 9.5}, True),
        ("0 - args.n < 100", {"n": 5}, True),
        ("0 - args.n < 100", {"n": -(2**63)}, False),
        ("args.n < 10", {"n": "9"}, False),
        ("args.n", {"n": "true"}, False),
        ("args.n", {"n": 1}, False),
        ("args.n", {"n": True}, True),
        ("!has(args.force) || args.force == false", {}, True),
        ("!has(args.force) || args.force == false", {"force": True}, False),
        ('args.to.all(a, a.endsWith("@example.org"))', {"to": ["x@example.org"]}, True),
        ('args.to.all(a, a.endsWith("@example.org"))', {"to": ["x@example.org", "y@z"]}, False),
        ('args["a-b"] == "x" && args.o.p[0] == 1', {"a-b": "x", "o": {"p": [1]}}, True),
        ("now.getHours() >= 8 && now > timestamp('2020-01-01T00:00:00Z')", {}, True),
    ],
)
def test_a_condition_is_met_when_it_is_true_and_only_then(source, args, expected):
    assert (failure(source, args) is None) is expected


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (b'{"n": 9223372036854775808}', "64 bits"),
        (b'{"n": -9223372036854775809}', "64 bits"),
        (b'{"n": {"deep": [18446744073709551615]}}', "64 bits"),
        (b'{"n": 1e400}', "64 bits"),
        (json.dumps({"n": "x" * (MAX_READ + 1)}).encode(), "64 KiB"),
        (json.dumps({"n": "é" * (MAX_READ // 2 + 1)}).encode(), "64 KiB"),
        (json.dumps({"n": ["x" * 1_000] * 70}).encode(), "64 KiB"),
    ],
)
def test_numbers_that_cel_has_not_and_large_arguments_deny(args, why):
    assert why in failure("has(args.n)", args)
    assert failure("!has(args.m)", args) is None  # what it does not read does not matter


def test_a_condition_is_given_only_what_it_refers_to():
    condition = GrantCondition('args.a.b == 1 && args.c == 2 && agent.id == "ann"')
    facts = Facts(read_arguments(b'{"a": {"b": 1, "x": 2}, "c": 2, "d": 1e999}'))
    given, _ = condition._gather(facts, NOW)
    assert given == {"args": {"a": {"b": 1}, "c": 2}, "agent": {}}
    assert facts.asked == ["args", "agent.id"]
    whole = GrantCondition('args.a == 1 || args.a.b == 1 || "d" in args')
    facts = Facts(read_arguments(b'{"a": {"b": 1, "x": 2}, "c": 2}'))
    assert whole._gather(facts, NOW)[0] == {"args": {"a": {"b": 1, "x": 2}, "c": 2}}
    assert GrantCondition("now > now")._gather(facts, NOW)[0] == {
        "now": datetime.fromtimestamp(NOW, UTC)
    }


@pytest.mark.parametrize(
    ("source", "place", "words"),
    [
        ("args.path ==", 12, "not expected"),
        ("arg.path == 1", 0, "not known"),
        ("agent.name == 'x'", 0, "agent.name"),
        ("request.ip == 'x'", 0, "request.ip"),
        ("args.a.matches('x+')", 7, "matches"),
        ("args.a.all(x, x.exists(y, y))", 16, "only one"),
        ("args.a.all(args, true)", 11, "taken"),
        ("has(args)", 4, "has takes"),
        ("-args.n < 100", 0, "0 - x"),  # -(-2**63) is -2**63 in the library
        ("1 - -args.n < 100", 4, "0 - x"),
        ("duration(args.d) < duration('1s')", 9, "duration takes a text"),
        ("args.x == 99999999999999999999", 10, "64 bits"),
        ("args.x == 1u", 10, "cannot be read"),
        ("args.x == b'a'", 10, "cannot be read"),
        ("args.x == r'a'", 10, "cannot be read"),
        ("args.x == '''a'''", 10, "cannot be read"),
        ("args.x // 1", 8, "not expected"),
        ("args.x == '\\ud800'", 10, "cannot be read"),
        ("eval(args.x)", 0, "no function"),
        ("args.x.eval()", 7, "no function"),
        ("(" * 200 + "1" + ")" * 200, 16, "deep"),
        ("+".join(["1"] * 100), 0, "deep"),
        ("args" + ".a" * 100, 0, "deep"),
        ("true ? 1 : " * 50 + "1", 176, "deep"),
        ("!!true", 1, "two signs"),
        ("", 0, "the end"),
        ("'" + "x" * MAX_SOURCE + "'", 0, "2048 bytes"),
        ("[" * 125, 16, "deep"),
    ],
)
def test_what_could_take_long_or_is_not_known_is_refused_with_its_place(source, place, words):
    with pytest.raises(ConditionError, match=words) as refused:
        GrantCondition(source)
    assert refused.value.at == place
    assert f"at character {place + 1}:" in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        "args.l.all(x, args.l.exists(y, args.l.exists(z, x == y)))",
        "[" * 60 + "]" * 60,
        "(" * 62 + "1" + ")" * 63,
        "{" * 62 + ":" * 63,
        "a?" * 62 + "b",
        '"' + "\\" * 1_000_000,
        "args." * 100_000,
        "9" * 1_000_000,
        "-" * 2_000 + "1",
    ],
    ids=range(9),
)
@pytest.mark.req("P-2")
def test_bombs_are_refused_before_the_library_sees_them(source):
    with pytest.raises(ConditionError):
        parse_condition(source)


@pytest.mark.parametrize(
    ("source", "args"),
    [
        ("args.l.all(x, x in args.l)", {"l": list(range(5_000))}),
        ("args.l.map(x, args.s + args.s).size() == 0", {"l": [1] * 5_000, "s": "x" * 30_000}),
        ("args.l.all(x, " + " && ".join(["x != -1"] * 150) + ")", {"l": [1] * 8_000}),
        (" && ".join(["args.s.contains('xy')"] * 80), {"s": "x" * MAX_READ}),
        ("args.l == args.m", {"l": [[1] * 60] * 300, "m": []}),
    ],
)
def test_what_would_take_long_is_denied_and_not_evaluated(source, args):
    assert "too long" in failure(source, args)


HEAVY = [
    ("args.l.all(x, x in args.l)", {"l": [7] * 75}),
    ("args.l.all(x, x == 8 || x == 7)", {"l": [7] * 5_000}),
    ("args.l.map(x, args.s + args.s).size() == 0", {"l": [1] * 30, "s": "x" * 4_000}),
    (" && ".join(["args.s.contains('xy')"] * 12), {"s": "x" * 60_000 + "xy"}),
    ("args.l == args.m", {"l": [[1] * 60] * 80, "m": [[1] * 60] * 80}),
    ("args.l.all(x, !(x in args.l))", {"l": ["y" * 20 + str(n) for n in range(60)]}),
]


@pytest.mark.parametrize(("source", "args"), HEAVY)
@pytest.mark.req("P-2")
@pytest.mark.bulk
def test_the_heaviest_that_is_evaluated_is_evaluated_once_and_soon(source, args):
    """The least CPU time of five tries, with a wide bound; `make bench` has the budget."""
    condition, facts = GrantCondition(source), Facts(read_arguments(json.dumps(args).encode()))
    assert "too long" not in (condition.find_failure(facts, NOW) or "")
    taken = []
    for _ in range(5):
        began = time.thread_time()
        condition.find_failure(facts, NOW)
        taken.append(time.thread_time() - began)
    assert min(taken) < 0.05


# -- in decisions


def test_a_call_passes_by_any_grant_whose_condition_it_meets():
    some = granted(PUBLIC, 'request.ticket_id == "T-1"')
    allowed = decide(AGENT, None, some, READ, NOW, call=Asked(b'{"path": "/srv/public/a"}'))
    assert (allowed.allowed, allowed.rule, len(allowed.grants)) == (True, "grant:g0", 1)
    by_ticket = decide(AGENT, None, some, READ, NOW, call=Asked(ticket_id="T-1"))
    assert (by_ticket.allowed, by_ticket.rule) == (True, "grant:g1")
    denied = decide(AGENT, None, some, READ, NOW, call=Asked(b'{"path": "/etc"}'))
    assert (denied.allowed, denied.rule, denied.is_visible) == (False, "condition", True)
    assert "grant g0: it is false" in denied.reason
    assert "/etc" not in denied.reason


def test_a_condition_that_cannot_be_used_admits_nothing():
    some = GrantSet("ann", [Grant("g", "ann", "s1", "*", when="args.x == 1")])
    assert not decide(AGENT, None, some, READ, NOW, call=Asked(b'{"x": 1}')).allowed
    assert some.admits("tools", "s1", "read", NOW) is None
    told = explain(decide(AGENT, None, some, READ, NOW), some, READ, NOW, agent_id="ann")
    assert any("this one cannot" in words for words in told.would_pass_if)


def test_listing_evaluates_agent_and_tool_and_counts_the_rest_as_possible():
    def shown(when: str, name: str = "read", agent_type: str = "robot") -> bool:
        some = granted(when, agent_type=agent_type)
        admits = GrantsInForce(some, NOW).of("tools", "files")
        is_shown = some.admits("tools", "s1", name, NOW) is not None
        assert (admits is not None and admits(name)) is is_shown
        return is_shown

    assert shown(PUBLIC)
    assert shown('tool.name == "read"')
    assert not shown('tool.name == "read"', "write")
    assert shown('tool.server == "files" && tool.kind == "tools"')
    assert not shown('agent.type == "human"')
    assert not shown('agent.type == "human" && args.x == 1')
    assert shown('agent.type == "human" || args.x == 1')
    assert shown('agent.type == "robot" && (args.x == 1 || tool.name == "nothing")')
    assert not shown('agent.id == "bob" || tool.name.startsWith("w")')


def test_what_a_condition_hides_looks_unknown():
    some = granted('agent.type == "human" && args.x == 1', agent_type="robot")
    decision = decide(AGENT, None, some, READ, NOW, call=Asked(b'{"x": 1}'))
    assert not decision.allowed
    assert not decision.is_visible


def test_a_grant_of_everything_with_a_condition_is_not_everything():
    grant = Grant("g", "ann", "*", "*", ("tools", "prompts", "resources"), when="args.x == 1")
    live = LivePolicy({"files": "s1"}, conditions={grant.when: GrantCondition(grant.when)})
    live.put("ann", [grant], [], NOW)
    assert live.conditional == {"ann"}
    assert live.grants(AGENT) is not None
    live.put("ann", [msgspec.structs.replace(grant, when="")], [], NOW)
    assert live.conditional == set()
    assert live.grants(AGENT) is None


def test_decisions_that_read_more_than_agent_and_tool_are_never_cached():
    def decided(when: str, raw: bytes) -> list[tuple[bool, bool]]:
        live = LivePolicy({"files": "s1"}, conditions={when: GrantCondition(when)})
        live.put("ann", [Grant("g", "ann", "s1", "*", when=when)], [], NOW)
        found = [live.decide(AGENT, None, READ, NOW, call=Asked(raw)) for _ in range(2)]
        return [(one.allowed, one.cached) for one in found]

    assert decided("args.x == 1", b'{"x": 1}') == [(True, False)] * 2
    assert decided("args.x == 1", b'{"x": 2}') == [(False, False)] * 2
    assert decided("!has(request.ticket_id)", b"{}") == [(True, False)] * 2
    assert decided("now.getFullYear() > 2000", b"{}") == [(True, False)] * 2
    assert decided('agent.claims.team == "blue"', b"{}") == [(True, False)] * 2
    assert decided('tool.risk == "low"', b"{}") == [(True, False), (True, True)]


def test_arguments_that_can_be_read_in_two_ways_are_not_judged():
    some = granted(PUBLIC)
    with pytest.raises(ArgumentsError, match="twice"):
        decide(AGENT, None, some, READ, NOW, call=Asked(b'{"path":"/srv/public/a","path":"/etc"}'))


def test_what_has_no_arguments_never_passes_by_a_condition_that_reads_them():
    for when in (PUBLIC, "!has(args.x)", "args.x == 1 || true"):
        decision = decide(AGENT, None, granted(when), READ, NOW)
        assert (decision.allowed, decision.rule) == (False, "condition"), when
    assert decide(AGENT, None, granted('tool.name == "read"'), READ, NOW).allowed


def test_fields_of_agent_and_tool_are_what_they_are():
    annotated = msgspec.structs.replace(READ, annotations=msgspec.Raw(b'{"readOnlyHint": true}'))
    when = (
        'agent.id == "ann" && agent.type == "robot" && agent.claims.team == "blue"'
        ' && tool.server == "files" && tool.name == "read" && tool.kind == "tools"'
        ' && tool.risk == "low" && tool.annotations.readOnlyHint && request.client == "c"'
    )
    some = granted(when, agent_type="robot")
    assert decide(AGENT, None, some, annotated, NOW, call=Asked(client="c")).allowed
    assert not decide(AGENT, None, some, READ, NOW, call=Asked(client="c")).allowed


def test_explain_shows_what_each_part_comes_to():
    some = granted('tool.name == "read" && (args.n < 3 || args.zz == 1)')
    call = Asked(b'{"n": 5}')
    decision = decide(AGENT, None, some, READ, NOW, call=call)
    told = explain(decision, some, READ, NOW, agent_id="ann", call=call)
    (one,) = told.conditions
    assert (one.grant_id, one.is_met) == ("g0", False)
    assert [tuple(part) for part in one.parts] == [
        ('tool.name == "read"', "true"),
        ("args.n < 3", "false"),
        ("args.zz == 1", "something that it reads is not there"),
    ]


@pytest.mark.parametrize(
    ("agent", "tool"),
    [
        ({"claims": {"groups": ["x"] * 4_000, "n": 2**70}}, {}),
        ({}, {"annotations": {"n": "x" * 70_000}}),
    ],
)
def test_what_others_write_is_bounded_as_arguments_are(agent, tool):
    source = "agent.claims.groups.all(g, g in args.names)"
    if tool:
        source = "tool.annotations.n != args.names"
    why = failure(source, {"names": ["x"] * 4_000}, agent=agent, tool=tool)
    assert "take it too long" in why or "larger than" in why
    if agent:
        small = {"claims": {"groups": ["x"], "n": 2**70}}
        assert failure(source, {"names": ["x"]}, agent=small) is None  # only what it reads


def test_a_long_name_of_a_client_is_bounded_too():
    source = " || ".join(["request.client.contains('xy')"] * 60)
    assert "larger than" in failure(source, request={"client": "x" * 1_000_000})
    assert failure(source, request={"client": "xy"}) is None


def test_the_name_of_an_argument_may_be_written_with_escapes():
    args = {'a"b\\c\u00e9\n': 1}
    assert failure("args['a\\\"b\\\\c\\u00e9\\n'] == 1", args) is None


def test_reads_are_the_paths_that_an_expression_names():
    reads = find_reads(
        parse_condition('args.a["b"].c[args.i] in args.l && size(agent.claims.x) > 0')
    )
    assert reads == {
        ("args", "a", "b", "c"),
        ("args", "i"),
        ("args", "l"),
        ("agent", "claims", "x"),
    }


TEXTS = ("", "x", "xy", "yx", "xyz", "zxy", "é", "xyé", "x" * 300 + "xy", "xy" + "y" * 300)
NUMBERS = (0, 1, 4, 5, 6, -5, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 5.0, 4.5, 1e300)
VALUES = (
    *TEXTS,
    *NUMBERS,
    *(None, True, False, [], {}, {"xy": 1}, [[]], [2**63], ["xy", 5], ["xy", "xyz"], [5, 4]),
    *(["xy"] * 300, ["xy", 2**64], [True, True], {"a": 2**64}, "x" * 70_000, ["x" * 70_000]),
)
SIMPLE = (
    *(f'args.a.{ask}("xy")' for ask in ("startsWith", "endsWith", "contains")),
    *(f'!args.a.{ask}("xy")' for ask in ("startsWith", "endsWith", "contains")),
    *(f"args.a {sign} 5" for sign in ("==", "<", "<=", ">", ">=")),
    *(f"size(args.a) {sign} 2" for sign in ("<", "<=", ">", ">=")),
    *('args.a == "xy"', "args.a == true", "args.a == -5", "args.a == (5)", "args.a == ''"),
    *('args.a != "xy"', "args.a != 5", "args.a != true", '!(args.a in ["xy"])', 'args["a"] == 5'),
    *("!(args.a in [4, 5])", 'args.a != "x" || args.b == 1', 'args.a.all(i, i != "xy")'),
    *('args.a in ["xy", "x"]', "args.a in [4, 5]", "args.a in [true]", "has(args.a)"),
    *('args.a.all(i, i == "xy")', "args.a.all(i, i in [4, 5])", "args.a.all(i, size(i) < 3)"),
    'has(args.a) && args.a.startsWith("x") && !args.a.endsWith("z") && size(args.a) < 4',
    'args.a == "xy" || (args.a > 1 && args.a < 6) || args.a == true',
    "args.b == 1 || args.a == 5",
)
LONG = (
    *('args.a.b.contains("x")', "args.a.contains(args.b)", 'agent.id.contains("x")', "args.a"),
    *("args.a == null", "args.a in args.b", 'args.a in ["x", 1]', "args.a in []", "args.a < 1.5"),
    *("args.a.exists(i, i == 1)", "args.a == 1 || args.a != 1.5", "!has(args.a)", "!args.a"),
    *("args.a.all(i, i == args.b)", 'args.a.contains("")', "args.a[0] == 1", "args.a + 1 == 2"),
)


@pytest.mark.parametrize("source", SIMPLE)
def test_the_short_way_of_simple_conditions_leads_where_the_long_one_does(source):
    short, long = GrantCondition(source), GrantCondition(f"true && ({source})")
    long._execute_flat = None
    assert short._meets is not None
    assert long._meets is None
    passed = 0
    both = [{"a": value, "b": 1} for value in VALUES]
    for args in [{"a": value} for value in VALUES] + both + [{}, {"b": 1}]:
        facts = Facts(read_arguments(json.dumps(args).encode()))
        assert short.find_failure(facts, NOW) == long.find_failure(facts, NOW), args
        passed += short._meets(facts.arguments.value)
    assert passed


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("args.a == 1 && args.b == args.a", "v0 == 1 && v1 == v0"),
        ('args.v.w[args.i] in ["args.a"]', 'v_0[v_1] in ["args.a"]'),
        ("(args.a) + 1 > agent.claims.x", "v0 + 1 > v1"),
        ("args.a.all(i, i == args.b)", "v0.all(i, i == v1)"),
        ('args["a"] == args.a && tool.name == agent.id', "v0 == v0 && v1 == v2"),
        *(("has(args.a) && args.a == 1", None), ("args == args.a", None), ("now > now", None)),
    ],
)
def test_arguments_are_given_as_variables_where_they_are_read_one_by_one(source, written):
    flat = flatten_reads(parse_condition(source), source)
    assert (None if flat is None else flat[0]) == written


FLAT = (
    *('args.a + "!" == "xy!"', "args.a * 2 < 11", "args.a == args.b", "!args.a || args.b == 1"),
    *("args.o.p == 5", 'args.o["p"].contains("xy")', "args.o.p == 5 || args.b == 1", "args.o.p"),
    *(
        "!(args.o.p == 5 && args.b == 2)",
        "args.o.p > 4 ? true : args.b == 1",
        "args.a in [1, 'xy']",
    ),
    *('agent.id == "ann" && args.a == args.o.p', 'agent.claims.team + "" == "b" || args.a == 5'),
    *('request.client != "c" || args.o.p == 5', "[args.a, args.b].exists(i, i == 5)"),
    *('args.a == "xy" && now > timestamp("2020-01-01T00:00:00Z")', "args.a[0] == 1 || args.b == 1"),
)


@pytest.mark.req("P-1")
@pytest.mark.parametrize("source", FLAT)
def test_what_is_read_one_by_one_is_judged_as_what_is_read_whole(source):
    short, long = GrantCondition(source), GrantCondition(source)
    long._execute_flat = short._meets = long._meets = None
    assert short._execute_flat is not None
    inner = [{"o": {"p": value}} for value in VALUES] + [{"o": 5}, {"o": {}}, {"o": None}]
    calls = [{**one, **more} for one in [*inner, {}] for more in ({}, {"b": 1}, {"a": 5})]
    calls += [{"a": value, "b": b} for value in VALUES for b in (1, "xy")]
    met = 0
    for args in calls:
        fields = {"agent": {"id": "ann", "claims": {"team": "b"}}, "request": {}}
        facts = Facts(read_arguments(json.dumps(args).encode()), **fields)
        told = short.find_failure(facts, NOW)
        assert told == long.find_failure(facts, NOW), args
        met += told is None
    assert met


@pytest.mark.parametrize("source", LONG)
def test_whatever_is_not_simple_goes_the_long_way(source):
    assert GrantCondition(source)._meets is None


def test_nothing_of_one_call_is_left_for_the_next_to_be_judged_by():
    condition = GrantCondition('args.a + args.b == "xy"')

    def is_met(**args: object) -> bool:
        facts = Facts(read_arguments(json.dumps(args).encode()))
        return condition.find_failure(facts, NOW) is None

    for _ in range(3):
        assert is_met(a="x", b="y")
        assert not is_met(a="x")
        assert not is_met(b="y")
        assert not is_met(a="x", b=7)
        assert not is_met(a="y", b="x")
        assert not is_met()
        assert not is_met(a="x", b="y" * 1_000)
        with condition._lock:  # another thread judges by it at this moment
            assert is_met(a="x", b="y")
            assert not is_met(a="x", b="z")
