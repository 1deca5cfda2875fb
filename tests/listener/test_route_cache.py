"""What stateless clients ask for again and again: remembered for no longer than it holds."""

import asyncio
import json

import pytest
from msgspec import Raw
from tests.listener.backends import FakeBackend, Recorder, StatelessClient

from mcp_junction.calls import methods
from mcp_junction.calls.call import Snapshot
from mcp_junction.catalog.catalog import Catalog
from mcp_junction.catalog.endpoints import EVERYTHING, Endpoint, Pattern
from mcp_junction.catalog.items import ListItem, ServerLists
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.protocol import encode, names, param_headers, requests
from mcp_junction.protocol.frames import Frame
from mcp_junction.protocol.versions import (
    CAPABILITIES_KEY,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    LATEST_STATELESS,
    VERSION_KEY,
    Era,
)
from mcp_junction.testing.link import FakeUpstream, silence

ABOUT = {VERSION_KEY: LATEST_STATELESS, CAPABILITIES_KEY: {}}


def stateless(key: str, tools: tuple[str, ...] = ("echo",), **how) -> FakeUpstream:
    server = FakeUpstream(key, tools, era=Era.STATELESS, **how)
    server.refused_eras = {Era.HANDSHAKE}
    return server


def showing(backend: FakeBackend, catalog: Catalog) -> None:
    backend.snapshot = Snapshot(catalog, backend._handlers)


async def call(client: StatelessClient, name: str, method: str = "tools/call"):
    client.request(method, {"name": name}, id=len(client.sent))
    await client.turns()
    return client.sent[-1]


def frame_of(method: str, params: dict) -> Frame:
    said = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": ABOUT}}
    return requests.decode(json.dumps(said).encode())


async def test_a_call_made_again_goes_where_it_went():
    one, two = stateless("one"), stateless("two")
    client = StatelessClient(FakeBackend(one, two))
    for name in ("one:echo", "two:echo", "one:echo", "one__echo"):
        assert "result" in await call(client, name)
    assert [len(server.wire.flights) for server in (one, two)] == [3, 1]
    assert {json.loads(flight.params)["name"] for flight in one.wire.flights} == {"echo"}


async def test_a_tool_that_has_left_is_not_called_from_memory():
    one = stateless("one", ("echo", "other"))
    backend = FakeBackend(one)
    client = StatelessClient(backend)
    assert "result" in await call(client, "one:echo")
    left = ServerLists(one, tuple(o for o in one.offering().tools if o.name == "other"))
    showing(backend, backend.snapshot.catalog.with_offering(left, ["one"]))
    answer = await call(client, "one:echo")
    assert answer["error"]["code"] == INVALID_PARAMS
    assert len(one.wire.flights) == 1
    assert "result" in await call(client, "one:other")


async def test_a_server_that_came_anew_is_called_instead_of_the_one_before():
    first, second = stateless("one"), stateless("one")
    backend = FakeBackend(first)
    client = StatelessClient(backend)
    await call(client, "one:echo")
    showing(backend, backend.snapshot.catalog.with_offering(second.offering(), ["one"]))
    await call(client, "one:echo")
    await call(client, "one:echo")
    assert (len(first.wire.flights), len(second.wire.flights)) == (1, 2)


async def test_a_name_that_nobody_has_is_not_remembered_and_is_found_once_it_is_there():
    one = stateless("one")
    backend = FakeBackend(one)
    client = StatelessClient(backend)
    for _ in range(2):
        assert (await call(client, "one:late"))["error"]["code"] == INVALID_PARAMS
    assert backend.snapshot.route_cache == {}
    late = stateless("one", ("echo", "late"))
    showing(backend, backend.snapshot.catalog.with_offering(late.offering(), ["one"]))
    assert "result" in await call(client, "one:late")


async def test_a_prompt_is_not_taken_for_the_tool_of_its_name():
    tool, other = stateless("a", ("b:c",)), stateless("a:b", ())
    prompt = ListItem("c", {"name": Raw(b'"c"')})
    backend = FakeBackend(tool)
    with_both = backend.snapshot.catalog.with_offering(
        ServerLists(other, prompts=(prompt,)), ["a", "a:b"]
    )
    showing(backend, with_both)
    client = StatelessClient(backend)
    for method in ("tools/call", "prompts/get", "tools/call", "prompts/get"):
        assert "result" in await call(client, "a:b:c", method)
    assert [flight.method for flight in tool.wire.flights] == ["tools/call"] * 2
    assert [flight.method for flight in other.wire.flights] == ["prompts/get"] * 2


