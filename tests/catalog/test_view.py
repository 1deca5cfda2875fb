"""Catalog and View: names to routes, lists as bytes, and nothing that changes under a call."""

import json
import time

import pytest

from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.items import ListItem, ServerLists
from mcp_junction.protocol import frames
from mcp_junction.protocol.names import PLATFORM, STDIO, STRICT, Pair, Spelling
from mcp_junction.testing.link import FakeUpstream, catalog_of

BARE = Spelling(":", prefixed=False)


def listed(view, cursor: str | None = None) -> list[dict]:
    return json.loads(view.items.page(cursor))["tools"]


def names(view) -> list[str]:
    return [tool["name"] for tool in listed(view)]


@pytest.mark.req("FR-004", "US2-1", "US2-2", "US2-4", "SC-006")
async def test_every_tool_is_listed_under_its_servers_key_in_the_order_of_the_file():
    catalog = catalog_of(FakeUpstream("z", ["search", "a"]), FakeUpstream("a", ["search"]))
    assert names(catalog.view(STDIO)) == ["z:search", "z:a", "a:search"]
    assert names(catalog.view(STRICT)) == ["z__search", "z__a", "a__search"]
    assert catalog.view(STDIO).names_of("z") == ["z:search", "z:a"]


async def test_the_order_is_that_of_the_file_whoever_comes_first():
    one, two = FakeUpstream("one"), FakeUpstream("two")
    catalog = Catalog()
    for upstream in (two, one):
        catalog = catalog.with_offering(upstream.offering(), ["one", "two"])
    assert names(catalog.view(STDIO)) == ["one:echo", "two:echo"]


@pytest.mark.req("FR-008")
async def test_a_tool_is_listed_byte_for_byte_but_for_its_name():
    text = b'{"x":1.0,"name":"read","inputSchema":{"b":1e5,"a": [-0]},"\xc3\xa9":"\\u00e9\\/"}'
    upstream = FakeUpstream("files")
    offer = ListItem("read", frames.members(text))
    catalog = Catalog().with_offering(ServerLists(upstream, (offer,)), ["files"])
    expected = text.replace(b'"read"', b'"files:read"')
    assert catalog.view(STDIO).items.page() == b'{"tools":[%b]}' % expected


@pytest.mark.req("FR-006", "J-NAMES-ANY")
@pytest.mark.parametrize("spelling", [STDIO, PLATFORM, STRICT, BARE])
@pytest.mark.parametrize("name", ["my files:read", "my files.read", "my_files__read"])
async def test_a_call_may_use_any_spelling_whatever_was_shown(spelling, name):
    upstream = FakeUpstream("my files", ["read", "write"])
    route = catalog_of(upstream).view(spelling).find(name)
    assert route is not None
    assert (route.upstream, route.pair) == (upstream, Pair("my files", "read"))
    assert route.canonical == "my files:read"
    assert bytes(route.raw_name) == b'"read"'


@pytest.mark.req("J-NAMES-TABLE", "S-06")
@pytest.mark.parametrize("spelling", [STDIO, PLATFORM, STRICT, BARE])
async def test_names_are_looked_up_and_never_split(spelling):
    catalog = catalog_of(FakeUpstream("a", ["b.c", "b:c"]), FakeUpstream("a.b", ["c"]))
    view = catalog.view(spelling)
    shown = {name: view.find(name).pair for name in names(view)}
    assert list(shown.values()) == [Pair("a", "b.c"), Pair("a", "b:c"), Pair("a.b", "c")]
    for other in (STDIO, PLATFORM, STRICT):
        for name in names(catalog.view(other)):
            route, meant = view.find(name), catalog.view(other).find(name).pair
            assert name in shown or route is None or route.pair == meant
    assert view.find("a") is None
    assert view.find("") is None


