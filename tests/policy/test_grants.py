"""A grant: what it says, what makes one valid, and how one is written on a command line."""

import math

import msgspec
import pytest

from mcp_junction.errors import Problem
from mcp_junction.policy.grants import (
    KINDS,
    OWNER_GRANT,
    CallLimit,
    Grant,
    GrantSource,
    GrantTarget,
    check_grant,
    is_evasive_uri,
    migrated_grant,
    order_kinds,
    parse_target,
    regrant,
)
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.policy.tokens import TokenMode

ADMIN = Principal("root", Role.ADMIN)
ORCHESTRATOR = Principal("conductor", Role.ORCHESTRATOR)
NOW = 1_000.0
PLAIN = Grant("g1", "agent-1", "server-1", "read_*")


def problems(by=ADMIN, **changes) -> list[str]:
    found = check_grant(msgspec.structs.replace(PLAIN, **changes), by, NOW)
    return [problem.path for problem in found]


def test_a_plain_grant_is_fine():
    assert problems() == []
    assert check_grant(OWNER_GRANT, LOCAL_OWNER, NOW) == []
    assert check_grant(migrated_grant("g", "a", NOW), ADMIN, NOW) == []


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"agent_id": ""}, "agent_id"),
        ({"agent_id": "a" * 256}, "agent_id"),
        ({"agent_id": "a\nb"}, "agent_id"),
        ({"server_id": ""}, "server_id"),
        ({"tool_name": ""}, "tool_name"),
        ({"tool_name": "x" * 257}, "tool_name"),
        ({"tool_name": "file:///srv/../etc/*", "kinds": ("resources",)}, "tool_name"),
        ({"tool_name": "file:///srv/%2e%2e/*", "kinds": KINDS}, "tool_name"),
        ({"kinds": ()}, "kinds"),
        ({"kinds": ("tools", "skills")}, "kinds"),
        ({"kinds": ("prompts", "tools")}, "kinds"),
        ({"kinds": ("tools", "tools")}, "kinds"),
        ({"actions": ()}, "actions"),
        ({"actions": ("invoke", "read")}, "actions"),
        ({"token_ttl": 0.0}, "token_ttl"),
        ({"token_ttl": -1.0}, "token_ttl"),
        ({"token_ttl": math.inf}, "token_ttl"),
        ({"token_ttl": math.nan}, "token_ttl"),
        ({"limits": CallLimit(0, 60)}, "limits.calls"),
        ({"limits": CallLimit(1, 0.5)}, "limits.per"),
        ({"limits": CallLimit(1, math.nan)}, "limits.per"),
        ({"expires_at": NOW}, "expires_at"),
        ({"expires_at": math.nan}, "expires_at"),
        ({"note": "x" * 1_001}, "note"),
        ({"when": "args.path =="}, "when"),
    ],
)
def test_what_is_wrong_is_named_and_how_to_mend_it(changes, path):
    assert problems(**changes) == [path]
    (problem,) = check_grant(msgspec.structs.replace(PLAIN, **changes), ADMIN, NOW)
    assert len(problem.message) > 10


def test_everything_that_is_wrong_is_found_at_once():
    assert problems(agent_id="", tool_name="", note="x" * 1_001) == [
        "agent_id",
        "tool_name",
        "note",
    ]


def test_only_an_administrator_grants_without_tokens():
    assert problems(token_mode=TokenMode.NONE) == []
    assert problems(LOCAL_OWNER, token_mode=TokenMode.NONE) == []
    assert problems(ORCHESTRATOR, token_mode=TokenMode.NONE) == ["token_mode"]


def test_dots_in_a_tool_name_are_no_path():
    assert problems(tool_name="../read", kinds=("tools", "prompts")) == []


def test_the_owners_grant_is_explicit():
    assert OWNER_GRANT.agent_id == LOCAL_OWNER.id
    assert (OWNER_GRANT.server_id, OWNER_GRANT.tool_name) == ("*", "*")
    assert OWNER_GRANT.kinds == KINDS
    assert OWNER_GRANT.source is GrantSource.OWNER
    assert OWNER_GRANT.token_mode is TokenMode.NONE