async def test_a_call_is_looked_up_once_for_as_long_as_its_snapshot_lasts(monkeypatch):
    looked_up = []
    find = methods.RouteCache.find

    def counted(self, catalog, spelling, scope, method, params):
        looked_up.append(params["name"])
        return find(self, catalog, spelling, scope, method, params)

    monkeypatch.setattr(methods.RouteCache, "find", counted)
    one = stateless("one")
    backend = FakeBackend(one)
    client = StatelessClient(backend)
    for _ in range(3):
        assert "result" in await call(client, "one:echo")
    assert len(looked_up) == 1
    showing(backend, backend.snapshot.catalog.rebuilt())
    assert backend.snapshot.route_cache == {}, "what was found before is not held any longer"
    for _ in range(3):
        assert "result" in await call(client, "one:echo")
    assert len(looked_up) == 2


async def test_a_call_is_begun_with_its_route_only_where_that_is_known_for_sure():
    backend = FakeBackend(stateless("one"))
    begun = []

    def noting(handle):
        def handler(made):
            begun.append((made.method, made.name, made.route is not None))
            return handle(made)

        return handler

    handlers = {method: noting(handle) for method, handle in backend._handlers.items()}
    backend.snapshot = Snapshot(backend.snapshot.catalog, handlers)
    client = StatelessClient(backend)
    await call(client, "one:echo")
    await call(client, "one:nothing")
    client.request("resources/read", {"uri": "a://1"}, id="r")
    backend.is_settled = False
    await call(client, "one:echo")
    assert begun == [
        ("tools/call", "one:echo", True),
        ("tools/call", "one:nothing", False),
        ("resources/read", "a://1", False),
        ("tools/call", "one:echo", False),
    ]


async def test_a_cached_route_is_not_used_at_an_endpoint_without_the_tool():
    one, two = stateless("one"), stateless("two")
    backend = FakeBackend(one, two)
    dispatcher = StatelessClient(backend).dispatcher
    way = Recorder()
    ann, bob = Principal("ann", Role.AGENT), Principal("bob", Role.AGENT)
    only_two = Endpoint("mcp/set", (Pattern("two"),))
    places = (ann, EVERYTHING), (bob, EVERYTHING), (ann, only_two), (ann, EVERYTHING)
    for number, (principal, endpoint) in enumerate(places):
        frame = frame_of("tools/call", {"name": "one:echo"})
        await dispatcher.answer(principal, endpoint, frame, b"1", number, way)
    assert ["error" in json.loads(r.frame) for r in way.replies] == [False, False, True, False]
    assert len(backend.snapshot.route_cache) == 1, "who asks does not matter for where it leads"
    assert len(one.wire.flights) == 3


async def test_how_much_is_remembered_is_bounded_for_all_clients_together(monkeypatch):
    monkeypatch.setattr(methods, "MAX_CACHED_ROUTES", 10)
    tools = tuple(f"tool{number}" for number in range(5))
    backend = FakeBackend(stateless("one", (*tools, "t" * 300)))
    client = StatelessClient(backend)
    for number, tool in enumerate((*tools, *tools, "t" * 300) * 3):
        about = {"name": f"client {number % 4}", "version": "0"}
        client.request("tools/call", {"name": f"one:{tool}"}, id=number, client=about)
        await client.turns()
        assert "result" in client.sent[-1]
        assert len(backend.snapshot.route_cache) <= 10
    assert not any(len(name) > 256 for *_, name in backend.snapshot.route_cache)


async def test_a_client_with_a_long_description_is_not_kept_by_the_cache():
    backend = FakeBackend(stateless("one"))
    client = StatelessClient(backend)
    for number in range(3):
        about = {"name": "n" * 10_000, "version": "0"}
        client.request("tools/call", {"name": "one:echo"}, id=number, client=about)
        await client.turns()
    assert len(backend.stateless_clients) == 3
    (key,) = backend.snapshot.route_cache
    spelling, scope, *rest = key
    assert (spelling, scope.endpoint) == (names.STDIO, EVERYTHING)
    assert rest == ["tools/call", b'"one:echo"']


async def test_a_refusal_does_not_repeat_a_method_without_end():
    way = Recorder()
    dispatcher = StatelessClient(FakeBackend()).dispatcher
    headers = {b"mcp-protocol-version": LATEST_STATELESS.encode(), b"mcp-method": b"x"}
    dispatcher.answer(LOCAL_OWNER, EVERYTHING, frame_of("m" * 3000, {}), b"1", 1, way, headers)
    (reply,) = way.replies
    assert (reply.status, len(reply.frame) < 500) == (400, True)


