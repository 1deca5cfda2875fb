"""Ranges of versions: which a tool may have."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.policy.versions import is_compatible, parse_range, parse_version


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=1.2,<2", ["1.2", "1.2.0", "1.10", "1.99.9", "v1.3"], ["1.1.9", "2", "2.0.0", "0.9"]),
        ("1.2.0", ["1.2.0", "1.2", "v1.2.0", "1.2.0+build.5"], ["1.2.1", "1.2.0-rc1", "latest"]),
        ("==1.2", ["1.2.0"], ["1.3"]),
        ("=1.2", ["1.2.0"], ["1.3"]),
        ("!=1.2", ["1.3", "latest"], ["1.2.0"]),
        (">1.2", ["1.2.1", "1.2.post1"], ["1.2", "1.2.0-rc1"]),
        ("<=1.2", ["1.2", "1.1", "1.2-rc1"], ["1.2.1"]),
        (">= 1.2 , < 2 , != 1.5", ["1.4"], ["1.5", "2.1"]),
        ("*", ["1", "latest", ""], []),
        ("latest", ["latest"], ["1.0", "Latest"]),
        ("2025-06-18", ["2025-06-18"], ["2025-06-19"]),
        (">=2025-06-18,<2026-01-01", ["2025-11-25"], ["2025-03-26", "2026-07-28"]),
        ("<2", ["1.9"], ["2.0.0-rc1", "2.0rc1", "2"]),
        ("<2.0.0-rc2", ["2.0.0-rc1", "1.9"], ["2.0.0-rc2", "2.0.0"]),
        (">=1.0.0-alpha", ["1.0.0-alpha.1", "1.0.0-beta", "1.0.0"], ["0.9"]),
    ],
)
def test_a_range_has_what_people_mean(text, inside, outside):
    versions = parse_range(text)
    assert [one for one in inside if not versions.has(one)] == []
    assert [one for one in outside if versions.has(one)] == []


@pytest.mark.parametrize(
    "text", ["", ",", ">=", "1.2,", "a b", ">=latest", "<x", "=>1", "^1.2 || 2", "1" * 300]
)
def test_what_is_not_a_range_says_what_to_write(text):
    with pytest.raises(ValueError, match=r"write|at most"):
        parse_range(text)


def test_one_of_several_ranges_is_enough():
    ranges = [parse_range("1.0"), parse_range(">=2,<3")]
    assert is_compatible("1.0.0", ranges)
    assert is_compatible("2.5", ranges)
    assert not is_compatible("1.5", ranges)


def test_what_has_no_version_or_no_range_is_compatible():
    assert is_compatible(None, [parse_range("1.0")])
    assert is_compatible("9.9", [])


def test_versions_are_ordered_as_semver_says():
    order = (
        "0.9 1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11"
        " 1.0.0-rc.1 1.0.0 1.0.0.post1 1.0.1 1.2 1.10 2"
    )
    parsed = [parse_version(text) for text in order.split()]
    assert None not in parsed
    assert all(a < b for a, b in pairwise(parsed))


@given(st.text(max_size=40))
def test_any_text_is_a_version_or_is_none(text):
    parsed = parse_version(text)
    assert parsed is None or parsed == parse_version(text)
    assert parse_range("*").has(text)


def test_every_version_is_below_at_or_above_another():
    dice = random.Random(3)
    some = [
        ".".join(str(dice.randrange(12)) for _ in range(dice.randrange(1, 4))) for _ in "x" * 99
    ]
    for one in some:
        for other in some:
            tests = [parse_range(f"{sign}{other}").has(one) for sign in ("<", "==", ">")]
            assert sum(tests) == 1
            assert parse_range(f">={other}").has(one) is not tests[0]
            assert parse_range(f"<={other}").has(one) is not tests[2]
            assert parse_range(f"!={other}").has(one) is not tests[1]
