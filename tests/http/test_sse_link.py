"""A link over the older HTTP+SSE: one stream for everything, an address to post to."""

import asyncio
import json

import pytest
from tests.http.links import Ears, Rider, call, definition, failure, fly, landed, sse_link
from tests.http.origin import BOUND, Origin, Visit

from mcp_junction.errors import ServerError
from mcp_junction.protocol.versions import DEFAULT_LIMIT
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.http import connection as connections
from mcp_junction.upstream.http import pool as pools
from mcp_junction.upstream.http.sse_link import SseLink
from mcp_junction.upstream.outcome import Delivery


class Older:
    """A server of the older transport. It answers nothing until the test says so."""

    def __init__(self, endpoint: str = "/messages?id=1", status: int = 202) -> None:
        self.endpoint = endpoint
        self.status = status
        self.stream: Visit | None = None

    async def __call__(self, visit: Visit) -> None:
        if visit.method == "GET":
            self.stream = visit
            visit.stream()
            visit.chunk(f": hello\n\nevent: endpoint\ndata: {self.endpoint}\n\n".encode())
        else:
            visit.answer(self.status)

    def say(self, message: object) -> None:
        self.stream.chunk(f"event: message\ndata: {json.dumps(message)}\n\n".encode())

    def answer(self, visit: Visit, result: object = None) -> None:
        self.say({"jsonrpc": "2.0", "id": visit.message["id"], "result": result or {}})


@pytest.mark.parametrize("endpoint", ["/messages?id=1", "messages?id=1", "{origin}/messages?id=1"])
async def test_messages_are_posted_where_the_stream_says(endpoint):
    server = Older()
    async with Origin(server) as origin:
        server.endpoint = endpoint.format(origin=f"http://127.0.0.1:{origin.port}")
        async with sse_link(origin) as link:
            flight = fly(link)
            visit = await origin.visited("tools/call")
            assert visit.path == "/messages?id=1"
            server.answer(visit, {"ok": 1})
            assert json.loads(bytes((await landed(flight)).payload)) == {"ok": 1}


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.2:{port}/messages",
        "http://localhost:{port}/messages",
        "https://127.0.0.1:{port}/messages",
        "http://127.0.0.1:1/messages",
        "//evil.example/messages",
        "http://127.0.0.1:{port}@evil.example/messages",
        "ftp://127.0.0.1:{port}/messages",
        "/a b",
    ],
)
async def test_an_address_that_is_not_the_servers_own_is_refused(endpoint):
    server = Older()
    async with Origin(server) as origin:
        server.endpoint = endpoint.format(port=origin.port)
        with pytest.raises(ServerError, match=r"another origin|makes no sense"):
            async with sse_link(origin):
                pass
        assert [visit.method for visit in origin.visits] == ["GET"]


