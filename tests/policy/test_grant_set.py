"""The grants of one agent: what they admit, whatever their number."""

import random

import msgspec
import pytest

from mcp_junction.policy.grant_set import MAX_NAME, GrantSet, GrantsInForce
from mcp_junction.policy.grants import KINDS, CallLimit, Grant
from mcp_junction.policy.patterns import compile_pattern
from mcp_junction.policy.tokens import TokenMode

NOW = 1_000.0


def grant(name: str, server: str = "s1", **more) -> Grant:
    more.setdefault("id", f"{server}.{name}")
    return Grant(agent_id="a", server_id=server, tool_name=name, **more)


def admitted(grants: list[Grant], name: str, *, kind="tools", server="s1", now=NOW) -> str | None:
    found = GrantSet("a", grants).admits(kind, server, name, now)
    return found.id if found is not None else None


def test_without_a_grant_nothing_is_admitted():
    assert admitted([], "read") is None
    assert len(GrantSet("a")) == 0


def test_any_one_grant_admits():
    grants = [grant("read"), grant("write*")]
    assert admitted(grants, "read") == "s1.read"
    assert admitted(grants, "write_file") == "s1.write*"
    assert admitted(grants, "delete") is None


def test_a_grant_is_for_its_server_or_for_all():
    grants = [grant("read"), grant("list_*", "*")]
    assert admitted(grants, "read", server="s2") is None
    assert admitted(grants, "list_all", server="s2") == "*.list_*"
    assert admitted(grants, "list_all") == "*.list_*"


def test_a_grant_is_for_its_kinds():
    assert admitted([grant("*")], "hello", kind="prompts") is None
    assert admitted([grant("*", kinds=KINDS)], "hello", kind="prompts") == "s1.*"


def test_a_grant_ends_when_it_expires():
    grants = [grant("read", expires_at=NOW + 10)]
    assert admitted(grants, "read", now=NOW + 9.9) is not None
    assert admitted(grants, "read", now=NOW + 10) is None
    some = GrantSet("a", grants)
    assert some.admits("tools", "s1", "read", NOW) is not None
    assert some.admits("tools", "s1", "read", NOW + 10) is None  # also when it was remembered


def test_the_most_lenient_grant_comes_first():
    grants = [
        grant("read", id="limited", limits=CallLimit(1, 60), token_mode=TokenMode.NONE),
        grant("r*", id="single", token_mode=TokenMode.SINGLE_USE),
        grant("*d", id="short", expires_at=NOW + 1),
        grant("re*", id="window"),
        grant("*", id="free", token_mode=TokenMode.NONE, server="*"),
    ]
    found = GrantSet("a", grants).matching("tools", "s1", "read")
    assert [one.id for one in found] == ["free", "window", "short", "single", "limited"]


def test_a_grant_whose_condition_is_not_compiled_admits_nothing():
    assert admitted([grant("*", when="true")], "read") is None
    assert len(GrantSet("a", [grant("*", when="true")])) == 1


def test_it_says_when_the_next_grant_expires():
    some = GrantSet("a", [grant(str(n), expires_at=n) for n in (30.0, 10.0, 20.0)] + [grant("x")])
    found = [GrantsInForce(some, at).until for at in (0, 10, 19.9, 20, 30)]
    assert found == [10, 20, 20, 30, float("inf")]


URI = "file:///srv/public/a.txt"


def test_a_uri_pattern_does_not_lead_out_of_its_folder():
    grants = [grant("file:///srv/public/*", kinds=("resources",))]
    assert admitted(grants, URI, kind="resources") is not None
    for devious in ("../secret", "%2e%2e/secret", "..%2fsecret", ".\t./secret"):
        assert admitted(grants, f"file:///srv/public/{devious}", kind="resources") is None


def test_everything_covers_devious_uris_too():
    devious = "file:///srv/public/../secret"
    assert admitted([grant("*", kinds=("resources",))], devious, kind="resources") == "s1.*"
    assert admitted([grant("**", kinds=("resources",))], devious, kind="resources") is None


def test_a_name_of_a_tool_is_no_path():
    assert admitted([grant("a/*")], "a/../b") is not None


def test_only_everything_covers_a_name_without_end():
    endless = "x" * (MAX_NAME + 1)
    assert admitted([grant("x*")], endless) is None
    assert admitted([grant("*")], endless) == "s1.*"


