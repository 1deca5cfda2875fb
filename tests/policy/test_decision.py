"""Decisions about calls: who, under which grant, by which rule; and what would change them."""

import random

import pytest
from tests.policy.deciding import decide

from mcp_junction.policy.decision import (
    ALLOW,
    DENY,
    CallTarget,
    PolicyDecision,
)
from mcp_junction.policy.explanation import explain
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.grants import KINDS, OWNER_GRANT, CallLimit, Grant, is_evasive_uri
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.policy.risk import assess
from mcp_junction.policy.tokens import Token, TokenMode, hash_secret, read_token, write_token

NOW = 1_000.0
ADMIN = Principal("root", Role.ADMIN)
CONDUCTOR = Principal("conductor", Role.ORCHESTRATOR)
AGENT = Principal("agent-1", Role.AGENT)
VIEWER = Principal("watcher", Role.VIEWER)
NOTHING = GrantSet("agent-1")
READ = CallTarget("s1", "read", risk=assess("read"))
WRITE = CallTarget("s1", "write", risk=assess("write"))


def grant(name: str, grant_id: str = "g1", **more) -> Grant:
    more.setdefault("server_id", "s1")
    return Grant(id=grant_id, agent_id="agent-1", tool_name=name, **more)


def grants(*some: Grant) -> GrantSet:
    return GrantSet("agent-1", some)


def token(grant_id: str = "g1", token_id: str = "t1", **more) -> Token:
    more.setdefault("expires_at", NOW + 60)
    return Token(token_id, grant_id, hash_secret("s"), NOW, **more)


CARRIED = read_token(write_token("t1", "s"))


def test_default_is_deny():
    decision = decide(AGENT, None, NOTHING, READ, NOW)
    assert (decision.allowed, decision.rule, decision.word) == (False, "default", DENY)
    assert not decision.is_visible  # what is forbidden looks unknown


def test_a_grant_allows():
    decision = decide(AGENT, None, grants(grant("read")), READ, NOW)
    assert (decision.allowed, decision.rule, decision.word) == (True, "grant:g1", ALLOW)
    assert decision.agent_id == "agent-1"
    assert not decision.token_required


@pytest.mark.parametrize("principal", [ADMIN, CONDUCTOR])
def test_a_call_for_an_agent_is_under_that_agents_grants(principal):
    assert decide(principal, "agent-1", grants(grant("read")), READ, NOW).allowed
    refused = decide(principal, "agent-1", NOTHING, READ, NOW)
    assert (refused.allowed, refused.rule, refused.agent_id) == (False, "default", "agent-1")


def test_owner_and_administrator_call_everything_without_a_token():
    owner = decide(LOCAL_OWNER, None, GrantSet("local-owner"), WRITE, NOW)
    assert (owner.allowed, owner.rule) == (True, "grant:owner")
    assert owner.grants == (OWNER_GRANT,)
    admin = decide(ADMIN, None, GrantSet("root"), WRITE, NOW)
    assert (admin.allowed, admin.rule, admin.token_required) == (True, "role", False)
    assert owner.valid_until == admin.valid_until == 0.0  # not to be mixed up with an agent's


@pytest.mark.parametrize(
    ("principal", "named", "rule"),
    [(VIEWER, None, "role"), (CONDUCTOR, None, "role"), (AGENT, "agent-2", "agent_id")],
)
def test_who_may_not_call_is_refused_whatever_the_grants(principal, named, rule):
    everything = grants(grant("*", server_id="*", kinds=KINDS, token_mode=TokenMode.NONE))
    decision = decide(principal, named, everything, READ, NOW)
    assert (decision.allowed, decision.rule) == (False, rule)


def test_the_grants_of_another_agent_decide_nothing():
    live = LivePolicy({"files": "s1"})
    live.put("agent-2", [Grant("g1", "agent-2", "s1", "read")], [], NOW)
    assert not live.decide(AGENT, None, READ, NOW).allowed
    assert live.decide(Principal("agent-2", Role.AGENT), None, READ, NOW).allowed


# -- high risk


@pytest.mark.parametrize(
    ("mode", "tokens", "presented", "allowed"),
    [
        ("none", [], None, True),
        ("window", [], None, False),
        ("window", [token()], None, True),
        ("window", [token(expires_at=NOW)], None, False),
        ("present", [token()], None, False),
        ("present", [token()], CARRIED, True),
        ("single_use", [token()], CARRIED, True),
        ("single_use", [token(used_at=NOW)], CARRIED, False),
        ("approval", [], None, True),  # the store is asked when the call is admitted
    ],
)
def test_a_high_risk_call_also_needs_its_token(mode, tokens, presented, allowed):
    some = grants(grant("write", token_mode=TokenMode(mode)))
    decision = decide(AGENT, None, some, WRITE, NOW, tokens={"g1": tokens}, presented=presented)
    assert decision.allowed is allowed
    assert decision.token_required is (mode != "none")
    assert decision.is_visible  # it is listed: the reason may be told
    if not allowed:
        assert decision.rule == "token"
        assert "'write'" in decision.reason  # why it is risky
    assert decision.spends == ({"g1": "t1"} if allowed and mode == "single_use" else {})


