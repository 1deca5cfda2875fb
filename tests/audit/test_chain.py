"""The chain itself: its macs are HMACs, and entries become pages of rows in their order."""

import hmac
import json
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.audit.chain import AuditBatch, Chain
from mcp_junction.audit.checkpoints import TAG, Seals
from mcp_junction.audit.entries import Entry
from mcp_junction.redaction.payloads import digest_params, summarize
from mcp_junction.store.audit_records import AuditRow

KEY = bytes(range(32))
SAME = set(Entry.__struct_fields__) & set(AuditRow.__struct_fields__) - {"detail"}


def entry_of(actor: str, at: float = 1.0, **more) -> Entry:
    return Entry(kind="call", actor=actor, action="x", at=at, **more)


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(min_size=1, max_size=64))
def test_a_mac_is_an_hmac(one, two, key):
    assert Seals(key).digest(one, two) == hmac.digest(key, one + two, "sha256")


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_each_page_follows_the_one_before_and_no_other(actors):
    chain, seals = Chain(KEY, "w"), Seals(KEY)
    entries = [entry_of(actor) for actor in actors]
    pages = [chain.extend([entry]).page for entry in entries] + [chain.extend(entries).page]
    before = seals.genesis("w")
    for page in pages:
        assert seals.is_next(before, page)
        assert not seals.is_next(bytes(32), page)
        assert not Seals(b"other").is_next(before, page)
        assert seals.first_bad_row(page) is None
        before = page.mac
    assert (chain.seq, chain.mac) == (2 * len(actors), before)
    assert [row.seq for page in pages for row in page.rows()] == [*range(1, chain.seq + 1)]


@given(st.integers(1, 6), st.data())
def test_whatever_byte_of_a_page_is_changed_its_row_is_named(count, data):
    page = Chain(KEY, "w").extend([entry_of(f"a{n}") for n in range(count)]).page
    place = data.draw(st.integers(0, len(page.body) - 1))
    other = bytes([data.draw(st.integers(0, 255).filter(lambda byte: byte != page.body[place]))])
    body = page.body[:place] + other + page.body[place + 1 :]
    changed = msgspec.structs.replace(page, body=body)
    assert not Seals(KEY).is_next(Seals(KEY).genesis("w"), changed)
    assert Seals(KEY).first_bad_row(changed) == page.body[:place].count(b"\n") + 1


@given(st.integers(1, 6), st.data())
def test_whatever_byte_of_its_tags_is_changed_its_row_is_named(count, data):
    page = Chain(KEY, "w").extend([entry_of(f"a{n}") for n in range(count)]).page
    place = data.draw(st.integers(0, len(page.tags) - 1))
    other = bytes([page.tags[place] ^ data.draw(st.integers(1, 255))])
    changed = msgspec.structs.replace(page, tags=page.tags[:place] + other + page.tags[place + 1 :])
    assert not Seals(KEY).is_next(Seals(KEY).genesis("w"), changed)
    assert Seals(KEY).first_bad_row(changed) == place // TAG + 1


@pytest.mark.parametrize("more", [b"", b"{}", b'["w",3]'])
def test_a_line_that_was_added_is_found_and_numbered(more):
    page = Chain(KEY, "w").extend([entry_of("a"), entry_of("b")]).page
    longer = msgspec.structs.replace(page, body=page.body + b"\n" + more)
    assert not Seals(KEY).is_next(Seals(KEY).genesis("w"), longer)
    assert Seals(KEY).first_bad_row(longer) == 3


def test_a_tag_that_was_added_is_found():
    page = Chain(KEY, "w").extend([entry_of("a")]).page
    longer = msgspec.structs.replace(page, tags=page.tags + page.tags)
    assert not Seals(KEY).is_next(Seals(KEY).genesis("w"), longer)
    assert Seals(KEY).first_bad_row(longer) == 2


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


