"""Latencies in bins, and the tallies of calls: percentiles, buckets, who has labels."""

import bisect
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.telemetry.tallies import (
    BOUNDS,
    BUCKETS,
    OTHER,
    CallTallies,
    Tally,
    count_in_bins,
    count_in_buckets,
    keep_busiest,
    percentiles,
)

pytestmark = pytest.mark.req("REQ-MCP-OBS-001")
LATENCY = st.floats(0.002, 3_600_000) | st.sampled_from(BUCKETS)


def tally_of(*latencies: float) -> Tally:
    tally = Tally()
    tally.times += latencies
    return tally


@given(st.lists(LATENCY, min_size=1, max_size=200))
def test_percentiles_are_right_within_five_percent_and_buckets_exactly(latencies):
    bins = tally_of(*latencies).bins
    ordered = sorted(latencies)
    for share in (0.5, 0.95, 0.99, 1.0):
        rank = -(-share * len(ordered) // 1)  # the ceiling
        exact = ordered[int(rank) - 1]
        (found,) = percentiles(bins, [share])
        assert found == pytest.approx(exact, rel=0.05)
    expected = [sum(one <= bound for one in latencies) for bound in BUCKETS]
    assert count_in_buckets(bins) == [*expected, len(latencies)]


@given(st.lists(st.floats(0, 1e9) | st.sampled_from(BOUNDS), max_size=100))
def test_counting_many_at_once_is_counting_one_by_one(values):
    expected: dict[int, int] = {}
    for value in values:
        place = bisect.bisect_left(BOUNDS, value)
        expected[place] = expected.get(place, 0) + 1
    assert count_in_bins(list(values), BOUNDS) == expected


def test_without_calls_there_is_no_percentile():
    assert percentiles({}, (0.5, 0.99)) == [None, None]


def test_the_busiest_are_kept_and_the_rest_is_added_up():
    tallies = {("s", f"t{n}"): tally_of(*[1.0] * n) for n in range(1, 7)}
    tallies[OTHER] = tally_of(1.0)
    kept = keep_busiest(tallies, 2)
    assert {key: tally.calls for key, tally in kept.items()} == {
        ("s", "t6"): 6,
        ("s", "t5"): 5,
        OTHER: 1 + 2 + 3 + 4 + 1,
    }


def count(tallies: CallTallies, tool: str, calls: int = 1) -> None:
    tallies.open(("s", tool)).times += [1.0] * calls


def totals(tallies: CallTallies) -> dict:
    return {key[1]: tally.calls for key, tally in tallies.totals().items()}


def test_only_some_pairs_have_totals_of_their_own_and_nothing_is_lost():
    tallies = CallTallies(labelled=3)
    for tool in "abcde":
        count(tallies, tool, 2)
    assert totals(tallies) == {"a": 2, "b": 2, "c": 2, "other": 4}
    assert {key[1]: t.calls for key, t in tallies.take_minute().items()} == dict.fromkeys(
        "abcde", 2
    )
    assert totals(tallies) == {"a": 2, "b": 2, "c": 2, "other": 4}
    assert tallies.take_minute() == {}


def test_a_pair_that_is_clearly_busier_takes_the_place_of_another_and_begins_at_zero():
    tallies = CallTallies(labelled=2)
    for tool, calls in (("a", 50), ("b", 3), ("c", 100)):
        count(tallies, tool, calls)
    tallies.take_minute()
    assert totals(tallies) == {"a": 50, "c": 0, "other": 100}
    count(tallies, "c", 7)
    count(tallies, "b")
    assert totals(tallies) == {"a": 50, "c": 7, "other": 101}


def test_no_total_ever_becomes_smaller_while_it_is_shown():
    rng, tallies, before = random.Random(3), CallTallies(labelled=5, counted=20), {}
    for _ in range(400):
        for _ in range(rng.randrange(8)):
            count(tallies, f"t{int(rng.paretovariate(0.7)) % 60}", rng.randrange(1, 9))
        if rng.random() < 0.3:
            tallies.take_minute()
            before = {key: value for key, value in before.items() if key in totals(tallies)}
        now = totals(tallies)
        assert len(now) <= 6
        assert all(now[key] >= value for key, value in before.items() if now[key])
        before = now