def test_a_low_risk_call_needs_none():
    some = grants(grant("*", token_mode=TokenMode.SINGLE_USE))
    decision = decide(AGENT, None, some, READ, NOW)
    assert decision.allowed
    assert decision.spends == {}


def test_a_token_of_another_grant_does_not_help():
    some = grants(grant("write"), grant("read", "g2"))
    assert not decide(AGENT, None, some, WRITE, NOW, tokens={"g2": [token("g2")]}).allowed


def test_any_grant_whose_token_is_there_allows():
    some = grants(grant("write", token_mode=TokenMode.PRESENT), grant("w*", "g2"))
    decision = decide(AGENT, None, some, WRITE, NOW, tokens={"g2": [token("g2")]})
    assert decision.allowed
    assert [one.id for one in decision.grants] == ["g2"]


def test_a_limit_that_is_used_up_leaves_the_other_grants():
    some = grants(grant("read", limits=CallLimit(1, 60)), grant("r*", "g2"), grant("*", "g3"))
    decision = decide(AGENT, None, some, READ, NOW)
    assert [one.id for one in decision.grants] == ["g2", "g3", "g1"]


def test_a_repeated_call_with_a_used_token_is_only_answered_from_its_record():
    some = grants(grant("write", token_mode=TokenMode.SINGLE_USE))
    used = {"g1": [token(used_at=NOW)]}
    decision = decide(
        AGENT, None, some, WRITE, NOW, tokens=used, presented=CARRIED, has_idempotency_key=True
    )
    assert decision.allowed
    assert decision.replay_only
    assert decision.spends == {}
    assert decision.valid_until == 0.0


# -- how long it holds


def test_a_decision_holds_until_a_grant_or_token_behind_it_expires():
    some = grants(grant("read", expires_at=NOW + 9), grant("w*", "g2", expires_at=NOW + 90))
    assert decide(AGENT, None, some, READ, NOW).valid_until == NOW + 9
    live = {"g2": [token("g2", expires_at=NOW + 60)]}
    assert decide(AGENT, None, some, WRITE, NOW, tokens=live).valid_until == NOW + 60
    assert decide(AGENT, None, NOTHING, READ, NOW).valid_until == float("inf")


def test_what_a_call_carried_is_not_remembered():
    some = grants(grant("write", token_mode=TokenMode.PRESENT))
    live = {"g1": [token()]}
    decision = decide(AGENT, None, some, WRITE, NOW, tokens=live, presented=CARRIED)
    assert decision.valid_until == 0.0
    assert decide(AGENT, None, some, WRITE, NOW, tokens=live).valid_until == 0.0


# -- lists


def test_agents_see_what_they_may_call_and_others_see_all():
    live = LivePolicy({"files": "s1"})
    live.put("agent-1", [grant("write", token_mode=TokenMode.SINGLE_USE)], [], NOW)
    admits = live.grants(AGENT).of("tools", "files")
    assert admits("write")  # a token is not needed to see it
    assert not admits("read")
    for other in (LOCAL_OWNER, ADMIN, CONDUCTOR, VIEWER):
        assert live.grants(other) is None, "all"


# -- why


def reasons(decision: PolicyDecision, some: GrantSet, target: CallTarget) -> list[str]:
    found = explain(decision, some, target, NOW, agent_id="agent-1", server_name="files")
    assert (found.decision, found.rule, found.reason) == (
        decision.word,
        decision.rule,
        decision.reason.replace("server 's1'", "server 'files'"),
    )
    return list(found.would_pass_if)


def test_what_is_allowed_needs_nothing():
    some = grants(grant("read"))
    assert reasons(decide(AGENT, None, some, READ, NOW), some, READ) == []


def test_what_no_grant_allows_needs_one():
    (one,) = reasons(decide(AGENT, None, NOTHING, READ, NOW), NOTHING, READ)
    assert one == "agent 'agent-1' is granted tool 'read' on server 'files'"


def test_a_grant_that_would_allow_it_is_named():
    some = grants(grant("read", expires_at=NOW - 1), grant("r*", "g2", when="x"), grant("x", "g3"))
    found = reasons(decide(AGENT, None, some, READ, NOW), some, READ)
    assert "grant g1, which expired, is given again" in found
    assert any("g2" in one for one in found)
    assert not any("g3" in one for one in found)


def test_a_devious_uri_is_told():
    target = CallTarget("s1", "file:///a/../b", "resources")
    some = grants(grant("file:///a/*", kinds=("resources",)))
    found = reasons(decide(AGENT, None, some, target, NOW), some, target)
    assert any("URI" in one for one in found)