@given(
    st.builds(
        Entry,
        kind=st.sampled_from(["call", "denied"]),
        actor=TEXT,
        action=TEXT,
        at=st.floats(0, 1e10),
        role=TEXT,
        correlation_id=st.none() | TEXT,
        server_id=st.none() | TEXT,
        target=st.none() | TEXT,
        decision=st.none() | TEXT,
        cached=st.booleans(),
        params=st.none() | st.binary(max_size=30) | st.sampled_from([b'{"b":1,"a":[2]}']),
        outcome=st.none() | TEXT,
        delivery=st.none() | TEXT,
        attempts=st.integers(0, 9),
        latency_ms=st.none() | st.floats(0, 1e6),
        result=st.none() | st.binary(max_size=600),
        detail=st.none() | st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)),
        agent_id=st.none() | TEXT,
        tool_name=st.none() | TEXT,
        rule=st.none() | TEXT,
        ticket_id=st.none() | TEXT,
        task_id=st.none() | TEXT,
    )
)
def test_a_line_is_what_its_row_is_encoded_as(entry):
    page = Chain(KEY, "w").extend([entry]).page
    (row,) = page.rows()
    assert msgspec.json.encode(row) == page.body
    assert row == AuditRow(
        writer="w",
        seq=1,
        params_sha256=digest_params(entry.params),
        summary=summarize(entry.result),
        detail=row.detail,
        **{name: getattr(entry, name) for name in SAME},
    )
    assert row.detail is None if entry.detail is None else json.loads(row.detail) == entry.detail


@pytest.mark.req("R-MEMORY")
def test_an_entry_that_waits_for_the_store_holds_nothing_long_and_its_row_is_the_same():
    long = b'{"password":"hunter2","text":"%b"}' % (b"x" * 100_000)
    entry = entry_of("bot", params=long, result=long)
    line = Chain(KEY, "w").extend([entry]).page.body
    entry.shorten()
    held = [value for value in msgspec.structs.astuple(entry) if isinstance(value, bytes | str)]
    assert sum(map(len, held)) < 2_000
    assert Chain(KEY, "w").extend([entry]).page.body == line


@pytest.mark.req("R-MEMORY")
def test_a_page_that_is_made_piece_by_piece_lets_go_of_what_is_encoded_and_is_the_same():
    entries = [entry_of(f"a{n}", at=float(n % 3), result=b"[%d]" % n) for n in range(9)]
    whole = Chain(KEY, "w").extend([msgspec.structs.replace(one) for one in entries]).page
    batch, held = AuditBatch(Chain(KEY, "w")), entries[0]
    alone = sys.getrefcount(held)
    while entries:
        batch.add([entries.pop(0) for _ in range(3)])
        batch.encode_now()
    assert sys.getrefcount(held) == alone - 1  # its list is gone, and the page has none
    assert (len(batch), batch.seal().page) == (9, whole)


def test_a_name_that_no_database_takes_is_mended_every_time():
    long = "x" * 600
    entries = [entry_of(name, target=name) for name in ("a\0b", "\ud800", long) for _ in range(2)]
    rows = list(Chain(KEY, "w").extend(entries).page.rows())
    assert [row.actor for row in rows[:4]] == ["a\ufffdb"] * 2 + ["?"] * 2
    assert rows[4].actor == rows[5].actor == rows[5].target
    assert rows[4].actor.startswith("x" * 512 + "…")
    assert len(rows[4].actor) < 600


def test_a_row_that_was_copied_over_another_with_its_tag_is_named():
    page = Chain(KEY, "w").extend([entry_of(f"a{n}") for n in range(4)]).page
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


def test_rows_from_before_governed_calls_are_read_and_their_decisions_translated():
    """A page that an earlier version wrote, with its own words and fewer columns."""
    entries = [entry_of("a", decision=word) for word in ("allowed", "denied", "unknown", None)]
    page = Chain(KEY, "w").extend(entries).page
    lines = [msgspec.json.encode(msgspec.json.decode(line)[:20]) for line in page.lines]
    old = msgspec.structs.replace(page, tags=Seals(KEY).tags(lines), body=b"\n".join(lines))
    assert [row.decision for row in old.rows()] == ["ALLOW", "DENY", "unknown", None]
    assert {row.acting_agent for row in old.rows()} == {"a"}
    assert {row.tool_name for row in old.rows()} == {None}
    assert Seals(KEY).first_bad_row(old) is None
