"""Discovery: a list is read to its end, whatever the server does on the way."""

import itertools
import json
import logging

import msgspec
import pytest

from mcp_junction.catalog.discovery import MAX_WARNINGS, discover
from mcp_junction.catalog.items import ALL, TOOLS, ListItem
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.errors import CircularError, Phase, ServerError
from mcp_junction.protocol import encode
from mcp_junction.protocol.param_headers import ParamHeader
from mcp_junction.protocol.versions import Era
from mcp_junction.resilience.clock import SystemClock
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.handshake import Greeting
from mcp_junction.upstream.outcome import Delivery, Outcome

BOUND = 30.0


def serving(*pages: object, capabilities: tuple[str, ...] = ("tools",)) -> FakeUpstream:
    """A server whose answers to tools/list are these, in turn; bytes stand for themselves."""
    left = iter(pages)

    def answer(flight: Flight) -> Outcome:
        page = next(left)
        if isinstance(page, Outcome):
            return page
        return outcomes.result(page if isinstance(page, bytes) else encode.dumps(page))

    upstream = FakeUpstream("s", script=answer)
    upstream.greeting = Greeting("2025-06-18", {key: {} for key in capabilities})
    return upstream


def tools(*names: str, cursor: object = None) -> dict[str, object]:
    page: dict[str, object] = {"tools": [{"name": name} for name in names]}
    return page if cursor is None else page | {"nextCursor": cursor}


async def discover_tools(upstream: FakeUpstream, timeout: float) -> tuple[ListItem, ...]:
    return (await discover(upstream, TOOLS, timeout)).offers


async def found(upstream: FakeUpstream) -> list[str]:
    return [offer.name for offer in await discover_tools(upstream, BOUND)]


@pytest.mark.req("FR-005")
async def test_a_list_is_read_to_its_last_page():
    upstream = serving(tools("a", "b", cursor="1"), tools("c", cursor="2"), tools("d"))
    assert await found(upstream) == ["a", "b", "c", "d"]
    asked = [json.loads(flight.params) for flight in upstream.wire.flights]
    assert asked == [{}, {"cursor": "1"}, {"cursor": "2"}]


@pytest.mark.req("J-DISCOVERY")
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
async def test_every_kind_of_list_is_read_to_its_last_page(kind):
    pages: list[dict[str, object]] = [
        {kind.member: [{kind.key: f"a://{name}"} for name in names]} for names in ("ab", "c", "d")
    ]
    pages[0]["nextCursor"], pages[1]["nextCursor"] = "1", "2"
    upstream = serving(*pages, capabilities=(kind.capability,))
    offers = (await discover(upstream, kind, BOUND)).offers
    assert [offer.name for offer in offers] == ["a://a", "a://b", "a://c", "a://d"]
    assert {flight.method for flight in upstream.wire.flights} == {kind.list_method}


async def test_a_cursor_is_sent_back_as_it_was_written():
    upstream = serving(b'{"tools":[],"nextCursor":"\\u00e9\\/"}', tools("a"))
    await found(upstream)
    assert upstream.wire.flights[1].params == b'{"cursor":"\\u00e9\\/"}'


async def test_a_server_without_tools_is_not_asked():
    upstream = serving(capabilities=("resources",))
    assert await found(upstream) == []
    assert upstream.wire.flights == []


@pytest.mark.parametrize("cursor", [None, "", 5, {}, False])
async def test_what_is_no_cursor_ends_the_list(cursor):
    page = {"tools": [{"name": "a"}], "nextCursor": cursor}
    assert await found(serving(page)) == ["a"]


async def test_a_list_that_goes_in_a_circle_is_left_with_a_warning(caplog):
    pages = (tools(str(n), cursor=str(n % 3)) for n in itertools.count())
    assert await found(serving(*itertools.islice(pages, 20))) == ["0", "1", "2", "3"]
    assert "circle" in caplog.text


async def test_a_list_without_end_is_left_with_a_warning(caplog, monkeypatch):
    monkeypatch.setattr("mcp_junction.catalog.discovery._MAX_PAGES", 5)
    pages = [tools(str(n), cursor=str(n)) for n in range(10)]
    assert await found(serving(*pages)) == ["0", "1", "2", "3", "4"]
    assert "over 5 pages" in caplog.text


