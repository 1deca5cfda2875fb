"""The chain itself: its macs are HMACs, and entries become pages of rows in their order."""

import hmac

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.audit.chain import TAG, Chain, Entry, Seals

KEY = bytes(range(32))


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(min_size=1, max_size=64))
def test_a_mac_is_an_hmac(one, two, key):
    assert Seals(key).digest(one, two) == hmac.digest(key, one + two, "sha256")


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_each_page_follows_the_one_before_and_no_other(actors):
    chain, seals = Chain(KEY, "w"), Seals(KEY)
    entries = [Entry(kind="call", actor=actor, action="x", at=1.0) for actor in actors]
    pages = [chain.extend([entry]).page for entry in entries] + [chain.extend(entries).page]
    before = seals.genesis("w")
    for page in pages:
        assert seals.follows(before, page)
        assert not seals.follows(bytes(32), page)
        assert not Seals(b"other").follows(before, page)
        assert seals.first_bad_row(page) is None
        before = page.mac
    assert (chain.seq, chain.mac) == (2 * len(actors), before)
    assert [row.seq for page in pages for row in page.rows()] == [*range(1, chain.seq + 1)]


@given(st.integers(1, 6), st.data())
def test_whatever_byte_of_a_page_is_changed_its_row_is_named(count, data):
    entries = [Entry(kind="call", actor=f"a{n}", action="x", at=1.0) for n in range(count)]
    page = Chain(KEY, "w").extend(entries).page
    place = data.draw(st.integers(0, len(page.body) - 1))
    other = bytes([data.draw(st.integers(0, 255).filter(lambda byte: byte != page.body[place]))])
    body = page.body[:place] + other + page.body[place + 1 :]
    changed = msgspec.structs.replace(page, body=body)
    assert not Seals(KEY).follows(Seals(KEY).genesis("w"), changed)
    assert Seals(KEY).first_bad_row(changed) == page.body[:place].count(b"\n") + 1


def test_a_row_that_was_copied_over_another_with_its_tag_is_named():
    page = (
        Chain(KEY, "w")
        .extend([Entry(kind="call", actor=f"a{n}", action="x", at=1.0) for n in range(4)])
        .page
    )
    lines = page.lines
    lines[2] = lines[1]
    tags = page.tags[: 2 * TAG] + page.tags[TAG : 2 * TAG] + page.tags[3 * TAG :]
    copied = msgspec.structs.replace(page, body=b"\n".join(lines), tags=tags)
    assert Seals(KEY).first_bad_row(copied) == 3


def test_an_intent_is_open_until_its_outcome_wherever_that_lies():
    chain = Chain(KEY, "w")
    intent = Entry(kind="intent", actor="a", action="x", at=1.0)
    first = chain.extend([intent, intent, _closing("w:1")])
    assert (first.opens, first.closes) == ([2], [])
    second = chain.extend([_closing("w:2"), _closing("another:7")])
    assert (second.opens, second.closes) == ([], [("w", 2), ("another", 7)])


def _closing(what: str) -> Entry:
    return Entry(kind="outcome", actor="a", action="x", at=1.0, closes=what)
