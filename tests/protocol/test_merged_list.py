"""Merged lists: whatever the page size, the pages are the list."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_junction.errors import CursorError
from mcp_junction.protocol.merged_list import MergedList, PageCache


def merged(names: list[str], page_size: int) -> MergedList:
    items = [json.dumps({"name": n}).encode() for n in names]
    load = names, lambda start, end: items[start:end]
    return MergedList("tools", lambda: load, PageCache(), object(), page_size)


def names_on(page: bytes) -> list[str]:
    return [tool["name"] for tool in json.loads(page)["tools"]]


def cursor_of(page: bytes) -> str | None:
    return json.loads(page).get("nextCursor")


def walk(listing: MergedList) -> list[list[str]]:
    pages = [listing.page()]
    while cursor := cursor_of(pages[-1]):
        pages.append(listing.page(cursor))
    return [names_on(page) for page in pages]


_names = st.lists(st.text(min_size=1).filter(str.isprintable), unique=True, max_size=25)


@pytest.mark.req("FR-005")
@given(_names, st.integers(0, 30))
def test_the_pages_together_are_the_list(names, page_size):
    pages = walk(merged(names, page_size))
    assert [name for page in pages for name in page] == names
    assert all(len(page) == max(1, page_size) for page in pages[:-1])
    assert pages[-1] or not names, "no empty page at the end"


def test_a_list_that_fits_has_no_cursor():
    assert merged(["a", "b"], 2).page() == b'{"tools":[{"name": "a"},{"name": "b"}]}'
    assert merged([], 2).page() == b'{"tools":[]}'


def test_a_page_is_made_once():
    listing = merged(["a", "b", "c"], 2)
    assert listing.page() is listing.page()
    cursor = cursor_of(listing.page())
    assert listing.page(cursor) is listing.page(cursor)


@given(_names.filter(lambda names: len(names) > 3), st.integers(1, 3), st.data())
def test_after_a_change_the_next_page_begins_behind_the_last_item(names, page_size, data):
    first = merged(names, page_size).page()
    last = names_on(first)[-1]
    others = data.draw(st.lists(st.sampled_from(names).filter(lambda n: n != last), unique=True))
    at = data.draw(st.integers(0, len(others)))
    changed = [*others[:at], last, *others[at:]]
    rest = merged(changed, len(changed)).page(cursor_of(first))
    assert names_on(rest) == others[at:]


def test_a_cursor_whose_item_is_gone_says_to_start_again():
    cursor = cursor_of(merged(["a", "b", "c"], 1).page())
    with pytest.raises(CursorError, match="start again"):
        merged(["b", "c"], 1).page(cursor)


def _cursor(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "abc=", "é", "\ud800", "AAAA", "1", "null", "MQ==", "////", "=" * 8]
    + [_cursor(value) for value in (1, None, [], [1], ["a", 1], [1, 2], [1, "a", 2], {"a": 1})],
)
def test_a_foreign_or_garbled_cursor_is_refused(cursor):
    with pytest.raises(CursorError):
        merged(["a", "b"], 1).page(cursor)


@given(st.text(max_size=40))
def test_any_text_as_cursor_is_a_page_or_a_cursor_error(cursor):
    try:
        merged(["a", "b"], 1).page(cursor)
    except CursorError:
        pass


@pytest.mark.parametrize("start", [-1, 0, 2, 10**30])
def test_a_cursor_with_a_false_position_goes_by_the_name(start):
    listing = merged(["a", "b", "c"], 5)
    assert names_on(listing.page(_cursor([start, "a"]))) == ["b", "c"]


def test_a_false_cursor_cannot_fill_the_memory_with_pages():
    names = [str(n) for n in range(100)]
    listing = merged(names, 10)
    pages = {listing.page(_cursor([0, name])) for name in names}
    assert len(pages) == 100
    assert len(listing._cache) <= 11


def test_the_pages_used_longest_ago_are_dropped_beyond_the_limit():
    cache = PageCache(limit=25_000)
    for key in "abc":
        cache.put(key, None, b"x" * 10_000)
    assert [cache.get(key, None) is not None for key in "abc"] == [False, True, True]
    cache.get("b", None)
    cache.put("d", None, b"x" * 10_000)
    assert [cache.get(key, None) is not None for key in "bcd"] == [True, False, True]
    cache.put("large", None, b"x" * 100_000)
    assert len(cache) == 1
    assert cache.get("large", None) == b"x" * 100_000, "the newest stays, however large"


def test_cursors_that_a_client_makes_up_are_not_kept():
    cache = PageCache()
    names = [f"n{number}" for number in range(6)]
    items = [json.dumps({"name": name}).encode() for name in names]
    load = names, lambda start, end: items[start:end]
    listing = MergedList("tools", lambda: load, cache, object(), 2)
    page = listing.page(cursor_of(listing.page()))
    for wrong in range(50):  # each leads to the same page by the name of the last item
        made_up = base64.urlsafe_b64encode(json.dumps([1000 + wrong, "n1"]).encode()).decode()
        assert listing.page(made_up) == page
    assert len(cache) == 2


def test_a_page_that_is_put_again_counts_once():
    """Cursors that a client makes up lead to one page, whose size must not add up."""
    cache = PageCache(limit=25_000)
    cache.put("other", None, b"x" * 10_000)
    for _ in range(50):
        cache.put("listing", "cursor", b"x" * 10_000)
    assert cache.get("other", None) is not None
    assert cache.get("listing", "cursor") is not None
