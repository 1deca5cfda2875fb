"""The policy as it is now: changes hold at once, and touch one agent only."""

import random

import pytest

from mcp_junction.policy.decision import CallTarget
from mcp_junction.policy.grants import KINDS, Grant
from mcp_junction.policy.live_policy import LivePolicy
from mcp_junction.policy.principal import LOCAL_OWNER, AccessPolicy, Grants, Principal, Role
from mcp_junction.policy.risk import assess
from mcp_junction.policy.tokens import Token, TokenMode, hash_secret

NOW = 1_000.0
SERVERS = {"files": "id-1", "web": "id-2"}
READ = CallTarget("id-1", "read")
WRITE = CallTarget("id-1", "write", risk=assess("write"))
AGENT, OTHER = Principal("a", Role.AGENT), Principal("b", Role.AGENT)


def grant(name: str, grant_id: str = "g1", agent: str = "a", **more) -> Grant:
    more.setdefault("server_id", "id-1")
    return Grant(id=grant_id, agent_id=agent, tool_name=name, **more)


def token(token_id: str = "t1", grant_id: str = "g1", **more) -> Token:
    more.setdefault("expires_at", NOW + 60)
    return Token(token_id, grant_id, hash_secret("s"), NOW, **more)


def policy(*grants: Grant, tokens: tuple[Token, ...] = ()) -> LivePolicy:
    live = LivePolicy(SERVERS)
    live.put("a", grants, tokens, NOW)
    return live


def shown(live: LivePolicy, principal: Principal = AGENT) -> Grants:
    found = live.grants(principal)
    assert found is not None
    return found


def admits(grants: Grants | None, server: str, name: str, kind: str = "tools") -> bool:
    """Ask as a Scope does."""
    if grants is None:
        return True
    of_server = grants.of(kind, server)
    return of_server is not None and of_server(name)


def test_it_is_what_scopes_ask():
    live: AccessPolicy = policy()
    assert not admits(shown(live), "files", "read")


def test_a_decision_made_again_is_cached():
    live = policy(grant("read"))
    assert [live.decide(AGENT, None, READ, NOW).cached for _ in range(3)] == [False, True, True]
    assert [live.decide(OTHER, None, READ, NOW).cached for _ in range(2)] == [False, True]


def test_a_revocation_holds_at_once():
    live = policy(grant("read"), grant("list", "g2"))
    assert live.decide(AGENT, None, READ, NOW).allowed
    live.put("a", [grant("list", "g2")], [], NOW)
    denied = live.decide(AGENT, None, READ, NOW)
    assert (denied.allowed, denied.cached) == (False, False)


def test_a_grant_holds_at_once():
    live = policy()
    assert not live.decide(AGENT, None, READ, NOW).allowed
    live.put("a", [grant("read")], [], NOW)
    assert live.decide(AGENT, None, READ, NOW).allowed


def test_a_removed_agent_may_use_nothing():
    live = policy(grant("*", server_id="*", kinds=KINDS))
    live.remove("a")
    assert not live.decide(AGENT, None, READ, NOW).allowed
    assert not admits(shown(live), "files", "read")
    live.remove("a")


def test_one_grant_touches_one_agent():
    live = policy(grant("read"))
    live.put("b", [grant("read", "g9", "b")], [], NOW)
    before, generation = shown(live), live.of("a").generation
    live.put("b", [], [], NOW)
    assert shown(live) is before
    assert live.of("a").generation == generation


def test_a_revoked_token_closes_its_window_at_once():
    live = policy(grant("write"), tokens=(token(),))
    assert live.decide(AGENT, None, WRITE, NOW).allowed
    live.put("a", [grant("write")], [token(revoked_at=NOW)], NOW)
    assert live.decide(AGENT, None, WRITE, NOW).rule == "token"


def test_a_window_that_ends_is_not_held_open_by_the_cache():
    live = policy(grant("write"), tokens=(token(expires_at=NOW + 5),))
    assert live.decide(AGENT, None, WRITE, NOW + 4.9).allowed
    assert not live.decide(AGENT, None, WRITE, NOW + 5).allowed


