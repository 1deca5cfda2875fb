"""The state machine of a server, all of it."""

import itertools

import pytest

from mcp_junction.upstream.state import SIMPLE_NAMES, ServerState, can_follow, parse_state

ALLOWED = {
    "DISCONNECTED": {"CONNECTING"},
    "CONNECTING": {"CONNECTED", "ERROR"},
    "CONNECTED": {"DEGRADED", "ERROR"},
    "DEGRADED": {"CONNECTED", "ERROR"},
    "ERROR": {"CONNECTING"},
}


@pytest.mark.parametrize(("now", "then"), [*itertools.product(ServerState, ServerState)])
def test_only_the_drawn_transitions_are_allowed(now, then):
    expected = then is ServerState.DISCONNECTED or then.value in ALLOWED[now.value]
    assert can_follow(now, then) is expected


@pytest.mark.req("J-STATES")
@pytest.mark.parametrize("state", ServerState)
def test_a_state_is_read_in_any_case_and_written_in_upper_case(state):
    for text in (state.value, state.value.lower(), state.value.title()):
        assert parse_state(text) is state
    assert str(state) == state.value.upper()


@pytest.mark.req("J-STATES")
@pytest.mark.parametrize(
    ("simple", "state"),
    [
        ("initializing", ServerState.CONNECTING),
        ("running", ServerState.CONNECTED),
        ("Failed", ServerState.ERROR),
        ("STOPPED", ServerState.DISCONNECTED),
    ],
)
def test_the_simple_names_are_understood(simple, state):
    assert parse_state(simple) is state
    assert SIMPLE_NAMES[state] == simple.lower()


def test_a_degraded_server_runs():
    assert SIMPLE_NAMES[ServerState.DEGRADED] == "running"


@pytest.mark.parametrize("text", ["", "up", "CONNECTED ", "5"])
def test_another_word_is_refused_with_those_that_would_do(text):
    with pytest.raises(ValueError, match="use one of CONNECTING, CONNECTED"):
        parse_state(text)
