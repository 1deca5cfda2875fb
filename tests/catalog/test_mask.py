"""Mask: a set of numbers, a byte for each, joined as sets are."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.catalog.roll import Mask, known

masks = st.lists(st.integers(0, 1), max_size=40).map(Mask)


@given(masks, masks)
def test_masks_are_joined_as_sets_of_their_numbers_are(one: Mask, other: Mask):
    mine, theirs = set(one.numbers()), set(other.numbers())
    assert set((one | other).numbers()) == mine | theirs
    assert set((one & other).numbers()) == mine & theirs
    assert set((one - other).numbers()) == mine - theirs
    assert len(one | other) == max(len(one), len(other))
    assert len(one & other) == len(one - other) == len(one)
    assert Mask.of(mine, len(one)) == one


def test_what_is_present_or_departed_is_known():
    assert known(bytes([0, 1, 2, 0])).numbers() == [1, 2]
