"""The chain itself: its macs are HMACs, and entries become rows in their order."""

import hmac

from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.audit.chain import Chain, Entry, Macs

KEY = bytes(range(32))


@given(st.binary(max_size=300), st.binary(min_size=1, max_size=64))
def test_a_mac_is_an_hmac(message, key):
    assert Macs(key).digest(message) == hmac.digest(key, message, "sha256")


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_each_row_follows_the_one_before_and_no_other(actors):
    chain, macs = Chain(KEY, "w"), Macs(KEY)
    entries = [Entry(kind="call", actor=actor, action="x", at=1.0) for actor in actors]
    sealed = chain.extend(entries[:1]) + chain.extend(entries[1:])
    assert [one.row.seq for one in sealed] == list(range(1, len(actors) + 1))
    before = macs.genesis("w")
    for one in sealed:
        assert macs.follows(before, one)
        assert not macs.follows(bytes(32), one)
        assert not Macs(b"other").follows(before, one)
        before = one.mac
    assert (chain.seq, chain.mac) == (len(actors), before)
