"""Under whose name a call is made: the table of roles, with and without a named agent."""

import pytest

from mcp_junction.policy.principal import (
    LOCAL_OWNER,
    ActingAgent,
    ActingRefusal,
    Principal,
    Right,
    Role,
    can_change_policy_of,
    can_read_policy_of,
    has_right,
    resolve_acting_agent,
)

ADMIN = Principal("root", Role.ADMIN)
CONDUCTOR = Principal("conductor", Role.ORCHESTRATOR)
AGENT = Principal("agent-1", Role.AGENT)
VIEWER = Principal("watcher", Role.VIEWER)


@pytest.mark.parametrize(
    ("principal", "named", "acting"),
    [
        (LOCAL_OWNER, None, ActingAgent("local-owner", True)),
        (LOCAL_OWNER, "local-owner", ActingAgent("local-owner", True)),
        (ADMIN, None, ActingAgent("root", True)),
        (ADMIN, "root", ActingAgent("root", True)),
        (ADMIN, "agent-1", ActingAgent("agent-1", False)),
        (CONDUCTOR, "agent-1", ActingAgent("agent-1", False)),
        (AGENT, None, ActingAgent("agent-1", False)),
        (AGENT, "agent-1", ActingAgent("agent-1", False)),
    ],
)
def test_a_call_is_made_under_one_name(principal, named, acting):
    assert resolve_acting_agent(principal, named) == acting


@pytest.mark.parametrize(
    ("principal", "named", "rule"),
    [
        (LOCAL_OWNER, "agent-1", "agent_id"),
        (CONDUCTOR, None, "role"),
        (CONDUCTOR, "conductor", "agent_id"),
        (AGENT, "agent-2", "agent_id"),
        (AGENT, "", "agent_id"),
        (ADMIN, "x" * 256, "agent_id"),
        (VIEWER, None, "role"),
        (VIEWER, "agent-1", "role"),
        (VIEWER, "watcher", "role"),
    ],
)
def test_who_may_not_call_so_is_told_why(principal, named, rule):
    refusal = resolve_acting_agent(principal, named)
    assert isinstance(refusal, ActingRefusal)
    assert refusal.rule == rule
    assert len(refusal.reason) > 20


def test_only_administrators_and_orchestrators_call_for_others():
    allowed = {role for role in Role if has_right(Principal("x", role), Right.CALL_FOR_AGENT)}
    assert allowed == {Role.ADMIN, Role.ORCHESTRATOR}
    for role in Role:
        acting = resolve_acting_agent(Principal("x", role), "agent-1")
        assert isinstance(acting, ActingAgent) is (role in allowed)


def test_an_orchestrator_changes_everybodys_policy_but_its_own():
    assert can_change_policy_of(CONDUCTOR, "agent-1")
    assert not can_change_policy_of(CONDUCTOR, "conductor")
    assert can_change_policy_of(ADMIN, "root")
    for other in (AGENT, VIEWER):
        assert not can_change_policy_of(other, "agent-1")
        assert not can_change_policy_of(other, other.id)


def test_an_agent_reads_its_own_policy_only():
    assert can_read_policy_of(AGENT, "agent-1")
    assert not can_read_policy_of(AGENT, "agent-2")
    for other in (ADMIN, CONDUCTOR, VIEWER):
        assert can_read_policy_of(other, "agent-1")


READS = {
    Right.READ_TOOLS,
    Right.READ_SERVERS,
    Right.READ_EVENTS,
    Right.READ_METRICS,
    Right.READ_DOCS,
    Right.READ_POLICY,
    Right.READ_OWN_POLICY,
    Right.READ_AUDIT,
}


@pytest.mark.parametrize(
    ("role", "rights"),
    [
        (Role.ADMIN, set(Right)),
        (
            Role.ORCHESTRATOR,
            READS
            | {
                Right.CALL_FOR_AGENT,
                Right.CHANGE_POLICY,
                Right.REFRESH_TOOLS,
                Right.READ_KEYS,
                Right.READ_SETTINGS,
            },
        ),
        (
            Role.AGENT,
            {
                Right.READ_TOOLS,
                Right.CALL,
                Right.SIGN_IN_ITSELF,
                Right.READ_OWN_CALLS,
                Right.READ_OWN_POLICY,
                Right.READ_DOCS,
            },
        ),
        (Role.VIEWER, READS),
        (
            Role.OWNER,
            {
                Right.READ_TOOLS,
                Right.CALL,
                Right.CHANGE_KEYS,
                Right.CHANGE_POLICY,
                Right.READ_DOCS,
            },
        ),
    ],
)
def test_the_table_of_rights_is_what_was_ruled(role, rights):
    assert {right for right in Right if has_right(Principal("x", role), right)} == rights
