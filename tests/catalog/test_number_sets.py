"""Sets of the numbers of a Roll: an integer with a bit for each, joined as sets are."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.catalog.roll import bits_of, known, numbers_in

some = st.sets(st.integers(0, 40))


@given(some, some)
def test_sets_of_numbers_are_joined_as_sets_are(mine: set[int], theirs: set[int]):
    one, other = bits_of(mine), bits_of(theirs)
    assert numbers_in(one | other) == sorted(mine | theirs)
    assert numbers_in(one & other) == sorted(mine & theirs)
    assert numbers_in(one & ~other) == sorted(mine - theirs)
    assert one.bit_count() == len(mine)
    assert bits_of(numbers_in(one)) == one


def test_what_is_present_or_departed_is_known():
    assert numbers_in(known(bytes([0, 1, 2, 0]))) == [1, 2]
    assert known(b"") == 0
