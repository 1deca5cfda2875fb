"""When a tool is quarantined: the one rule, over all there is to know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.policy.pinning import PinnedState, is_quarantined, is_quarantined_by_flags

hashes = st.sampled_from(["h0", "h1", "h2"])
states = st.builds(PinnedState, hashes, hashes, st.booleans(), st.booleans(), st.booleans())


@pytest.mark.req("S-08")
def test_first_sight_is_trusted_but_not_what_is_suspect_under_a_strict_pin():
    assert not is_quarantined(None, "h", strict=True)
    assert not is_quarantined(None, "h", strict=False, suspect=True)
    assert is_quarantined(None, "h", strict=True, suspect=True)


@pytest.mark.req("S-08")
@given(states, hashes, st.booleans())
def test_under_a_strict_pin_only_the_pinned_form_can_be_open(state, current, suspect):
    if not is_quarantined(state, current, strict=True, suspect=suspect):
        assert current == state.pinned


@given(states, hashes, st.booleans(), st.booleans())
def test_a_blocked_tool_is_open_in_no_form(state, current, strict, suspect):
    blocked = state._replace(blocked=True)
    assert is_quarantined(blocked, current, strict=strict, suspect=suspect)


@given(states, hashes, st.booleans(), st.booleans())
def test_a_list_that_comes_again_changes_nothing(state, current, strict, suspect):
    once = is_quarantined(state, current, strict=strict, suspect=suspect)
    after = state._replace(hash=current, quarantined=once)
    assert is_quarantined(after, current, strict=strict, suspect=suspect) is once


@given(states, st.booleans())
def test_what_returns_to_its_approved_form_is_open(state, suspect):
    changed = state._replace(pinned="h0", hash="h1", approved=True, blocked=False)
    assert not is_quarantined(changed, "h0", strict=True, suspect=suspect)


def test_what_returns_to_a_suspect_form_that_nobody_approved_is_not():
    state = PinnedState("h0", "h1", quarantined=True)
    assert is_quarantined(state, "h0", strict=True, suspect=True)
    assert not is_quarantined(state, "h0", strict=True)


@given(states, hashes)
def test_without_a_strict_pin_nothing_comes_into_quarantine(state, current):
    open_one = state._replace(quarantined=False, blocked=False)
    assert not is_quarantined(open_one, current, strict=False, suspect=True)


def test_a_change_does_not_let_out_what_was_in():
    state = PinnedState("h0", "h1", quarantined=True)
    assert is_quarantined(state, "h2", strict=False)
    assert not is_quarantined(state, "h0", strict=False)


def test_only_new_flags_count_and_only_under_a_strict_pin():
    assert is_quarantined_by_flags(["a", "b"], ["a"], strict=True)
    assert not is_quarantined_by_flags(["a"], ["a", "b"], strict=True)
    assert not is_quarantined_by_flags(["a"], [], strict=False)