@pytest.mark.parametrize("kind", ["tools", "resources"])
@pytest.mark.parametrize("chosen", [slice(0), slice(2), slice(3, 5), slice(4), slice(6), slice(9)])
def test_what_is_said_of_a_servers_names_is_what_each_is_answered(kind, chosen):
    given = [
        grant("tool_1", kinds=KINDS),
        grant("tool_2", kinds=KINDS, expires_at=NOW),
        grant("get_*", kinds=KINDS),
        grant("x", "*", kinds=KINDS),
        grant("a/../b", kinds=KINDS),
        grant("set_*", "s2", kinds=KINDS),
        grant("*", kinds=KINDS),
    ][chosen]
    some = GrantSet("a", given, server_ids={"one": "s1"})
    names = [*(f"tool_{n}" for n in range(5)), "get_a", "set_a", "x", "a/../b", "get_/../b"]
    admits = GrantsInForce(some, NOW).of(kind, "one")
    expected = [name for name in names if some.admits(kind, "s1", name, NOW) is not None]
    assert [name for name in names if admits is not None and admits(name)] == expected
    if admits is None:
        assert expected == []


def test_it_knows_when_it_has_everything():
    def has_everything(server: str, **more) -> bool:
        return GrantsInForce(GrantSet("a", [grant("*", server, **more)]), NOW).has_everything

    assert has_everything("*", kinds=KINDS)
    assert not has_everything("*", kinds=("tools",))
    assert not has_everything("s1", kinds=KINDS)
    assert not has_everything("*", kinds=KINDS, expires_at=NOW)


def test_what_is_remembered_is_bounded():
    some = GrantSet("a", [grant("tool_*")])
    for n in range(2_000):
        assert some.admits("tools", "s1", f"tool_{n}", NOW) is not None
        assert some.admits("tools", "s1", f"x_{n}", NOW) is None
    assert len(some._remembered) <= 512


def naive(grants: list[Grant], kind: str, server: str, name: str, now: float) -> set[str]:
    return {
        one.id
        for one in grants
        if kind in one.kinds
        and one.server_id in ("*", server)
        and (one.expires_at is None or now < one.expires_at)
        and compile_pattern(one.tool_name).matches(name)
    }


@pytest.mark.bulk
def test_many_patterns_find_what_trying_each_finds():
    dice = random.Random(5)
    words = ["get", "set", "file", "user", "a", "b", "_", "x1"]
    names = ["".join(dice.choices(words, k=dice.randrange(1, 6))) for _ in range(200)]
    for size in (1, 16, 17, 100, 1_000):
        grants = [
            grant(
                "".join(dice.choices([*words, "*", "?"], k=dice.randrange(1, 7))),
                dice.choice(["s1", "s2", "*"]),
                id=f"g{n}",
                kinds=dice.choice([("tools",), ("prompts",), KINDS]),
                expires_at=dice.choice([None, None, 5.0, 15.0]),
            )
            for n in range(size)
        ]
        some = GrantSet("a", grants)
        for name in names:
            for now in (0.0, 10.0, 20.0):
                found = some.matching("tools", "s1", name)
                live = {one.id for one in found if one.is_live(now)}
                assert live == naive(grants, "tools", "s1", name, now), name


@pytest.mark.bulk
@pytest.mark.parametrize("pattern", ["tool_{}", "tool_{}*", "*_{}", "*tool?{}*"])
def test_of_ten_thousand_grants_only_a_few_are_tried(pattern, monkeypatch):
    tried = 0
    match = type(compile_pattern("*a")).matches

    def counted(self, name):
        nonlocal tried
        tried += 1
        return match(self, name)

    some = GrantSet("a", [grant(pattern.format(n), id=str(n)) for n in range(10_000)])
    monkeypatch.setattr(type(compile_pattern("*a")), "matches", counted)
    assert "4321" in {one.id for one in some.matching("tools", "s1", "tool_4321")}
    assert tried <= 200
    before = tried
    assert some.admits("tools", "s1", "tool_4321", NOW) is not None
    assert tried == before  # made again, a call is one look-up


def test_a_grant_cannot_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        grant("read").tool_name = "*"
    assert msgspec.structs.replace(grant("read"), tool_name="*").tool_name == "*"


def test_several_grants_of_one_name_are_all_found():
    grants = [grant("read", id="one"), grant("read", id="two", kinds=KINDS)]
    found = GrantSet("a", grants).matching("tools", "s1", "read")
    assert [one.id for one in found] == ["one", "two"]
