"""Backoff: eager at first, patient later, never for ever and never all at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.resilience.backoff import (
    EAGER_CAP,
    FIRST,
    PATIENT_AFTER,
    PATIENT_CAP,
    delay,
    retry_delay,
)

_attempts = st.integers(0, 10**6)
_down = st.floats(0, 10**7)
_dice = st.floats(0, 1, exclude_max=True)


@given(_attempts, st.floats(0, PATIENT_AFTER, exclude_max=True), _dice)
def test_in_the_first_two_minutes_attempts_are_at_most_a_second_apart(attempt, down_for, dice):
    assert 0 <= delay(attempt, down_for, lambda: dice) <= EAGER_CAP == 1.0


@given(_attempts, _down, _dice)
def test_later_they_are_at_most_thirty_seconds_apart_and_never_end(attempt, down_for, dice):
    assert 0 <= delay(attempt, down_for, lambda: dice) <= PATIENT_CAP == 30.0


def test_the_longest_wait_doubles_up_to_the_cap():
    waits = [delay(attempt, 0.0, lambda: 1.0) for attempt in range(6)]
    assert waits == [FIRST, FIRST * 2, FIRST * 4, FIRST * 8, EAGER_CAP, EAGER_CAP]
    assert delay(50, PATIENT_AFTER, lambda: 1.0) == PATIENT_CAP


@given(_attempts, _down)
def test_the_jitter_is_full(attempt, down_for):
    assert delay(attempt, down_for, lambda: 0.0) == 0.0
    longest = delay(attempt, down_for, lambda: 1.0)
    assert delay(attempt, down_for, lambda: 0.5) == longest / 2


# -- between the attempts of a call


def test_a_call_is_repeated_after_half_a_second_then_twice_that():
    waits = [retry_delay(n, 0.5, 2.0, 30.0, lambda: 0.5) for n in range(8)]
    assert waits == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30])


@given(st.integers(0, 10**6), st.floats(0.001, 100), st.floats(1, 1e6), _dice)
def test_its_jitter_is_a_fifth_either_way_and_the_cap_comes_last(retry, base, factor, dice):
    wait = retry_delay(retry, base, factor, 30.0, lambda: dice)
    assert 0 < wait <= 30.0
    middle = retry_delay(retry, base, factor, float("inf"), lambda: 0.5)
    if middle != float("inf"):
        assert wait == pytest.approx(min(30.0, middle * (0.8 + 0.4 * dice)))


def test_a_long_series_does_not_overflow():
    assert retry_delay(10**6, 0.5, 1e6, 30.0, lambda: 0.0) == 30.0