async def test_hints_before_the_stream_are_not_taken_for_it():
    server = Older()

    async def hinting(visit: Visit) -> None:
        visit.raw(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n")
        await server(visit)

    async with Origin(hinting) as origin, sse_link(origin) as link:
        flight = fly(link)
        server.answer(await origin.visited("tools/call"), {"ok": 1})
        assert json.loads(bytes((await landed(flight)).payload)) == {"ok": 1}


async def test_a_stream_that_is_none_is_refused():
    async def nothing(visit: Visit) -> None:
        visit.answer(404)

    async with Origin(nothing) as origin:
        with pytest.raises(ServerError, match="HTTP 404 where a stream of events should be"):
            async with sse_link(origin):
                pass


async def test_a_server_that_is_not_there_is_named():
    link = SseLink(definition("http://127.0.0.1:1/sse", "sse"), Ears(), DEFAULT_LIMIT)
    with pytest.raises(ServerError, match="'far' failed during startup: connection refused"):
        await link.start()


async def test_answers_come_in_any_order():
    server = Older()
    async with Origin(server) as origin, sse_link(origin) as link:
        flights = [fly(link) for _ in range(5)]
        await origin.visited("tools/call", 5)
        for visit in reversed(origin.told("tools/call")):
            server.answer(visit, {"id": visit.message["id"]})
        for flight in flights:
            answer = json.loads(bytes((await landed(flight)).payload))
            assert answer == {"id": int(flight.wire_id)}


async def test_a_question_is_answered_where_calls_are_posted():
    server = Older()
    async with Origin(server) as origin, sse_link(origin) as link:
        fly(link, rider=Rider())
        await origin.visited("tools/call")
        server.say({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
        answer = await origin.until(lambda: [v for v in origin.visits if "result" in v.message])
        assert answer[0].message == {"jsonrpc": "2.0", "id": "q", "result": {"asked": "roots/list"}}


async def test_what_belongs_to_no_call_is_heard():
    server, ears = Older(), Ears()
    async with Origin(server) as origin, sse_link(origin, ears):
        server.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        assert await ears.heard_all(1) == ["notifications/tools/list_changed"]


async def test_the_end_of_the_stream_ends_everything_that_is_under_way():
    server = Older()
    async with Origin(server) as origin, sse_link(origin) as link:
        flights = [fly(link) for _ in range(3)]
        await origin.visited("tools/call", 3)
        server.stream.hang_up()
        await asyncio.wait_for(link.wait_closed(), BOUND)
        await link.release((await link.describe_end()).what)
        for flight in flights:
            error = await failure(flight)
            assert (error["code"], error["data"]["delivery"]) == (-32005, Delivery.UNKNOWN)
        assert (await failure(link))["data"]["delivery"] == Delivery.NOT_SENT


async def test_a_message_that_is_refused_ends_its_own_call_only():
    server = Older(status=413)
    async with Origin(server) as origin, sse_link(origin) as link:
        error = await failure(link)
        assert "HTTP 413" in error["message"]
        assert not link.closed.done()
        server.status = 202
        flight = fly(link)
        server.answer(await origin.visited("tools/call", 2))
        assert (await landed(flight)).kind is outcomes.OutcomeKind.RESULT


async def test_a_server_that_no_longer_knows_us_is_lost():
    server = Older(status=404)
    async with Origin(server) as origin, sse_link(origin) as link:
        fly(link)
        await asyncio.wait_for(link.wait_closed(), BOUND)
        assert "no longer knows us" in (await link.describe_end()).what


async def test_a_cancelled_call_is_named_by_our_id():
    async with Origin(Older()) as origin, sse_link(origin) as link:
        flight = fly(link)
        await origin.visited("tools/call")
        flight.abandon(outcomes.cancelled("enough", Delivery.UNKNOWN), "enough")
        told = await origin.visited("notifications/cancelled")
        assert told.message["params"] == {"requestId": int(flight.wire_id), "reason": "enough"}


async def test_a_call_cancelled_before_it_was_sent_is_never_sent():
    server = Older()
    async with Origin(server) as origin, sse_link(origin) as link:
        flight = fly(link)  # there is no connection to post on yet
        flight.abandon(outcomes.cancelled("enough", Delivery.NOT_SENT), "enough")
        after = fly(link)
        server.answer(await origin.visited("tools/call"))
        await landed(after)
        assert [v.message["id"] for v in origin.visits if v.body] == [int(after.wire_id)]


async def test_an_event_over_the_limit_loses_the_link():
    server = Older()
    async with Origin(server) as origin:
        link = SseLink(definition(origin.url, "sse"), Ears(), 1000)
        await link.start()
        server.say("x" * 2000)
        await asyncio.wait_for(link.wait_closed(), BOUND)
        assert "over the limit of 1000 bytes" in (await link.describe_end()).what
        await link.end(0.0)


async def test_a_call_that_could_not_be_posted_was_not_sent():
    server = Older()
    async with Origin(server) as origin, sse_link(origin) as link:
        await origin.refuse()
        error = await failure(link)
        assert error["data"]["delivery"] == Delivery.NOT_SENT
        await origin.listen()
        flight = fly(link)
        server.answer(await origin.visited("tools/call"))
        assert (await landed(flight)).kind is outcomes.OutcomeKind.RESULT
        assert await call_after(link, server, origin) == {}


async def call_after(link: SseLink, server: Older, origin: Origin) -> object:
    task = asyncio.create_task(call(link))
    server.answer(await origin.visited("tools/call", 2))
    return await task


async def test_nothing_overtakes_the_word_that_the_conversation_is_open():
    server, heard = Older(), []

    async def slowly(visit: Visit) -> None:
        if visit.rpc == "notifications/initialized":
            for _ in range(50):  # turns of the loop in which something could come in between
                await asyncio.sleep(0)
        heard.append(visit.rpc)
        await server(visit)

    async with Origin(slowly) as origin, sse_link(origin) as link:
        await link.begin_session("2024-11-05")
        flight = fly(link)
        server.answer(await origin.visited("tools/call"))
        await landed(flight)
    assert heard == ["", "notifications/initialized", "tools/call"]


@pytest.mark.req("R-ISOLATE")
async def test_a_server_that_answers_no_post_does_not_use_up_the_connections(monkeypatch):
    monkeypatch.setattr(pools, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "OVERDUE_AFTER", 0.0)

    class Silent(Older):
        async def __call__(self, visit: Visit) -> None:
            if visit.method == "GET":
                await super().__call__(visit)

    server = Silent()
    async with Origin(server) as origin, sse_link(origin) as link:
        for _ in range(3):
            link.notify("notifications/x")
        for number in range(1, 5):
            flight = fly(link)
            server.answer(await origin.visited("tools/call", number))
            await landed(flight)
