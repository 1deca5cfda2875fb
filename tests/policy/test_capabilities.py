"""Binding: an agent that is registered gets what it declares, and keeps what it was given."""

import itertools

import msgspec

from mcp_junction.policy.grants import KINDS, Binding, Grant, GrantSource, bind
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.tokens import TokenMode

CONDUCTOR = Principal("conductor", Role.ORCHESTRATOR)
SERVERS = {"files": "id-1", "id-1": "id-1", "web": "id-2"}
NOW = 1_000.0


def bound(declared: list[str], existing: list[Grant] | None = None) -> Binding:
    ids = map("g{}".format, itertools.count(1))
    return bind(
        "agent-1",
        declared,
        existing or [],
        SERVERS,
        by=CONDUCTOR,
        now=NOW,
        new_id=lambda: next(ids),
    )


def test_declared_tools_become_grants():
    binding = bound(["files:read", "web:get_*", "web:*"])
    found = [(g.id, g.server_id, g.tool_name, g.kinds) for g in binding.added]
    assert found == [
        ("g1", "id-1", "read", ("tools",)),
        ("g2", "id-2", "get_*", ("tools",)),
        ("g3", "id-2", "*", KINDS),
    ]
    for grant in binding.added:
        assert grant.agent_id == "agent-1"
        assert grant.source is GrantSource.BOUND
        assert grant.token_mode is TokenMode.WINDOW
        assert (grant.granted_by, grant.granted_at) == ("conductor", NOW)


def test_a_tool_declared_twice_is_granted_once():
    assert len(bound(["files:read", "files:read", "id-1:read"]).added) == 1


def test_binding_again_replaces_what_was_bound_and_leaves_the_rest():
    first = bound(["files:read", "files:list"])
    manual = Grant("m1", "agent-1", "id-2", "get")
    others = Grant("m2", "agent-2", "id-1", "list", source=GrantSource.BOUND)
    again = bound(["files:read", "web:post"], [*first.added, manual, others])
    assert [g.tool_name for g in again.added] == ["post"]
    assert [g.id for g in again.kept] == ["g1"]
    assert [g.tool_name for g in again.removed] == ["list"]
    assert all(g.agent_id == "agent-1" for g in again.removed)


def test_a_grant_that_has_expired_is_in_the_way_of_no_other():
    over = Grant("m1", "agent-1", "id-1", "read", expires_at=NOW)
    binding = bound(["files:read"], [over])
    assert [g.tool_name for g in binding.added] == ["read"]
    assert binding.covered == binding.removed == ()


def test_what_was_granted_otherwise_stays_as_it_is():
    manual = Grant("m1", "agent-1", "id-1", "read", token_mode=TokenMode.SINGLE_USE)
    binding = bound(["files:read"], [manual])
    assert binding.added == ()
    assert binding.covered == (manual,)
    assert bound([], [manual]).removed == ()


def test_to_declare_nothing_removes_what_was_bound():
    first = bound(["files:read"])
    assert bound([], list(first.added)).removed == first.added


def test_binding_the_same_again_changes_nothing():
    first = bound(["files:read", "web:*"])
    again = bound(["web:*", "files:read"], list(first.added))
    assert (again.added, again.removed) == ((), ())
    assert len(again.kept) == 2


def test_what_is_wrong_is_named_and_nothing_is_bound():
    first = bound(["files:read"])
    again = bound(["files:list", "nowhere:read", "files", f"files:{'x' * 300}"], list(first.added))
    assert [p.path for p in again.problems] == [
        "declared_tools[1]",
        "declared_tools[2]",
        "declared_tools[3] tool_name",
    ]
    assert msgspec.structs.replace(again, problems=()) == Binding()