@pytest.mark.req("J-LIST-TWICE")
async def test_of_two_tools_with_one_name_the_first_stands(caplog):
    one = {"name": "same", "description": "first"}
    two = {"name": "same", "description": "second"}
    upstream = serving({"tools": [one, two], "nextCursor": "x"}, {"tools": [two]})
    (offer,) = await discover_tools(upstream, BOUND)
    assert bytes(offer.members["description"]) == b'"first"'
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        "server 's' lists 'same' twice; the first one stands"
    ]


async def test_what_is_odd_is_said_once_however_often_a_list_is_read(caplog):
    page = {"tools": [{"name": "a"}, {"name": "a"}, {"name": "b"}, {"name": 5}]}
    more = {"tools": [*page["tools"], {"name": "b"}]}
    upstream = serving(page, page, more, more)
    for _ in range(4):
        assert await found(upstream) == ["a", "b"]
    said = [record.getMessage() for record in caplog.records]
    assert [("'a' twice" in words, "'b' twice" in words) for words in said] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    await found(serving(page))
    assert len(caplog.records) == len(said) + 2


async def test_a_server_that_is_odd_in_ever_new_ways_is_not_listened_to_for_ever(caplog):
    upstream = serving(*(tools(str(n), str(n)) for n in range(MAX_WARNINGS + 100)))
    for _ in range(MAX_WARNINGS + 100):
        await found(upstream)
    assert len(caplog.records) == MAX_WARNINGS + 1
    assert "more wrong with its lists" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("name", [None, "", 5, ["a"]])
async def test_a_tool_without_a_name_is_left_out_with_a_warning(caplog, name):
    assert await found(serving({"tools": [{"name": name}, {"x": 1}, {"name": "b"}]})) == ["b"]
    assert "without a name" in caplog.text


@pytest.mark.req("FR-005")
@pytest.mark.parametrize("item", [b"null", b"1", b'"a"', b"[]", b'[{"name":"a"}]'])
async def test_what_is_no_tool_at_all_is_left_out_and_spoils_no_other(caplog, item):
    assert await found(serving(b'{"tools":[%b,{"name":"b"}]}' % item)) == ["b"]
    assert "without a name" in caplog.text


@pytest.mark.req("FR-008")
async def test_every_member_of_a_tool_is_kept_as_it_was_written():
    text = b'{ "name":"a", "x" : 1.0 ,"inputSchema":{"z":1,"a":[1e5, -0]},"icons":[ ] }'
    (offer,) = await discover_tools(serving(b'{"tools":[%b]}' % text), BOUND)
    assert {key: bytes(raw) for key, raw in offer.members.items()} == {
        "name": b'"a"',
        "x": b"1.0",
        "inputSchema": b'{"z":1,"a":[1e5, -0]}',
        "icons": b"[ ]",
    }


DEEP = b'{"tools":[{"name":"a","x":%b}]}' % (b"[" * 2000 + b"]" * 2000)


@pytest.mark.parametrize(
    "page",
    [b"{}", b'{"tools":{}}', b'{"tools":1}', b'{"tools":null}', b"[]", b"null", b"5", DEEP],
)
async def test_an_answer_that_makes_no_sense_fails_the_server(page):
    with pytest.raises(ServerError, match="makes no sense") as caught:
        await found(serving(page))
    assert (caught.value.server, caught.value.phase) == ("s", Phase.INITIALIZATION)


@pytest.mark.parametrize(
    "outcome",
    [
        outcomes.refused(b'{"code":-32603,"message":"on fire"}'),
        outcomes.link_lost("s", Delivery.UNKNOWN, "on fire"),
    ],
)
async def test_an_error_on_any_page_fails_the_server_and_says_why(outcome):
    with pytest.raises(ServerError, match="on fire"):
        await found(serving(tools("a", cursor="x"), outcome))


# -- headers that tools ask for

MARKED = {"type": "string", "x-mcp-header": "Region"}
WRONG = {"type": "number", "x-mcp-header": "Region"}


def tool(name: str, argument: object) -> dict[str, object]:
    return {"name": name, "inputSchema": {"properties": {"region": argument}}}


