"""Rates and quotas: what passes, what waits, and for how long."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.resilience.buckets import (
    Buckets,
    CallWindow,
    TokenBucket,
    WindowState,
    take_from_each,
)

NOW = 100_000.0


def passed(limiter, times: int, now: float) -> int:
    count = 0
    for _ in range(times):
        if not limiter.wait(now):
            limiter.take(now)
            count += 1
    return count


# -- buckets


def test_a_bucket_allows_a_burst_and_then_its_rate():
    bucket = TokenBucket(rate=2.0, burst=5, now=NOW)
    assert passed(bucket, 100, NOW) == 5
    assert bucket.wait(NOW) == 0.5
    assert passed(bucket, 100, NOW + 1) == 2
    assert passed(bucket, 100, NOW + 1_000) == 5


def test_who_waits_as_long_as_it_says_passes():
    dice, now = random.Random(2), NOW
    bucket = TokenBucket(rate=3.0, burst=2, now=now)
    for _ in range(1_000):
        now += bucket.wait(now)
        assert bucket.wait(now) == 0.0
        bucket.take(now)
        now += dice.random() * 0.3


def test_a_bucket_of_less_than_one_still_allows_one():
    assert passed(TokenBucket(rate=0.1, burst=0, now=NOW), 5, NOW) == 1


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing():
    bucket = TokenBucket(rate=1.0, burst=2, now=NOW)
    assert passed(bucket, 5, NOW) == 2
    assert bucket.wait(NOW - 3_600) == 1.0
    assert passed(bucket, 5, NOW - 3_599) == 1


def test_buckets_are_one_for_each_key_and_bounded():
    buckets = Buckets(rate=1.0, burst=1, limit=100)
    for n in range(1_000):
        assert passed(buckets.of(("agent", n), NOW), 2, NOW) == 1
        assert len(buckets) <= 100
    assert buckets.of(("agent", 999), NOW) is buckets.of(("agent", 999), NOW)
    buckets.of("late", NOW + 10)
    for n in range(100):
        buckets.of(n, NOW + 10)
    assert len(buckets) <= 100


# -- windows


def test_a_window_allows_so_many_within_its_time():
    window = CallWindow(100, 3_600.0)
    assert passed(window, 500, NOW) == 100
    wait = window.wait(NOW)
    assert 3_600 <= wait <= 3_660
    assert passed(window, 500, NOW + wait) == 100


@pytest.mark.bulk
@given(st.integers(1, 20), st.sampled_from([1.0, 60.0, 3_600.0]), st.integers(0, 10**6))
def test_within_any_such_time_no_more_pass(calls, per, seed):
    dice, now = random.Random(seed), NOW
    window = CallWindow(calls, per)
    times: list[float] = []
    for _ in range(200):
        now += dice.expovariate(calls * 2 / per)
        if not window.wait(now):
            window.take(now)
            times.append(now)
            assert sum(now - per < at for at in times) <= calls
        if dice.random() < 0.1:
            window = CallWindow(calls, per, window.state)  # a restart
    assert len(times) >= calls


@given(st.integers(1, 20), st.integers(0, 10**6))
def test_who_waits_as_long_as_a_window_says_passes(calls, seed):
    dice, now = random.Random(seed), NOW
    window = CallWindow(calls, 60.0)
    for _ in range(50):
        now += dice.random() * 5
        wait = window.wait(now)
        assert wait <= 61.0 + 1e-6
        now += wait + 1e-6
        assert window.wait(now) == 0.0
        window.take(now)


def test_windows_of_a_minute_survive_a_restart():
    assert CallWindow(1, 60.0).is_kept
    assert not CallWindow(1, 59.0).is_kept
    window = CallWindow(3, 60.0)
    assert passed(window, 2, NOW) == 2
    again = CallWindow(3, 60.0, window.state)
    assert passed(again, 9, NOW + 10) == 1
    assert passed(CallWindow(5, 60.0, window.state), 9, NOW) == 3  # the limit was raised


def test_the_state_of_another_window_is_not_taken():
    assert passed(CallWindow(3, 60.0, WindowState(3_600.0, {1: 3})), 9, NOW) == 3


def test_a_clock_that_was_put_back_does_not_lock_a_window():
    window = CallWindow(2, 60.0)
    assert passed(window, 5, NOW) == 2
    past = NOW - 86_400
    assert 60 <= window.wait(past) <= 62
    assert passed(window, 5, past + 62) == 2


# -- several limits at once


def test_a_call_is_counted_by_all_of_its_limits_or_by_none():
    agent, server = TokenBucket(1.0, 5, NOW), TokenBucket(1.0, 2, NOW)
    assert [take_from_each((agent, server), NOW) for _ in range(3)] == [True, True, False]
    assert passed(agent, 9, NOW) == 3


def test_without_limits_everything_passes():
    assert take_from_each((), NOW)


@given(seed=st.integers(0, 2**32))
def test_taking_from_several_is_the_same_as_asking_each(seed):
    draw, now = random.Random(seed), NOW
    rates = [(draw.uniform(0.1, 5), draw.randint(1, 6)) for _ in range(3)]
    ours, model = ([TokenBucket(*rate, now) for rate in rates] for _ in range(2))
    for _ in range(200):
        now += draw.choice((0.0, 0.01, 0.3, 2.0, -1.0))
        allowed = not any(bucket.wait(now) for bucket in model)
        for bucket in model if allowed else ():
            bucket.take(now)
        assert take_from_each(ours, now) is allowed
