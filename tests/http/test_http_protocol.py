"""HTTP/1.1 on a listening connection, before a small ASGI app."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest
import uvicorn
from tests.http.wire import BOUND, Wire
from uvicorn.server import ServerState

from mcp_junction.listener.http.exchange import Patience
from mcp_junction.listener.http.protocol import MAX_HEADER_BYTES, MAX_QUEUED, HttpProtocol
from mcp_junction.listener.http.server import protocol_for, stop_accepting
from mcp_junction.resilience.read_budget import AT_ONCE, TURN_LIMIT
from mcp_junction.tasks import TaskScope

App = Callable[[Any, Any, Any], Awaitable[None]]


class Site:
    """A listening app, and what it was asked."""

    protocol: type[HttpProtocol]

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.doors: dict[str, asyncio.Event] = {}
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.left: asyncio.Queue[str] = asyncio.Queue()
        self.written = 0
        self.state = ServerState()
        self.wires: list[Wire] = []
        self.port = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.scopes.append(scope)
        self.bodies.append((await receive())["body"])
        self.started.put_nowait(path)
        if path in self.doors:
            await self.doors[path].wait()
        if path == "/raise":
            raise RuntimeError("a fault")
        if path == "/flood":
            await self._flood(send)
            return
        if path == "/watch":
            message = await receive()
            self.left.put_nowait(message["type"])
        headers = [(b"content-length", b"%d" % len(path)), (b"x-path", path.encode("latin-1"))]
        if path == "/chunked":
            headers = []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": path.encode()})

    async def _flood(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            self.written += 100_000
        await send({"type": "http.response.body", "body": b""})

    async def wire(self, limit: int = 1 << 16) -> Wire:
        wire = await Wire.open(self.port, limit)
        self.wires.append(wire)
        return wire


async def listening(
    site: Site, patience: Patience | None = None, **settings: Any
) -> AsyncIterator[Site]:
    config = uvicorn.Config(site, log_config=None, lifespan="off", **settings)
    config.load()
    loop = asyncio.get_running_loop()
    tasks = TaskScope("test")
    site.protocol = protocol = protocol_for(tasks, 4 * 1024 * 1024, patience)
    server = await loop.create_server(lambda: protocol(config, site.state, {}), "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    await stop_accepting([server])
    for wire in site.wires:
        wire.reset()
    for connection in list(site.state.connections):
        connection.shutdown()
    await tasks.close()
    await asyncio.sleep(0)  # the connections are told that they are lost


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async for found in listening(Site(), timeout_keep_alive=75):
        yield found


@pytest.fixture
async def wire(site: Site) -> Wire:
    return await site.wire()


async def test_requests_one_after_another_share_a_connection(site, wire):
    for path in ("/a", "/b", "/c"):
        wire.request("GET", path)
        response = await wire.response()
        assert (response.status, response.body) == (200, path.encode())
        assert "connection" not in response.headers


async def test_requests_sent_ahead_are_answered_in_their_order(site, wire):
    site.doors["/1"] = asyncio.Event()
    for number in range(1, MAX_QUEUED * 3):
        wire.request("GET", f"/{number}")
    assert await site.started.get() == "/1"
    assert site.started.empty()  # the others wait for the first
    site.doors["/1"].set()
    for number in range(1, MAX_QUEUED * 3):
        assert (await wire.response()).body == b"/%d" % number


async def test_the_last_of_the_requests_sent_ahead_closes_the_connection(site, wire):
    site.doors["/1"] = asyncio.Event()
    wire.request("GET", "/1")
    wire.request("GET", "/2")
    wire.request("GET", "/3", connection="close")
    await site.started.get()
    site.doors["/1"].set()
    assert [(await wire.response()).headers.get("connection") for _ in range(3)] == [
        None,
        None,
        "close",
    ]
    assert await wire.closed() == b""


async def test_a_client_of_http_1_0_gets_one_answer(wire):
    wire.send(b"GET /old HTTP/1.0\r\nhost: x\r\n\r\n")
    assert (await wire.response()).headers["connection"] == "close"
    assert await wire.closed() == b""


async def test_a_client_of_http_1_0_is_sent_no_chunks(wire):
    wire.send(b"GET /chunked HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\n\r\n")
    response = await wire.response(bodiless=True)
    assert "transfer-encoding" not in response.headers
    assert await wire.closed() == b"/chunked"


async def test_a_head_request_gets_the_headers_only(wire):
    for path in ("/sized", "/chunked"):
        wire.request("HEAD", path)
        assert (await wire.response(bodiless=True)).status == 200
    wire.request("GET", "/after")
    assert (await wire.response()).body == b"/after"


async def test_an_answer_without_a_length_is_sent_in_chunks(wire):
    wire.request("GET", "/chunked")
    response = await wire.response()
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.body == b"/chunked"


async def test_a_body_in_chunks_arrives_whole(site, wire):
    wire.request("POST", "/in", transfer_encoding="chunked")
    for chunk in (b"hel", b"lo", b""):
        wire.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    assert (await wire.response()).status == 200
    assert site.bodies == [b"hello"]


async def test_a_request_that_drips_in_arrives_whole(site, wire):
    for byte in b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello":
        wire.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await wire.response()).body == b"/in"
    assert site.bodies == [b"hello"]


async def test_a_client_that_expects_to_be_asked_for_the_body_is(site, wire):
    wire.request("POST", "/in", expect="100-continue", content_length="5")
    assert (await wire.head()).status == 100
    wire.send(b"hello")
    assert (await wire.response()).status == 200
    assert site.bodies == [b"hello"]


async def test_headers_and_path_are_given_as_they_were_sent(site, wire):
    wire.send(b"GET /a%2Fb%20c?d=e HTTP/1.1\r\nHost: x\r\nX-Twice: 1\r\nx-twice: 2  \r\n\r\n")
    await wire.response()
    (scope,) = site.scopes
    assert (scope["path"], scope["raw_path"]) == ("/a/b c", b"/a%2Fb%20c")
    assert scope["query_string"] == b"d=e"
    assert scope["headers"] == [(b"host", b"x"), (b"x-twice", b"1"), (b"x-twice", b"2")]


async def test_headers_that_are_too_large_are_refused(site, wire):
    wire.send(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-large: %b\r\n" % (b"y" * 1000) * 70)
    assert (await wire.response()).status == 431
    await wire.closed()
    assert not site.scopes


UNENDING = {
    "value": b"GET / HTTP/1.1\r\nx-long: ",
    "name": b"GET / HTTP/1.1\r\nx-long",
    "trailer": b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-long: ",
    "chunk": b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;x-long=",
}


@pytest.mark.req("S-02", "R-MEMORY")
@pytest.mark.parametrize("beginning", UNENDING.values(), ids=UNENDING)
async def test_a_header_that_does_not_end_is_refused_while_it_comes(site, wire, beginning):
    wire.send(beginning)
    await asyncio.sleep(0.01)
    wire.send(b"y" * (MAX_HEADER_BYTES + 1))
    assert (await wire.response()).status == 431
    await wire.closed()
    assert not site.scopes


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_is_refused_and_hung_up_on(site, wire, garbage):
    wire.send(garbage)
    assert (await wire.response()).status == 400
    assert await wire.closed() == b""
    assert not site.scopes


async def test_an_upgrade_is_answered_as_if_it_had_not_been_asked_for(wire):
    wire.request("GET", "/plain", connection="upgrade", upgrade="websocket")
    assert (await wire.response()).status == 200


UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
    "unknown": b"Connection: keep-alive, upgrade\r\nUpgrade: x\r\n",
    "expecting": b"Expect: 100-continue\r\nConnection: upgrade\r\nUpgrade: x\r\n",
}
INNER = b"POST /inner HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
SIZED = b"Content-Length: %d\r\n\r\n%b" % (len(INNER), INNER)
IN_CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)


@pytest.mark.req("R-ANSWER")
@pytest.mark.parametrize("cut", [0, 1, 30, 70, 150, 220, 260])
@pytest.mark.parametrize("body", [SIZED, IN_CHUNKS], ids=["sized", "chunked"])
@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
async def test_the_body_behind_an_offered_upgrade_is_that_requests(site, wire, upgrade, body, cut):
    sent = (
        b"POST /in HTTP/1.1\r\nHost: x\r\n"
        + upgrade
        + body
        + b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    wire.send(sent[:cut])
    await asyncio.sleep(0.01)
    wire.send(sent[cut:])
    first = await wire.response()
    if first.status == 100:
        first = await wire.response()
    assert [first.body, (await wire.response()).body] == [b"/in", b"/next"]
    assert site.bodies == [INNER, b""]
    assert [scope["path"] for scope in site.scopes] == ["/in", "/next"]


@pytest.mark.req("R-MEMORY")
async def test_a_thousand_offered_upgrades_are_a_thousand_requests(site, wire):
    wire.send(b"GET /a HTTP/1.1\r\nHost:a\r\nConnection:upgrade\r\nUpgrade:b\r\n\r\n" * 2_000)
    for _ in range(2_000):
        assert (await wire.response()).body == b"/a"


@pytest.mark.parametrize("more", [b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"garbage\r\n\r\n"])
async def test_a_request_that_is_refused_takes_no_answer_from_one_before_it(site, wire, more):
    site.doors["/slow"] = asyncio.Event()
    wire.request("GET", "/slow")
    await site.started.get()
    wire.send(more + b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
    await asyncio.sleep(0.01)
    site.doors["/slow"].set()
    assert (await wire.response()).body == b"/slow"
    assert await wire.closed() == b""
    assert [scope["path"] for scope in site.scopes] == ["/slow"]


async def test_a_tunnel_is_refused_and_hung_up_on(site, wire):
    wire.send(b"CONNECT other:443 HTTP/1.1\r\nHost: x\r\n\r\n" + INNER)
    assert (await wire.response()).status == 400
    assert await wire.closed() == b""
    assert not site.scopes


@pytest.mark.req("S-01")
async def test_what_follows_a_body_is_no_header(site, wire):
    head = b"POST /in HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: host\r\n\r\n"
    wire.send(head + b"5\r\nhello\r\n0\r\nHost: y\r\nAuthorization: Bearer z\r\n\r\n")
    assert (await wire.response()).status == 200
    (scope,) = site.scopes
    assert [name for name, _ in scope["headers"]] == [b"host", b"transfer-encoding", b"trailer"]
    assert scope["headers"].by_name[b"host"] == b"x"
    wire.send(head + b"0\r\n" + b"x: %b\r\n" % (b"y" * 1000) * 70)
    assert (await wire.response()).status == 431


async def test_nobody_is_told_to_go_on_in_the_middle_of_a_response(site, wire):
    site.doors["/slow"] = asyncio.Event()
    wire.request("GET", "/slow")
    await site.started.get()
    wire.request("POST", "/in", expect="100-continue", content_length="5")
    await asyncio.sleep(0.01)
    site.doors["/slow"].set()
    assert (await wire.response()).body == b"/slow"
    assert (await wire.head()).status == 100
    wire.send(b"hello")
    assert (await wire.response()).body == b"/in"


async def test_an_app_that_fails_leaves_an_answer_and_no_connection(wire, caplog):
    wire.request("GET", "/raise")
    assert (await wire.response()).status == 500
    await wire.closed()
    assert "a request failed inside Junction" in caplog.text


@pytest.mark.parametrize("how", ["reset", "close", "eof"])
async def test_a_client_that_leaves_is_told_to_the_app(site, how):
    wire = await site.wire()
    wire.request("GET", "/watch")
    await site.started.get()
    {"reset": wire.reset, "close": wire.writer.close, "eof": wire.writer.write_eof}[how]()
    assert await asyncio.wait_for(site.left.get(), BOUND) == "http.disconnect"


async def test_a_client_that_reads_slowly_holds_the_app_up_and_loses_nothing(site):
    wire = await site.wire()
    wire.request("GET", "/flood")
    assert (await wire.head()).status == 200
    await site.started.get()
    before = -1
    while site.written != before:  # until the buffers on the way are full
        before = site.written
        await asyncio.sleep(0.05)
    assert site.written < 20_000_000
    async with asyncio.timeout(BOUND):
        total = sum([len(chunk) async for chunk in wire.chunks()])
    assert total == 20_000_000


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not():
    async for site in listening(Site(), timeout_keep_alive=0.1):
        site.doors["/slow"] = asyncio.Event()
        idle, busy = await site.wire(), await site.wire()
        busy.request("GET", "/slow")
        await site.started.get()
        assert await idle.closed() == b""
        site.doors["/slow"].set()
        assert (await busy.response()).body == b"/slow"
        assert await busy.closed() == b""


async def test_when_the_server_ends_what_runs_is_finished_and_nothing_more_taken(site):
    site.doors["/slow"] = asyncio.Event()
    idle, busy = await site.wire(), await site.wire()
    busy.request("GET", "/slow")
    await site.started.get()
    for connection in list(site.state.connections):
        connection.shutdown()
    assert await idle.closed() == b""
    site.doors["/slow"].set()
    assert (await busy.response()).body == b"/slow"
    assert await busy.closed() == b""


# -- requests that drip in


async def dripped(wire: Wire, pieces: Iterable[bytes]) -> bytes:
    """What is said to a request sent piece by piece, until the other side hangs up."""
    closing = asyncio.ensure_future(wire.closed())
    for piece in pieces:
        wire.send(piece)
        await asyncio.wait({closing}, timeout=0.01)
        if closing.done():
            break
    return await closing


ENDLESS_HEAD = itertools.chain([b"GET /drip HTTP/1.1\r\n"], itertools.repeat(b"x: y\r\n"))
POST = b"POST /drip HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [b"G"],
        [b"GET /drip HTTP/1.1\r\nhost: x\r\n"],
        [POST],
        ENDLESS_HEAD,
        itertools.chain([POST], itertools.repeat(b"x")),
        [POST, b"x" * 99_999],
    ],
    ids=["a byte", "half a head", "no body", "a head in drips", "a body in drips", "no last byte"],
)
async def test_a_request_that_does_not_come_in_is_given_up(pieces):
    patience = Patience(head=0.2, body=0.2, rate=1_000_000)
    async for site in listening(Site(), patience, timeout_keep_alive=75):
        wire = await site.wire()
        wire.request("GET", "/before")
        assert (await wire.response()).status == 200
        said = await dripped(wire, pieces)
        # Who still sends when we hang up is reset, and may not get to read why.
        assert said.startswith(b"HTTP/1.1 408 ") or not (said or isinstance(pieces, list))
        assert len(site.scopes) == 1
        assert not site.state.connections


async def test_a_connection_that_only_sends_empty_lines_is_idle():
    async for site in listening(Site(), timeout_keep_alive=0.2):
        assert await dripped(await site.wire(), itertools.repeat(b"\r\n")) == b""


async def test_slow_requests_do_not_take_others_with_them():
    patience = Patience(head=0.2, body=BOUND * 2)
    async for site in listening(Site(), patience, timeout_keep_alive=75):
        idle, sending, busy = [await site.wire() for _ in range(3)]
        site.doors["/busy"] = asyncio.Event()
        idle.request("GET", "/idle")
        await idle.response()
        busy.request("GET", "/busy")
        busy.send(b"GET /next HTTP/1.1\r\n")  # its time begins when the other one is answered
        sending.send(b"POST /sent HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nx")
        # By the time that this one is given up, the others have been at it for as long.
        assert b" 408 " in await dripped(await site.wire(), [b"GET"])
        sending.send(b"x")
        assert (await sending.response()).status == 200
        idle.request("GET", "/again")
        assert (await idle.response()).status == 200
        site.doors["/busy"].set()
        assert (await busy.response()).body == b"/busy"
        assert b" 408 " in await busy.closed()


async def test_a_body_in_tiny_chunks_takes_little_more_memory_than_its_size(site, wire):
    count = 50_000
    wire.send(b"POST /a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    wire.send(b"2\r\nab\r\n" * count)
    async with asyncio.timeout(BOUND):
        while not site.state.connections:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
        (connection,) = site.state.connections
        while connection._body_size < 2 * count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert sum(map(sys.getsizeof, connection._body)) < 4 * count
    wire.send(b"0\r\n\r\n")
    assert (await wire.response()).status == 200
    assert site.bodies == [b"ab" * count]


@pytest.mark.req("R-ISOLATE")
async def test_a_request_in_many_pieces_leaves_others_their_turn(site, monkeypatch):
    """Of input that takes long to parse, little is parsed in each turn of the loop."""
    parsed = HttpProtocol.on_body
    count, most, moment = 0, 0, 0.0

    def slowly(self: HttpProtocol, body: bytes) -> None:
        nonlocal count, most, moment
        parsed(self, body)
        moment += TURN_LIMIT / 10
        count += 1
        most = max(most, count)

    monkeypatch.setattr(HttpProtocol, "on_body", slowly)
    monkeypatch.setattr(site.protocol.read_budget, "now", lambda: moment)
    first, second = await site.wire(), await site.wire()
    first.request("POST", "/first", transfer_encoding="chunked")
    first.send(b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n")
    first.request("GET", "/next")
    waiting = asyncio.ensure_future(first.response())
    while not waiting.done():
        await asyncio.sleep(0)
        count = 0
    assert (await waiting).body == b"/first"
    assert (await first.response()).body == b"/next"
    assert site.bodies[0] == b"x" * 40_000
    assert most < AT_ONCE / 6 + 200
    second.request("GET", "/other")
    assert (await second.response()).body == b"/other"


async def test_requests_sent_ahead_in_one_flood_are_answered_in_their_order(site, wire):
    site.protocol.read_budget.now = itertools.count().__next__  # every piece takes too long
    for number in range(1_000):
        wire.request("POST", f"/{number}", b"x" * 20)
    for number in range(1_000):
        assert (await wire.response()).body == b"/%d" % number
