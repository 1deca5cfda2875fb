"""Patterns of names: what they match, and what a hostile one costs."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from mcp_junction.policy.patterns import MAX_PATTERN, compile_pattern, is_exact


def naive(pattern: str, name: str) -> bool:
    """The textbook's table: row by row, whether the beginnings match."""
    row = [True] + [False] * len(name)
    for char in pattern:
        below = [char == "*" and row[0]]
        for at, letter in enumerate(name):
            if char == "*":
                below.append(below[at] or row[at + 1])
            else:
                below.append(row[at] and char in ("?", letter))
        row = below
    return row[-1]


@given(st.text("ab*?", max_size=10), st.text("ab", max_size=12))
@example("a*a", "a")
@example("*?*", "")
@example("ab?*", "ab")
@example("a*?b", "ab")
@example("*a?a*", "aaba")
@example("", "")
def test_it_matches_what_the_textbook_does(pattern, name):
    assert compile_pattern(pattern).matches(name) is naive(pattern, name)


@pytest.mark.bulk
def test_it_matches_what_the_textbook_does_a_hundred_thousand_times():
    dice = random.Random(17)
    names = ["".join(dice.choices("abc", k=dice.randrange(12))) for _ in range(100)]
    for _ in range(1_000):
        pattern = "".join(dice.choices("abc*?", k=dice.randrange(10)))
        compiled = compile_pattern(pattern)
        for name in names:
            assert compiled.matches(name) is naive(pattern, name), (pattern, name)


@pytest.mark.parametrize("char", list(".^$+()[]{}|\\-#~!/%\n\0é"))
def test_no_other_character_is_special(char):
    pattern = compile_pattern(f"a{char}b*")
    assert pattern.matches(f"a{char}bc")
    assert not pattern.matches("aXbc")
    assert not pattern.matches("ab")


def test_a_question_mark_is_one_character_of_any_kind():
    assert compile_pattern("?").matches("😀")
    assert compile_pattern("a?c").matches("a\nc")
    assert not compile_pattern("?").matches("")
    assert not compile_pattern("?").matches("ab")


def test_case_counts():
    assert not compile_pattern("Read*").matches("read_file")


@pytest.mark.parametrize("text", ["read", "read_file", "a.b", "[a]"])
def test_a_pattern_without_wildcards_is_exact(text):
    assert is_exact(text)
    assert compile_pattern(text).is_exact
    assert compile_pattern(text).matches(text)


@given(st.text("ab*?", max_size=10), st.text("ab", max_size=12))
def test_every_literal_of_a_pattern_is_in_what_it_matches(pattern, name):
    compiled = compile_pattern(pattern)
    if compiled.matches(name):
        assert all(literal in name for literal in compiled.literals)


HOSTILE = [
    "*a" * 127 + "b",
    "*" + "a?" * 126 + "b*",
    "?*" * 128,
    "*?" * 128,
    "*" + "?a" * 60 + "*" + "a?" * 60 + "b",
    "*" * MAX_PATTERN,
    "a" * 255 + "*",
    "*" + "a" * 254 + "b",
]


class Counted(dict):
    """The masks of a segment, counting how often they are asked for."""

    steps = 0

    def get(self, key, default=None):
        Counted.steps += 1
        return super().get(key, default)


@pytest.mark.parametrize("pattern", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_pattern_looks_at_each_character_once(pattern):
    assert len(pattern) <= MAX_PATTERN
    compiled = compile_pattern(pattern)
    middle = tuple(replace(one, masks=Counted(one.masks)) for one in compiled.middle)
    counted = replace(compiled, middle=middle)
    for name in ("a" * 8_000, "ab" * 4_000, "a" * 7_999 + "b"):
        Counted.steps = 0
        assert counted.matches(name) is compiled.matches(name)
        assert Counted.steps <= len(name)