@pytest.mark.parametrize("role", [Role.ADMIN, Role.ORCHESTRATOR])
def test_a_named_agent_is_decided_by_its_own_grants(role):
    live = policy(grant("read"))
    boss = Principal("boss", role)
    assert live.decide(boss, "a", READ, NOW).allowed
    assert not live.decide(boss, "a", WRITE, NOW).allowed
    assert not live.decide(boss, "nobody", READ, NOW).allowed


def test_an_administrator_does_not_leave_its_right_to_an_agent_of_its_name():
    live = policy()
    assert live.decide(Principal("a", Role.ADMIN), None, READ, NOW).allowed
    assert not live.decide(AGENT, None, READ, NOW).allowed
    assert live.decide(Principal("a", Role.ADMIN), None, READ, NOW).allowed


# -- what is shown


def test_only_agents_are_shown_less_than_everything():
    live = policy()
    for role in Role:
        assert (live.grants(Principal("a", role)) is None) is (role is not Role.AGENT)
    assert live.grants(LOCAL_OWNER) is None


def test_servers_are_known_by_their_ids():
    live = policy(grant("read"))
    found = shown(live)
    assert admits(found, "files", "read")
    assert not admits(found, "web", "read")
    assert not admits(found, "unknown", "read")
    assert not admits(found, "files", "read", "prompts")
    assert found.of("tools", "files") is not None
    assert found.of("tools", "web") is None
    assert found.of("prompts", "files") is None
    assert found.of("tools", "unknown") is None


def test_a_grant_of_all_servers_covers_those_that_are_known():
    found = shown(policy(grant("read", server_id="*")))
    assert admits(found, "web", "read")
    assert not admits(found, "unknown", "read")


def test_who_has_everything_shares_what_all_see():
    everything = grant("*", server_id="*", kinds=KINDS, token_mode=TokenMode.NONE)
    assert policy(everything).grants(AGENT) is None
    assert policy(grant("*", server_id="*")).grants(AGENT) is not None


def test_a_grant_that_expires_changes_what_is_shown():
    live = policy(grant("read", expires_at=NOW + 10), grant("list", "g2"))
    live.put("b", [grant("read", "g9", "b", expires_at=NOW + 20)], [], NOW)
    before, other = shown(live), shown(live, OTHER)
    assert live.next_expiry == NOW + 10
    assert live.expire(NOW + 9.9) == []
    assert live.expire(NOW + 10) == ["a"]
    assert shown(live) is not before
    assert shown(live, OTHER) is other
    assert not admits(shown(live), "files", "read")
    assert admits(shown(live), "files", "list")
    assert live.next_expiry == NOW + 20
    assert live.expire(NOW + 50) == ["b"]
    assert live.next_expiry is None


def test_a_call_is_denied_when_its_grant_expires_whoever_keeps_the_time():
    live = policy(grant("read", expires_at=NOW + 10))
    assert live.decide(AGENT, None, READ, NOW + 9).allowed
    assert not live.decide(AGENT, None, READ, NOW + 10).allowed  # before ``expire`` is called


def test_an_agent_may_ask_why():
    live = policy(grant("list"))
    found = live.explain("a", READ, NOW, server_name="files")
    assert (found.decision, found.rule) == ("DENY", "default")
    assert found.would_pass_if == ("agent 'a' is granted tool 'read' on server 'files'",)
    assert live.explain("a", CallTarget("id-1", "list"), NOW).decision == "ALLOW"


@pytest.mark.bulk
def test_what_is_revoked_never_passes_again():
    dice = random.Random(6)
    live = LivePolicy(SERVERS)
    held: dict[str, set[str]] = {"a": set(), "b": set()}
    for step in range(20_000):
        agent, name = dice.choice("ab"), f"tool_{dice.randrange(20)}"
        if dice.random() < 0.1:
            held[agent] ^= {name}
            grants = [grant(one, f"{agent}.{one}", agent) for one in held[agent]]
            live.put(agent, grants, [], NOW)
        principal = Principal(agent, Role.AGENT)
        allowed = live.decide(principal, None, CallTarget("id-1", name), NOW + step * 0.01).allowed
        assert allowed is (name in held[agent])
        assert admits(live.grants(principal), "files", name) is allowed
