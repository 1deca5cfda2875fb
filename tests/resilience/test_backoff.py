"""Backoff: eager at first, patient later, never for ever and never all at once."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.resilience.backoff import EAGER_CAP, FIRST, PATIENT_AFTER, PATIENT_CAP, delay

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