def test_a_missing_token_is_told():
    some = grants(grant("write"))
    (one,) = reasons(decide(AGENT, None, some, WRITE, NOW), some, WRITE)
    assert "renewed" in one


def test_a_wrong_role_is_told():
    (one,) = reasons(decide(VIEWER, None, NOTHING, READ, NOW), NOTHING, READ)
    assert "use a key" in one


def test_a_disabled_tool_is_told_even_where_the_policy_allows():
    off = CallTarget("s1", "read", disabled="its version is not compatible")
    some = grants(grant("read"))
    (one,) = reasons(decide(AGENT, None, some, off, NOW), some, off)
    assert "not compatible" in one


# -- the model


def glob(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return glob(pattern[1:], name) or bool(name and glob(pattern, name[1:]))
    return bool(name) and pattern[0] in ("?", name[0]) and glob(pattern[1:], name[1:])


def has_token(one: Grant, tokens: dict[str, list[Token]], carried: str | None, now: float) -> bool:
    live = [t for t in tokens.get(one.id, []) if t.revoked_at is None and now < t.expires_at]
    if one.token_mode == "single_use":
        live = [t for t in live if t.used_at is None]
    if one.token_mode in ("present", "single_use"):
        live = [t for t in live if t.id == carried]
    return one.token_mode in ("none", "approval") or bool(live)


def naive(principal, named, some, target, now, tokens, carried) -> bool:
    role, me = principal.role.value, principal.id
    if role == "viewer" or (role == "orchestrator" and named in (None, me)):
        return False
    if role in ("owner", "admin") and named in (None, me):
        return True
    if role in ("owner", "agent") and named not in (None, me):
        return False
    is_high = any(w in target.name for w in ("write", "delete", "modify", "update", "create"))
    for one in some:
        if target.kind not in one.kinds or one.server_id not in ("*", target.server_id):
            continue
        if one.expires_at is not None and one.expires_at <= now:
            continue
        is_odd = target.kind == "resources" and is_evasive_uri(target.name)
        if one.tool_name != "*" and (is_odd or not glob(one.tool_name, target.name)):
            continue
        if not is_high or has_token(one, tokens, carried, now):
            return True
    return False


WORDS = ["write", "read", "a", "b", "_", "/", "..", "x"]


def random_case(dice: random.Random):
    agent = dice.choice(["agent-1", "agent-2"])
    some, tokens = [], {}
    for n in range(dice.choice([0, 1, 2, 3, 20])):
        pieces = dice.choices([*WORDS, "*", "*", "*", "?"], k=dice.randrange(1, 5))
        one = Grant(
            id=f"g{n}",
            agent_id=agent,
            server_id=dice.choice(["s1", "s2", "*"]),
            tool_name="".join(pieces) if dice.random() < 0.9 else "*",
            kinds=dice.choice([("tools",), ("resources",), KINDS]),
            token_mode=dice.choice(list(TokenMode)),
            expires_at=dice.choice([None, NOW - 1, NOW, NOW + 1]),
        )
        some.append(one)
        tokens[one.id] = [
            token(
                one.id,
                f"t{n}x{m}",
                expires_at=dice.choice([NOW, NOW + 1]),
                used_at=dice.choice([None, NOW]),
                revoked_at=dice.choice([None, None, NOW]),
            )
            for m in range(dice.randrange(3))
        ]
    return agent, some, tokens


@pytest.mark.bulk
def test_a_hundred_thousand_decisions_agree_with_a_naive_matcher():
    dice = random.Random(1700)
    allowed = 0
    for _ in range(2_500):
        agent, some, tokens = random_case(dice)
        compiled = GrantSet(agent, some)
        carried_ids = [t.id for of_one in tokens.values() for t in of_one]
        for _ in range(40):
            role = dice.choice([Role.AGENT] * 6 + list(Role))
            who = agent if role is Role.AGENT else "boss"
            principal = Principal(who, role)
            named = agent if dice.random() < 0.5 or role is Role.ORCHESTRATOR else None
            if dice.random() < 0.05:
                named = dice.choice([None, who])
            name = "".join(dice.choices(WORDS, k=dice.randrange(1, 5)))
            kind = dice.choice(["tools", "resources"])
            target = CallTarget(dice.choice(["s1", "s2"]), name, kind, assess(name))
            carried = dice.choice([None, *carried_ids])
            mine = compiled if named == agent or role is Role.AGENT else GrantSet(named or who)
            decision = decide(
                principal,
                named,
                mine,
                target,
                NOW,
                tokens=tokens,
                presented=read_token(write_token(carried, "s")) if carried else None,
            )
            given = some if mine is compiled else []
            expected = naive(principal, named, given, target, NOW, tokens, carried)
            assert decision.allowed is expected, (principal, named, target, given)
            allowed += expected
    assert 20_000 < allowed < 60_000
