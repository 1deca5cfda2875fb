"""A link over HTTP in the stateless era: headers instead of a session, streams that are calls."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.http.links import Ears, Rider, call, definition, failure, fly, landed
from tests.http.origin import BOUND, Handler, Origin, Visit

from mcp_junction.protocol.versions import DEFAULT_LIMIT, Era
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import new_flight
from mcp_junction.upstream.http.link import HttpLink
from mcp_junction.upstream.outcome import Delivery

VERSION = "2026-07-28"


@asynccontextmanager
async def linked(
    calls: Handler, ears: Ears | None = None
) -> AsyncIterator[tuple[Origin, HttpLink]]:
    async with Origin(calls) as origin:
        link = HttpLink(definition(origin.url), ears or Ears(), DEFAULT_LIMIT)
        await link.begin_session(VERSION)
        try:
            yield origin, link
        finally:
            await link.end(0.0)


async def plainly(visit: Visit) -> None:
    visit.result({"ok": True}, mcp_session_id="s1")


async def test_every_request_says_version_and_method_and_what_its_call_adds():
    async with linked(plainly) as (origin, link):
        flight = new_flight("tools/call")
        flight.params = b'{"name":"t"}'
        flight.headers = b"mcp-name: t\r\nmcp-param-region: =?base64?w7w=?=\r\n"
        link.send(flight)
        await landed(flight)
        await call(link, method="tools/list")
        first, second = origin.visits
        assert first.headers["mcp-protocol-version"] == VERSION
        assert first.headers["mcp-method"] == "tools/call"
        assert first.headers["mcp-name"] == "t"
        assert first.headers["mcp-param-region"] == "=?base64?w7w=?="
        assert second.headers["mcp-method"] == "tools/list"
        assert "mcp-name" not in second.headers


async def test_there_is_no_session_no_standing_stream_and_no_farewell():
    async with linked(plainly) as (origin, link):
        assert link.era is Era.STATELESS
        await call(link)
        await call(link)
    assert [visit.method for visit in origin.visits] == ["POST", "POST"]
    assert not any("mcp-session-id" in visit.headers for visit in origin.visits)


async def test_a_method_that_cannot_be_a_header_is_wrapped():
    async with linked(plainly) as (origin, link):
        await call(link, method="x\r\ny: z")
        assert origin.visits[0].headers["mcp-method"] == "=?base64?eA0KeTogeg==?="


async def test_cancelling_closes_the_stream_and_says_nothing():
    async def hold(visit: Visit) -> None:
        visit.stream()
        await visit.gone.wait()

    async with linked(hold) as (origin, link):
        flight = fly(link)
        visit = await origin.visited("tools/call")
        flight.abandon(outcomes.cancelled("enough", Delivery.UNKNOWN), "enough")
        async with asyncio.timeout(BOUND):
            await visit.gone.wait()
        assert len(origin.visits) == 1
        assert not link.is_busy
        assert not link.closed.done()


async def test_a_broken_stream_loses_the_call_and_it_is_not_resumed():
    async def breaking(visit: Visit) -> None:
        visit.stream()
        progress = {"progressToken": visit.message["id"], "progress": 1}
        visit.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}, "1")
        await visit.link.writer.drain()
        visit.hang_up()

    async with linked(breaking) as (origin, link):
        rider = Rider()
        lost = await failure(fly(link, rider=rider))
        assert lost["data"]["delivery"] == "unknown"
        assert rider.steps == [1]
        assert [visit.method for visit in origin.visits] == ["POST"]


@pytest.mark.parametrize("status", [400, 404])
async def test_an_error_with_a_status_is_passed_on_as_it_is(status):
    error = {"code": -32020, "message": "Header mismatch", "data": {"x": 1}}

    async def refusing(visit: Visit) -> None:
        visit.json({"jsonrpc": "2.0", "id": visit.message["id"], "error": error}, status)

    async with linked(refusing) as (origin, link):
        assert await failure(link) == error
        assert len(origin.visits) == 1


async def test_a_server_that_asks_is_not_answered_and_nobody_is_asked():
    async def asking(visit: Visit) -> None:
        visit.stream()
        visit.event({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})
        visit.event({"jsonrpc": "2.0", "id": visit.message["id"], "result": {}})
        visit.end()

    async with linked(asking) as (origin, link):
        assert await call(link, rider=Rider()) == {}
        link.notify("notifications/roots/list_changed")
        await call(link)
        assert [visit.rpc for visit in origin.visits] == ["tools/call", "tools/call"]


async def test_what_comes_on_a_stream_that_listens_is_heard():
    ears = Ears()

    async def telling(visit: Visit) -> None:
        visit.stream()
        for method in ("subscriptions/acknowledged", "tools/list_changed"):
            visit.event({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": {}})
        await visit.gone.wait()

    async with linked(telling, ears) as (_, link):
        fly(link, "subscriptions/listen")
        assert await ears.heard_all(2) == [
            "notifications/subscriptions/acknowledged",
            "notifications/tools/list_changed",
        ]


# -- behind a gateway


class Modern:
    """A server that knows no handshake."""

    def __init__(self) -> None:
        self.tools: list[dict[str, Any]] = []
        self.listens: list[Visit] = []

    async def __call__(self, visit: Visit) -> None:
        if visit.headers.get("mcp-protocol-version") != VERSION:
            visit.answer(400)
        elif visit.rpc == "server/discover":
            able = {"tools": {"listChanged": True}, "logging": {}, "extensions": {"x.y/z": {}}}
            visit.result({"supportedVersions": [VERSION], "capabilities": able})
        elif visit.rpc == "subscriptions/listen":
            self.listens.append(visit)
            visit.stream()
            self.tell(visit, "subscriptions/acknowledged", **visit.message["params"])
            await visit.gone.wait()
        else:
            visit.result({"tools": self.tools})

    def tell(self, visit: Visit, what: str, **params: Any) -> None:
        stamp = {"io.modelcontextprotocol/subscriptionId": visit.message["id"]}
        params = {**params, "_meta": stamp}
        visit.event({"jsonrpc": "2.0", "method": f"notifications/{what}", "params": params})


def tool(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", **schema}}


async def test_a_tool_with_headers_that_make_no_sense_is_left_out(serving, caplog):
    modern = Modern()
    good = {"region": {"type": "string", "x-mcp-header": "Region"}}
    bad = {"region": {"type": "number", "x-mcp-header": "Region"}}
    modern.tools = [tool("good", properties=good), tool("bad", properties=bad), tool("plain")]
    async with Origin(modern) as origin:
        gateway = await serving({"far": {"url": origin.url}})
        await gateway.settled()
        upstream = gateway.junction.servers["far"]
        assert upstream.greeting.extensions == {"x.y/z": {}}
        offers = gateway.junction.live_catalog.catalog.offerings["far"].tools
        assert [offer.name for offer in offers] == ["good", "plain"]
        assert [header.token for header in offers[0].headers] == ["Region"]
        assert "the tool 'bad' is left out" in caplog.text
        view = gateway.junction.live_catalog.catalog.view(gateway.junction.spelling())
        routes = [view.find(name) for name in view.names_of("far")]
        assert [route.name_header for route in routes] == [
            b"mcp-name: good\r\n",
            b"mcp-name: plain\r\n",
        ]
        assert [len(route.headers) for route in routes] == [1, 0]


async def test_a_list_is_read_again_when_it_changes_and_after_a_gap(serving):
    modern = Modern()
    modern.tools = [tool("one")]
    async with Origin(modern) as origin:
        gateway = await serving({"far": {"url": origin.url}})
        await gateway.settled()
        modern.tools = [tool("one"), tool("two")]
        modern.tell(modern.listens[0], "tools/list_changed")
        await origin.visited("tools/list", times=2)
        modern.listens[0].hang_up()
        await origin.visited("subscriptions/listen", times=2)
        await origin.visited("tools/list", times=3)


async def test_a_server_that_is_gone_is_noticed_by_listening(serving):
    modern = Modern()
    async with Origin(modern) as origin:
        gateway = await serving({"far": {"url": origin.url}})
        await gateway.settled()
        upstream = gateway.junction.servers["far"]
        link = upstream.link
        await origin.close()
        async with asyncio.timeout(BOUND):
            await link.wait_closed()
        await origin.listen()
        async with asyncio.timeout(BOUND):
            assert await upstream.wait_for_link(BOUND) is not None
        assert upstream.greeting.era is Era.STATELESS
        assert json.loads(modern.listens[-1].body)["params"]["notifications"]


async def test_a_stateless_server_is_told_no_log_level_and_no_news_of_roots(serving):
    modern = Modern()
    modern.tools = [tool("one")]
    async with Origin(modern) as origin:
        gateway = await serving({"far": {"url": origin.url}})
        client = await gateway.front()
        await client.result("logging/setLevel", {"level": "error"})
        client.notify("notifications/roots/list_changed")
        assert await client.names() == ["far.one"]
        said = {visit.rpc for visit in origin.visits}
        assert said == {"server/discover", "subscriptions/listen", "tools/list"}


async def test_a_server_that_comes_back_as_one_of_the_other_era_is_greeted_anew(serving):
    modern = Modern()

    async def older(visit: Visit) -> None:
        refusal = {"code": -32601, "message": "Method not found"}
        if visit.rpc == "initialize":
            visit.result({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}})
        elif visit.rpc == "tools/list":
            visit.result({"tools": [tool("old")]})
        elif visit.method == "POST" and "id" in visit.message:
            error = {"jsonrpc": "2.0", "id": visit.message["id"], "error": refusal}
            visit.json(error, 404)
        else:
            visit.answer(405)

    async with Origin(modern) as origin:
        gateway = await serving({"far": {"url": origin.url}})
        await gateway.settled()
        upstream = gateway.junction.servers["far"]
        link = upstream.link
        origin.handler = older
        modern.listens[0].hang_up()
        async with asyncio.timeout(BOUND):
            await link.wait_closed()
        await origin.visited("tools/list", times=2)
        assert await upstream.wait_for_link(BOUND) is not None
        assert upstream.greeting.era is Era.HANDSHAKE


def _error(code: int, message: str, frame_id: object = None) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": frame_id, "error": {"code": code, "message": message}}


@pytest.mark.parametrize(
    "body",
    [
        lambda visit: _error(-32000, "Bad Request: Mcp-Session-Id header is required"),
        lambda visit: _error(-32600, "Bad Request: Missing session ID", "server-error"),
        lambda visit: _error(-32000, "Bad Request: Unsupported protocol version (supported: 1)"),
        lambda visit: _error(-32022, "Unsupported protocol version", visit.message["id"]),
    ],
)
async def test_a_known_refusal_of_a_server_of_the_other_era_says_that_nothing_ran(body):
    async def refuse(visit: Visit) -> None:
        visit.json(body(visit), 400)

    async with linked(refuse) as (_, link):
        error = await failure(link)
        assert error["data"]["delivery"] == "not_sent"
        assert link.closed.done()


@pytest.mark.parametrize(
    "body",
    [
        lambda visit: _error(-32000, "the payment of your session was taken; now it is closed"),
        lambda visit: _error(-32000, "order -32022 was placed under protocol version 3"),
        lambda visit: _error(-32000, "Bad Request: Missing session ID", visit.message["id"]),
    ],
)
async def test_an_error_that_only_speaks_of_sessions_or_versions_may_have_run(body):
    async def refuse(visit: Visit) -> None:
        visit.json(body(visit), 400)

    async with linked(refuse) as (_, link):
        error = await failure(link)
        assert error.get("data", {}).get("delivery") in (None, "unknown")
        assert not link.closed.done()