@pytest.mark.parametrize(
    ("transport", "era", "left"),
    [
        ("http", Era.STATELESS, ["good"]),
        ("stdio", Era.STATELESS, ["good", "bad"]),
        ("http", Era.HANDSHAKE, ["good", "bad"]),
    ],
)
async def test_a_tool_whose_headers_make_no_sense_is_left_out_where_they_are_sent(
    transport, era, left
):
    upstream = serving({"tools": [tool("good", MARKED), tool("bad", WRONG)]})
    upstream.definition = ServerDefinition("s", transport)
    upstream.wire.era = era
    offers = await discover_tools(upstream, BOUND)
    assert [offer.name for offer in offers] == left
    assert offers[0].headers == (ParamHeader(("region",), "Region", "string"),)
    assert all(offer.headers == () for offer in offers[1:])


# -- lists without an end


class Passing(SystemClock):
    """A clock on which every look at it takes some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._time = 0.0

    def now(self) -> float:  # type: ignore[override]
        self._time += self._seconds
        return self._time


@pytest.mark.req("R-QUOTA")
@pytest.mark.parametrize("size", [1_000, 9_999, 20_000])
async def test_a_list_ends_at_ten_thousand_items_and_says_so(size):
    endless = (
        tools(*(f"t{n}" for n in range(start, start + size)), cursor=str(start))
        for start in itertools.count(0, size)
    )
    listing = await discover(serving(*itertools.islice(endless, 12)), TOOLS, BOUND)
    assert [offer.name for offer in listing.offers] == [f"t{n}" for n in range(10_000)]
    assert listing.shortfall == "tools/list has more than 10000 items"


async def test_a_list_of_ten_thousand_items_is_whole():
    listing = await discover(serving(tools(*(f"t{n}" for n in range(10_000)))), TOOLS, BOUND)
    assert (len(listing.offers), listing.shortfall) == (10_000, "")


@pytest.mark.req("R-QUOTA")
async def test_a_list_ends_at_64_mib_and_says_so():
    page = {"tools": [{"name": "t", "description": "x" * (10 * 1024 * 1024)}]}
    pages = ({**page, "nextCursor": str(n)} for n in itertools.count())
    upstream = serving(*itertools.islice(pages, 7))
    listing = await discover(upstream, TOOLS, BOUND)
    assert listing.shortfall == "tools/list is larger than 64 MiB"
    assert len(upstream.wire.flights) == 7


@pytest.mark.req("R-QUOTA")
async def test_a_list_ends_after_a_minute_and_says_so():
    upstream = serving(*(tools(str(n), cursor=str(n)) for n in range(10)))
    upstream.clock = Passing(25.0)
    listing = await discover(upstream, TOOLS, BOUND)
    assert [offer.name for offer in listing.offers] == ["0", "1"]
    assert listing.shortfall == "tools/list takes longer than 60 s"


# -- other Junctions


async def test_only_a_junction_is_told_that_a_junction_reads_its_lists():
    upstream = serving(tools("a", cursor="1"), tools("b"))
    upstream.policy = msgspec.structs.replace(upstream.policy, junction_id="here")
    upstream.greeting = msgspec.structs.replace(upstream.greeting, junction_id="there")
    await found(upstream)
    mark = {"_meta": {"junction/id": "here"}}
    asked = [json.loads(flight.params) for flight in upstream.wire.flights]
    assert asked == [mark, {**mark, "cursor": "1"}]


@pytest.mark.req("R-QUOTA")
@pytest.mark.parametrize("reaches", [["there", "here"], ["there"], "here", [5], None])
async def test_a_junction_that_leads_back_is_refused(reaches):
    upstream = serving({**tools("a"), "_meta": {"junction/reaches": reaches}})
    upstream.policy = msgspec.structs.replace(upstream.policy, junction_id="here")
    upstream.greeting = msgspec.structs.replace(upstream.greeting, junction_id="there")
    if reaches == ["there", "here"]:
        with pytest.raises(CircularError, match="leads back"):
            await found(upstream)
    else:
        assert await found(upstream) == ["a"]
    is_read = isinstance(reaches, list) and reaches != [5]
    assert upstream.condition.reachable_junctions == frozenset(reaches if is_read else ())
