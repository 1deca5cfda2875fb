"""Subscriptions: who wants to hear about what, counted."""

from mcp_junction.calls.stages.subscribe import Subscriptions


def wanted_by(*sessions: str) -> Subscriptions:
    register = Subscriptions()
    for session in sessions:
        register.add("s", "a://1", session, f"{session}'s word")
    return register


def test_each_session_counts_once():
    register = wanted_by("one", "one", "two")
    assert register.names("s", "a://1") == {"one": "one's word", "two": "two's word"}
    assert register.of("s") == ["a://1"]


def test_the_last_to_go_is_told_so():
    register = wanted_by("one", "two")
    assert register.remove("s", "a://1", "one") is False
    assert register.remove("s", "a://1", "stranger") is False
    assert register.remove("s", "a://1", "two") is True
    assert register.of("s") == []


def test_what_nobody_wants_has_no_last():
    register = Subscriptions()
    assert register.remove("s", "a://1", "one") is True
    assert register.names("s", "a://1") == {}


def test_servers_with_one_address_are_kept_apart():
    register = wanted_by("one")
    register.add("t", "a://1", "two", "a://1")
    assert list(register.names("t", "a://1")) == ["two"]
    register.remove("t", "a://1", "two")
    assert list(register.names("s", "a://1")) == ["one"]


def test_when_a_session_ends_only_what_nobody_else_wants_is_given_up():
    register = wanted_by("one", "two")
    register.add("s", "a://2", "one", "a://2")
    register.add("t", "b://1", "one", "b://1")
    assert sorted(register.drop("one")) == [("s", "a://2"), ("t", "b://1")]
    assert list(register.names("s", "a://1")) == ["two"]
    assert register.drop("one") == []