@pytest.mark.req("J-ERA-HEADERS")
@pytest.mark.parametrize(
    "wrong",
    [
        {b"mcp-name": b"one:other"},
        {b"mcp-name": b"=?base64?b25lOm90aGVy?="},
        {b"mcp-name": b"\0"},
        {b"mcp-method": b"prompts/get"},
        {b"mcp-protocol-version": b"2025-11-25"},
    ],
)
async def test_headers_are_compared_however_often_a_call_was_made(wrong):
    one = stateless("one")
    dispatcher = StatelessClient(FakeBackend(one)).dispatcher
    right = {
        b"mcp-protocol-version": LATEST_STATELESS.encode(),
        b"mcp-method": b"tools/call",
        b"mcp-name": b"one:echo",
    }
    way = Recorder()
    absent = {name: value for name, value in right.items() if name not in wrong}
    encoded = {**right, b"mcp-name": b"=?base64?b25lOmVjaG8=?="}
    for headers in (right, right, {**right, **wrong}, absent, right, encoded):
        frame = frame_of("tools/call", {"name": "one:echo"})
        rest = dispatcher.answer(LOCAL_OWNER, EVERYTHING, frame, b"1", b"1", way, headers)
        if rest is not None:
            await rest
    assert [reply.status for reply in way.replies] == [200, 200, 400, 400, 200, 200]
    codes = [json.loads(reply.frame)["error"]["code"] for reply in way.replies[2:4]]
    assert codes == [HEADER_MISMATCH] * 2
    assert len(one.wire.flights) == 4


class Marked:
    """A server whose tool wants an argument repeated, and a client that says it in a header."""

    def __init__(self, settled: bool = True) -> None:
        schema = {"type": "object", "properties": {"region": {"type": "string"}}}
        schema["properties"]["region"]["x-mcp-header"] = "Region"
        raw = Raw(encode.dumps(schema))
        offer = ListItem(
            "echo", {"name": Raw(b'"echo"'), "inputSchema": raw}, param_headers.find_marked(raw)
        )
        self.server = stateless("one")
        self.backend = FakeBackend(settled=settled)
        self.catalog = Catalog().with_offering(ServerLists(self.server, (offer,)), ["one"])
        self.dispatcher = StatelessClient(self.backend).dispatcher
        self.way = Recorder()

    def say(self, region: bytes, name: bytes = b"one:echo"):
        headers = {
            b"mcp-protocol-version": LATEST_STATELESS.encode(),
            b"mcp-method": b"tools/call",
            b"mcp-name": name,
            b"mcp-param-region": region,
        }
        frame = frame_of("tools/call", {"name": "one:echo", "arguments": {"region": "eu"}})
        return self.dispatcher.answer(
            LOCAL_OWNER, EVERYTHING, frame, b"1", region, self.way, headers
        )

    @property
    def statuses(self) -> list[int]:
        return [reply.status for reply in self.way.replies]


@pytest.mark.req("J-ERA-HEADERS")
@pytest.mark.parametrize("name", [b"one:echo", b"\0"])
async def test_arguments_that_are_repeated_are_compared_with_every_call(name):
    marked = Marked()
    showing(marked.backend, marked.catalog)
    for region in (b"eu", b"us", b"eu"):
        rest = marked.say(region, name)
        if rest is not None:
            await rest
    assert marked.statuses == ([200, 400, 200] if name == b"one:echo" else [400] * 3)


@pytest.mark.req("J-ERA-HEADERS")
async def test_arguments_are_compared_too_when_their_server_comes_up_after_the_call():
    marked = Marked(settled=False)
    calls = [asyncio.ensure_future(marked.say(region)) for region in (b"eu", b"us")]
    await asyncio.sleep(0)
    showing(marked.backend, marked.catalog)
    marked.backend.settle()
    await asyncio.gather(*calls)
    assert sorted(marked.statuses) == [200, 400]
    assert len(marked.server.wire.flights) == 1


@pytest.mark.req("J-ERA-HEADERS")
async def test_arguments_are_compared_too_while_their_server_is_away():
    marked = Marked()
    showing(marked.backend, marked.catalog.without("one"))
    rest = marked.say(b"us")
    assert rest is None
    assert marked.statuses == [400]


@pytest.mark.parametrize("era", Era)
async def test_a_call_with_a_cached_route_that_is_cancelled_at_once_is_not_sent(era):
    one = FakeUpstream("one", script=silence, era=era)
    one.refused_eras = set(Era) - {era}
    client = StatelessClient(FakeBackend(one))
    for number in range(2):  # the second has a cached route
        client.request("tools/call", {"name": "one:echo"}, id=number)
        client.say({"method": "notifications/cancelled", "params": {"requestId": number}})
        await client.turns()
    assert one.wire.flights == []
    assert client.sent == []
    assert client.dispatcher.running == {}


async def test_what_was_found_before_the_servers_were_up_is_looked_for_again():
    early, late = stateless("one"), stateless("one")
    backend = FakeBackend(early, settled=False)
    client = StatelessClient(backend)
    client.request("tools/call", {"name": "one:echo"})
    backend.settle(late)  # after it was read, and before it was begun
    await client.turns()
    assert (len(early.wire.flights), len(late.wire.flights)) == (0, 1)
    assert "result" in client.sent[0]