def test_a_migrated_grant_is_marked():
    grant = migrated_grant("g9", "a", NOW)
    assert grant.source is GrantSource.MIGRATED
    assert grant.granted_by == "migrated"
    assert (grant.id, grant.agent_id, grant.granted_at) == ("g9", "a", NOW)


def test_a_grant_given_again_is_the_same_one_with_new_terms():
    again = msgspec.structs.replace(PLAIN, id="g2", expires_at=2_000.0)
    assert again.key == PLAIN.key
    merged = regrant(PLAIN, again)
    assert (merged.id, merged.version, merged.expires_at) == ("g1", 2, 2_000.0)
    assert msgspec.structs.replace(PLAIN, kinds=KINDS).key != PLAIN.key


def test_a_grant_survives_being_written_down():
    grant = msgspec.structs.replace(PLAIN, limits=CallLimit(100, 3600.0), expires_at=5.0)
    assert msgspec.json.decode(msgspec.json.encode(grant), type=Grant) == grant


def test_kinds_have_one_order():
    assert order_kinds(["resources", "tools", "tools"]) == ("tools", "resources")
    assert order_kinds(["x", "prompts"]) == ("prompts", "x")


# -- URIs that lead elsewhere


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/../etc/passwd",
        "file:///srv/..",
        "../etc",
        "..",
        "file:..",
        "file:///srv/..\\etc",
        "file:///srv\\..\\etc",
        "file:///srv/..;/etc",
        "file:///srv/..?x",
        "file:///srv/..#x",
        "x://h/?path=../etc",
        "x://h/?a=1&b=..",
        "file:///srv/%2e%2e/etc",
        "file:///srv/.%2E/etc",
        "file:///srv/%2e./etc",
        "file:///srv%2f..%2fetc",
        "file:///srv%2Fetc",
        "file:///srv%5cetc",
        "file:///srv%5Cetc",
        "file:///srv/%252e%252e/etc",
        "file:///srv/%25252e/etc",
        "file:///srv/%c0%ae/etc",
        "file:///srv/%C1%9c/etc",
        "file:///srv/.\t./etc",
        "file:///srv/.\n./etc",
        "file:///srv/ ../etc",
    ],
)
def test_a_devious_uri_is_known(uri):
    assert is_evasive_uri(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/a..b",
        "file:///srv/...",
        "file:///srv/..a",
        "file:///srv/a../b",
        "file:///srv/.hidden",
        "file:///srv/a%20b",
        "file:///srv/100%25",
        "x://h/é",
        "note://1",
        "",
    ],
)
def test_a_plain_uri_is_not_devious(uri):
    assert not is_evasive_uri(uri)


# -- as written on a command line

SERVERS = {"files": "id-1", "id-1": "id-1", "my.files": "id-2", "a:b": "id-3"}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("*", GrantTarget("*", "*", KINDS)),
        ("files.*", GrantTarget("id-1", "*", KINDS)),
        ("files.read_*", GrantTarget("id-1", "read_*", ("tools",))),
        ("id-1.read", GrantTarget("id-1", "read", ("tools",))),
        ("files.a.b", GrantTarget("id-1", "a.b", ("tools",))),
        ("my.files.read", GrantTarget("id-2", "read", ("tools",))),
        ("*.read_*", GrantTarget("*", "read_*", ("tools",))),
    ],
)
def test_a_target_names_a_server_and_a_pattern(text, target):
    assert parse_target(text, SERVERS) == target


@pytest.mark.parametrize("text", ["", ".", "files", "files.", "other.read", ".read", "**"])
def test_a_target_without_a_known_server_says_how_to_write_one(text):
    found = parse_target(text, SERVERS)
    assert isinstance(found, Problem)
    assert "server.tool" in found.message


def test_a_target_that_fits_two_servers_is_refused():
    found = parse_target("my.files.read", {**SERVERS, "my": "id-4"})
    assert isinstance(found, Problem)
    assert "several servers" in found.message


def test_a_declared_tool_has_another_separator():
    assert parse_target("a:b:c", SERVERS, ":") == GrantTarget("id-3", "c", ("tools",))
    assert parse_target("files:read.me", SERVERS, ":") == GrantTarget("id-1", "read.me", ("tools",))