@pytest.mark.req("EDGE-CONFLICT")
async def test_a_tool_that_leaves_does_not_give_its_name_to_another():
    one, two = FakeUpstream("one", ["search"]), FakeUpstream("two", ["search"])
    before = catalog_of(one, two)
    after = before.without("one")
    assert names(before.view(BARE))[1:] == names(after.view(BARE))
    assert before.view(BARE).find("search").upstream is one
    assert after.view(BARE).find("search") is None


@pytest.mark.req("US3-4", "J-NOT-FOUND")
async def test_the_nearest_names_are_those_that_look_alike_or_end_alike():
    view = catalog_of(
        FakeUpstream("files", ["read_file", "write_file"]), FakeUpstream("clock", ["now"])
    ).view(STDIO)
    assert view.nearest("files:read_fiel")[0] == "files:read_file"
    assert view.nearest("read_file")[0] == "files:read_file"
    assert "clock:now" in view.nearest("time:now")
    assert view.nearest("CLOCK:NOW")[0] == "clock:now"
    assert view.nearest("zzzzzzzz") == []
    assert len(view.nearest("file")) <= 3


@pytest.mark.bulk
async def test_nearest_names_among_thousands_take_little_work():
    tools = [f"tool_number_{n}_does_things" for n in range(10_000)] + ["fetch_invoice_pdf"]
    view = catalog_of(FakeUpstream("big", tools)).view(STDIO)
    assert view.nearest("fetch_invoice")[0] == "big:fetch_invoice_pdf"
    spent = []
    for number in range(3):
        began = time.thread_time()
        view.nearest(f"big:tool_number_x{number}_does_thangs")
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.1, "CPU seconds of this thread"


async def test_a_catalog_is_never_changed_only_followed():
    one, two = FakeUpstream("one"), FakeUpstream("two")
    first = catalog_of(one)
    view = first.view(STDIO)
    second = first.with_offering(two.offering(), ["one", "two"])
    third = second.without("one")
    assert names(view) == names(first.view(STDIO)) == ["one:echo"]
    assert names(third.view(STDIO)) == ["two:echo"]
    assert first.generation < second.generation < third.generation
    assert first.view(STDIO) is view, "made once"


async def test_a_server_that_comes_again_offers_what_it_says_now():
    one = FakeUpstream("one", ["old"])
    catalog = catalog_of(one).without("one")
    again = FakeUpstream("one", ["new"])
    view = catalog.with_offering(again.offering(), ["one"]).view(STDIO)
    assert names(view) == ["one:new"]
    assert view.find("one:old") is None
    assert view.find("one:new").upstream is again


async def test_pages_are_as_large_as_the_catalog_says():
    catalog = Catalog(page_size=2).with_offering(
        FakeUpstream("s", ["a", "b", "c"]).offering(), ["s"]
    )
    page = json.loads(catalog.view(STDIO).items.page())
    assert len(page["tools"]) == 2
    assert len(listed(catalog.view(STDIO), page["nextCursor"])) == 1


@pytest.mark.req("US3-3")
@pytest.mark.parametrize(("own", "general", "timeout"), [(0, 0, 0), (0, 9, 9), (1500, 9, 1.5)])
async def test_a_deadline_is_the_servers_own_or_the_general_one_or_none(own, general, timeout):
    upstream = FakeUpstream("s", timeout_ms=own)
    catalog = Catalog(timeout=general).with_offering(upstream.offering(), ["s"])
    assert catalog.view(STDIO).find("s:echo").timeout == timeout


@pytest.mark.req("US2-3", "EDGE-KEYS")
@pytest.mark.parametrize("key", ["a b", "ключ", 'q"uote', "\n", "\u202e", "😀"])
async def test_a_key_of_any_characters_is_listed_and_found(key):
    view = catalog_of(FakeUpstream(key)).view(STDIO)
    assert names(view) == [f"{key}:echo"]
    assert view.find(f"{key}:echo") is not None


def test_an_offer_of_nothing_is_an_empty_list():
    assert Catalog().view(STDIO).items.page() == b'{"tools":[]}'
    assert Catalog().view(STDIO).find("x") is None
    assert Catalog().view(STDIO).nearest("x") == []
