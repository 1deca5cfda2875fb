"""Decisions that are remembered: for how long, and what makes them forgotten."""

import random

import pytest
from tests.policy.deciding import decide

from mcp_junction.policy.decision import CallTarget
from mcp_junction.policy.grant_set import GrantSet
from mcp_junction.policy.grants import Grant
from mcp_junction.policy.live_policy import DEFAULT_TTL, DecisionCache
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.risk import assess

NOW = 1_000.0
AGENT = Principal("a", Role.AGENT)
READ = CallTarget("s", "read")


def decision(expires_at: float | None = None):
    some = GrantSet("a", [Grant("g1", "a", "s", "read", expires_at=expires_at)])
    return decide(AGENT, None, some, READ, NOW)


def filled(ttl: float = 300.0, expires_at: float | None = None) -> DecisionCache:
    cache = DecisionCache(ttl)
    cache.keep("a", 1, READ, decision(expires_at), NOW)
    return cache


def test_it_remembers_for_five_minutes_unless_told_otherwise():
    assert DEFAULT_TTL == 300.0
    cache = filled()
    assert cache.get("a", 1, READ, NOW + 299.9) is not None
    assert cache.get("a", 1, READ, NOW + 300) is None


def test_what_it_gives_is_marked_as_cached():
    found = filled().get("a", 1, READ, NOW)
    assert found is not None
    assert found.cached
    assert not decision().cached
    assert (found.allowed, found.rule) == (True, "grant:g1")


def test_zero_switches_it_off():
    assert len(filled(0.0)) == 0


def test_a_change_of_the_agents_grants_makes_it_forget_at_once():
    assert filled().get("a", 2, READ, NOW) is None


def test_a_grant_that_expires_ends_what_it_allowed():
    cache = filled(expires_at=NOW + 5)
    assert cache.get("a", 1, READ, NOW + 4.9) is not None
    assert cache.get("a", 1, READ, NOW + 5) is None


@pytest.mark.parametrize(
    "other",
    [CallTarget("s2", "read"), CallTarget("s", "write"), CallTarget("s", "read", "prompts")],
)
def test_another_target_is_another_decision(other):
    assert filled().get("a", 1, other, NOW) is None


def test_a_tool_that_became_risky_is_decided_anew():
    risky = CallTarget("s", "read", risk=assess("read", is_destructive=True))
    assert filled().get("a", 1, risky, NOW) is None


def test_another_agent_is_another_decision():
    assert filled().get("b", 1, READ, NOW) is None


def test_an_administrators_right_is_not_remembered_for_an_agent_of_its_name():
    cache = DecisionCache()
    admin = decide(Principal("a", Role.ADMIN), None, GrantSet("a"), READ, NOW)
    assert admin.allowed
    cache.keep("a", 1, READ, admin, NOW)
    assert cache.get("a", 1, READ, NOW) is None


def test_a_clock_that_was_put_back_makes_it_ask_again():
    assert filled().get("a", 1, READ, NOW - 1) is None


def test_it_is_bounded():
    cache = DecisionCache(limit=10)
    for n in range(100):
        cache.keep("a", 1, CallTarget("s", str(n)), decision(), NOW)
        assert len(cache) <= 10
    cache.clear()
    assert len(cache) == 0


@pytest.mark.bulk
def test_it_never_says_anything_else_than_deciding_would():
    dice = random.Random(4)
    cache = DecisionCache(ttl=20.0)
    now, generation, hits = NOW, 0, 0
    some = GrantSet("a")
    for _ in range(20_000):
        now += dice.random()
        if dice.random() < 0.02:
            generation += 1
            some = GrantSet(
                "a",
                [
                    Grant(
                        f"g{n}", "a", "s", dice.choice("ab*"), expires_at=now + dice.random() * 30
                    )
                    for n in range(dice.randrange(3))
                ],
            )
        target = CallTarget("s", dice.choice("abc"))
        fresh = decide(AGENT, None, some, target, now)
        found = cache.get("a", generation, target, now)
        if found is None:
            cache.keep("a", generation, target, fresh, now)
        else:
            hits += 1
            assert (found.allowed, found.rule) == (fresh.allowed, fresh.rule)
    assert hits > 10_000
