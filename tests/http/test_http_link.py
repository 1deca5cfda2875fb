"""A link over streamable HTTP: what it sends, and what it makes of every kind of answer."""

import asyncio
import json
import weakref

import pytest
from tests.http.links import (
    GREETING,
    VERSION,
    Ears,
    Impatient,
    Rider,
    call,
    definition,
    failure,
    fly,
    http_link,
    landed,
    linked,
    opening,
)
from tests.http.origin import BOUND, Origin, Visit

from mcp_junction.config.settings import Limits
from mcp_junction.protocol.versions import DEFAULT_LIMIT
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.http import connection as connections
from mcp_junction.upstream.http import pool as pools
from mcp_junction.upstream.http.exchanges import PostedCall
from mcp_junction.upstream.http.link import HttpLink
from mcp_junction.upstream.outcome import Delivery
from mcp_junction.upstream.tokens import NO_TOKEN

CANCELLED = outcomes.cancelled("enough", Delivery.UNKNOWN)
NOTICE = {"jsonrpc": "2.0", "method": "notifications/x"}


def answer_of(visit: Visit) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": visit.message["id"], "result": {"ok": True}}


async def plainly(visit: Visit) -> None:
    visit.result({"ok": True})


async def test_the_session_and_the_version_are_named_once_they_are_known():
    async with linked(plainly, authorization="Bearer x", x_own="a b") as (origin, link):
        assert await call(link) == {"ok": True}
        first, *others = origin.visits
        assert first.rpc == "initialize"
        assert "mcp-session-id" not in first.headers
        assert "mcp-protocol-version" not in first.headers
        for visit in others:
            assert visit.headers["mcp-session-id"] == "s1"
            assert visit.headers["mcp-protocol-version"] == VERSION
        for visit in origin.visits:
            assert visit.headers["authorization"] == "Bearer x"
            assert visit.headers["accept"] == "application/json, text/event-stream"
            assert visit.headers["host"] == f"127.0.0.1:{origin.port}"


async def test_nothing_overtakes_the_word_that_the_conversation_is_open():
    heard = []

    async def slowly(visit: Visit) -> None:
        if visit.rpc == "initialize":
            visit.result(GREETING)
        elif visit.rpc == "notifications/initialized":
            for _ in range(50):  # turns of the loop in which something could come in between
                await asyncio.sleep(0)
            heard.append(visit.rpc)
            visit.accepted()
        else:
            heard.append(visit.rpc or visit.method)
            visit.answer(405) if visit.method == "GET" else visit.result({})

    async with Origin(slowly) as origin, http_link(origin.url) as link:
        await call(link)
    assert heard[0] == "notifications/initialized"


async def test_a_session_id_that_cannot_be_a_header_is_not_repeated():
    async def odd(visit: Visit) -> None:
        if visit.rpc == "initialize":
            visit.result(GREETING, mcp_session_id="s\x011")
        elif visit.method == "GET":
            visit.answer(405)
        else:
            visit.accepted()

    async with Origin(odd) as origin, http_link(origin.url):
        assert all("mcp-session-id" not in visit.headers for visit in origin.visits)


async def test_a_session_is_ended_with_a_delete():
    async with linked(plainly) as (origin, link):
        await link.end(1.0)
        assert (origin.visits[-1].method, origin.visits[-1].headers["mcp-session-id"]) == (
            "DELETE",
            "s1",
        )
        assert (await failure(link))["data"]["delivery"] == Delivery.NOT_SENT


async def test_a_server_without_sessions_gets_no_delete():
    async def stateless(visit: Visit) -> None:
        visit.result(GREETING) if visit.rpc == "initialize" else visit.accepted()

    async with Origin(stateless) as origin, http_link(origin.url) as link:
        await link.end(1.0)
        assert "DELETE" not in [visit.method for visit in origin.visits]


# -- answers


async def test_an_answer_in_a_stream_is_taken_however_it_is_cut():
    async def streamed(visit: Visit) -> None:
        text = f"event: message\r\ndata: {json.dumps(answer_of(visit))}\r\n\r\n".encode()
        visit.stream()
        for at in range(len(text)):
            visit.chunk(text[at : at + 1])
            await asyncio.sleep(0)
        visit.end()

    async with linked(streamed) as (origin, link):
        assert await call(link) == {"ok": True}
        await call(link)
        assert origin.connections <= 2  # the ended streams left theirs for the next


async def test_what_comes_on_the_stream_of_a_call_belongs_to_that_call():
    async def speaking(visit: Visit) -> None:
        visit.stream()
        call_id = visit.message["id"]
        progress = {"progressToken": call_id, "progress": 1}
        visit.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        log = {"level": "info", "data": call_id}
        visit.event({"jsonrpc": "2.0", "method": "notifications/message", "params": log})
        visit.event({"jsonrpc": "2.0", "id": f"q{call_id}", "method": "roots/list"})
        await origin.until(lambda: answers(f"q{call_id}"))
        visit.event(answer_of(visit))
        visit.end()

    def answers(question: str) -> list[Visit]:
        return [v for v in origin.visits if v.message.get("id") == question]

    async with linked(speaking) as (origin, link):
        riders = [Rider(), Rider()]
        flights = [fly(link, rider=rider) for rider in riders]
        for rider, flight in zip(riders, flights, strict=True):
            await landed(flight)
            assert rider.steps == [1]
            assert rider.logs == [{"level": "info", "data": int(flight.wire_id)}]
            (answer,) = answers(f"q{flight.wire_id.decode()}")
            assert answer.message["result"] == {"asked": "roots/list"}


async def test_a_call_on_a_stream_that_is_never_ended_is_answered_all_the_same():
    async def endless(visit: Visit) -> None:
        visit.stream()
        visit.event(answer_of(visit))
        visit.event(NOTICE)

    async with linked(endless) as (_, link):
        assert await call(link) == {"ok": True}


@pytest.mark.req("R-MEMORY")
@pytest.mark.parametrize("member", ["result", "error"])
async def test_a_stream_that_is_never_ended_does_not_hold_the_outcome_of_its_call(member):
    async def endless(visit: Visit) -> None:
        told = {"result": {"ok": True}, "error": {"code": -32050, "message": "no"}}[member]
        visit.stream()
        visit.event({"jsonrpc": "2.0", "id": visit.message["id"], member: told})

    async with linked(endless) as (_, link):
        flight = fly(link)
        await landed(flight)
        holds_outcome = weakref.ref(flight.future)
        del flight
        await asyncio.sleep(0)  # the event loop holds what has woken this test
        assert holds_outcome() is None
        assert any(connection.is_over for connection in link.pool._all)


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
async def test_an_answer_over_the_limit_ends_its_call_and_its_connection(streamed):
    async def flood(visit: Visit) -> None:
        visit.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: ")
        visit.raw(b"text/event-stream\r\n\r\n" if streamed else b"application/json\r\n\r\n")
        while not visit.gone.is_set():
            visit.chunk(b"data: {" + b" " * 10_000)
            await visit.link.writer.drain()

    async with linked(flood, limit=50_000) as (origin, link):
        error = await failure(link)
        assert "over the limit of 50000 bytes" in error["message"]
        assert error["data"]["delivery"] == Delivery.EXECUTED
        (visit,) = origin.told("tools/call")
        await asyncio.wait_for(visit.gone.wait(), BOUND)
        assert not link.closed.done()


async def test_a_link_that_was_renamed_names_the_server_as_it_is_called_now():
    async def damaged(visit: Visit) -> None:
        visit.answer(200, b'{"jsonrpc":"2.0","id":%d,"result":NaN}' % visit.message["id"])

    async with linked(damaged) as (_, link):
        link.rename("near")
        error = await failure(link)
        assert error["message"].startswith("server 'near': its answer is damaged")
        assert error["data"]["server"] == "near"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(status):
    async def elsewhere(visit: Visit) -> None:
        visit.answer(status, location=f"http://127.0.0.1:{trap.port}/mcp")

    async with Origin(plainly) as trap, linked(elsewhere) as (_, link):
        error = await failure(link)
        assert f"HTTP {status}, a redirect, and redirects are not followed" in error["message"]
        assert trap.connections == 0


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_of_our_credentials_says_where_to_look(status):
    async def closed(visit: Visit) -> None:
        visit.answer(status, www_authenticate="Bearer")

    async with linked(closed, authorization="Bearer secret") as (_, link):
        error = await failure(link)
        assert f"HTTP {status}; check the headers or credentials given for it" in error["message"]
        assert "secret" not in json.dumps(error)


@pytest.mark.parametrize(
    ("status", "delivery"), [(418, "unknown"), (500, "unknown"), (200, "executed")]
)
async def test_an_answer_that_is_none_ends_its_call(status, delivery):
    async def nonsense(visit: Visit) -> None:
        visit.answer(status, b"<html>", content_type="text/html")

    async with linked(nonsense) as (_, link):
        error = await failure(link)
        assert f"it answered HTTP {status}" in error["message"]
        told = {} if status == 200 else {"http_status": status}
        assert error["data"] == {"server": "far", "delivery": delivery, **told}


async def test_an_error_with_a_status_is_the_servers_own_word():
    async def refusing(visit: Visit) -> None:
        error = {"code": -32042, "message": "no", "data": [1]}
        visit.json({"jsonrpc": "2.0", "id": visit.message["id"], "error": error}, 400)

    async with linked(refusing) as (_, link):
        assert await failure(link) == {"code": -32042, "message": "no", "data": [1]}


# -- what was sent, and what was not


async def test_where_nothing_listens_a_call_was_not_sent_and_the_link_is_lost():
    async with linked(plainly) as (origin, link):
        await origin.close()
        error = await failure(link)
        assert error["data"]["delivery"] == Delivery.NOT_SENT
        assert "connection refused" in error["message"]
        await asyncio.wait_for(link.wait_closed(), BOUND)
        assert (await link.describe_end()).what == "connection refused"


async def test_a_call_whose_connection_is_cut_may_have_run():
    async def cut(visit: Visit) -> None:
        visit.hang_up()

    async with linked(cut) as (origin, link):
        error = await failure(link)
        assert (error["code"], error["data"]["delivery"]) == (-32005, Delivery.UNKNOWN)
        assert len(origin.told("tools/call")) == 1
        assert not link.closed.done()


async def test_too_many_calls_at_once_are_refused_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr("mcp_junction.upstream.http.pool.MAX_CONNECTIONS", 1)
    async with linked(plainly, limits=Limits(queue=3)) as (_, link):
        flights = [fly(link) for _ in range(8)]
        codes = [json.loads(bytes((await landed(f)).payload)).get("code") for f in flights]
        sent = codes.count(None)
        assert sent in (3, 4)  # three wait, one may be on the connection
        assert codes == [None] * sent + [-32000] * (8 - sent)
        assert await call(link) == {"ok": True}


# -- cancelling


class LateToken:
    """The source of a token that is not there yet."""

    current = NO_TOKEN
    must_wait = True

    def __init__(self) -> None:
        self.is_there = asyncio.Event()

    async def prepare(self) -> None:
        await self.is_there.wait()
        self.must_wait = False


async def test_a_call_that_waited_for_its_token_is_not_counted_twice():
    """With a place for one call, the one that waits has it; it must not be refused for itself."""

    async def answer(visit: Visit) -> None:
        visit.result({"ok": True})

    async with linked(answer, limits=Limits(calls=1)) as (_, link):
        link.tokens = LateToken()
        waiting = fly(link, rider=Rider())
        refused = await landed(fly(link, rider=Rider()))
        assert "as many as it may have" in refused.message
        link.tokens.is_there.set()
        assert json.loads(bytes((await landed(waiting)).payload)) == {"ok": True}
        assert await call(link, rider=Rider()) == {"ok": True}
        assert not link.is_busy


async def test_a_cancelled_call_is_named_by_our_id_and_its_stream_closed():
    async def hold(visit: Visit) -> None:
        visit.stream()
        visit.event(NOTICE)

    async with linked(hold) as (origin, link):
        flight = fly(link)
        visit = await origin.visited("tools/call")
        flight.abandon(CANCELLED, "enough")
        assert await landed(flight) is CANCELLED
        told = await origin.visited("notifications/cancelled")
        assert told.message["params"] == {"requestId": int(flight.wire_id), "reason": "enough"}
        await asyncio.wait_for(visit.gone.wait(), BOUND)
        assert not len(link.multiplexer)


async def test_a_call_cancelled_before_it_was_sent_is_never_sent(monkeypatch):
    monkeypatch.setattr("mcp_junction.upstream.http.pool.MAX_CONNECTIONS", 1)
    release = asyncio.Event()

    async def hold(visit: Visit) -> None:
        await release.wait()
        visit.result({})

    async with linked(hold) as (origin, link):
        first, second = fly(link), fly(link)
        await origin.visited("tools/call")
        second.abandon(CANCELLED, "enough")
        release.set()
        await landed(first)
        await call(link)
        ids = [visit.message["id"] for visit in origin.told("tools/call")]
        assert int(second.wire_id) not in ids
        assert not origin.told("notifications/cancelled")
        assert not len(link.multiplexer)


@pytest.mark.req("R-ISOLATE")
async def test_a_server_that_answers_no_notification_does_not_use_up_the_connections(monkeypatch):
    monkeypatch.setattr(pools, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "OVERDUE_AFTER", 0.0)

    async def calls_alone(visit: Visit) -> None:
        if visit.rpc != "notifications/x":
            await opening(plainly)(visit)

    async with Origin(calls_alone) as origin, http_link(origin.url) as link:
        for _ in range(5):
            link.notify("notifications/x")
        assert await call(link) == {"ok": True}
        assert len(origin.told("notifications/x")) == 5


# -- the standing stream


async def test_what_comes_on_the_standing_stream_belongs_to_no_call():
    opened = []

    async def announcing(visit: Visit) -> None:
        if visit.rpc == "initialize":
            visit.result(GREETING, mcp_session_id="s1")
        elif visit.method == "GET":
            opened.append(visit.headers.get("last-event-id"))
            visit.stream()
            visit.event(NOTICE, id=f"e{len(opened)}", retry=0)
            if len(opened) < 3:
                visit.end()
        else:
            visit.accepted()

    ears, clock = Ears(), Impatient()
    async with Origin(announcing) as origin, http_link(origin.url, ears=ears, clock=clock):
        assert await ears.heard_all(3) == ["notifications/x"] * 3
        assert opened == [None, "e1", "e2"]
        assert clock.waited == [1.0, 1.0]  # it asks for none, and would be asked without end


async def test_an_event_over_the_limit_is_skipped_and_the_stream_opened_again():
    opened = []

    async def flooding(visit: Visit) -> None:
        if visit.rpc == "initialize":
            visit.result(GREETING)
        elif visit.method == "GET":
            opened.append(visit.headers.get("last-event-id"))
            visit.stream()
            visit.event(NOTICE, id="1", retry=0)
            if len(opened) == 1:
                visit.event({**NOTICE, "params": {"x": "y" * 5000}}, id="2")
        else:
            visit.accepted()

    ears = Ears()
    async with Origin(flooding) as origin, http_link(origin.url, limit=1000, ears=ears):
        assert await ears.heard_all(2) == ["notifications/x"] * 2
        assert opened == [None, None]


async def test_a_server_that_went_away_is_noticed_without_a_call():
    async def standing(visit: Visit) -> None:
        if visit.rpc == "initialize":
            visit.result(GREETING)
        elif visit.method == "GET":
            visit.stream()
            visit.event(None, retry=0)
        else:
            visit.accepted()

    async with Origin(standing) as origin, http_link(origin.url) as link:
        await origin.until(lambda: origin.visits[-1].method == "GET")
        await origin.close()
        await asyncio.wait_for(link.wait_closed(), BOUND)


UNENDING = {
    "value": b"HTTP/1.1 200 OK\r\nx-long: ",
    "name": b"HTTP/1.1 200 OK\r\nx-long",
    "trailer": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx-long: ",
    "chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x-long=",
}


@pytest.mark.req("R-MEMORY", "R-ISOLATE")
@pytest.mark.parametrize("beginning", UNENDING.values(), ids=UNENDING)
async def test_a_header_that_does_not_end_ends_the_call(beginning):
    async def endless(visit: Visit) -> None:
        visit.raw(beginning)
        while not visit.gone.is_set():
            visit.raw(b"y" * 65_536)
            await asyncio.sleep(0)

    async with linked(endless) as (_, link):
        error = await failure(link)
        assert error["data"]["delivery"] == Delivery.UNKNOWN
        assert "the headers of its response are too large" in error["message"]


# -- headers


@pytest.mark.parametrize(
    "headers",
    [
        {"x-a": "a\r\nx-b: c"},
        {"x-a": "a\n"},
        {"x-a\r\nx-b": "c"},
        {"x a": "c"},
        {"x:a": "c"},
        {"": "c"},
        {"Host": "elsewhere"},
        {"content-length": "7"},
        {"Transfer-Encoding": "chunked"},
        {"Mcp-Session-Id": "another's"},
    ],
)
async def test_a_header_that_would_change_the_request_is_refused(headers):
    with pytest.raises(ValueError, match="the header") as refused:
        HttpLink(definition("http://127.0.0.1:1/", **headers), Ears(), DEFAULT_LIMIT)
    assert "x-b: c" not in str(refused.value)


async def test_a_header_that_is_not_latin_is_refused_in_words():
    with pytest.raises(ValueError, match="the header 'x-a' has a value that cannot"):
        HttpLink(definition("http://127.0.0.1:1/", **{"x-a": "naïve …"}), Ears(), DEFAULT_LIMIT)


async def test_an_answer_in_tiny_chunks_is_read_in_little_more_memory_than_its_size():
    text = "x" * 200_000

    async def drips(visit: Visit) -> None:
        answer = {"jsonrpc": "2.0", "id": visit.message["id"], "result": {"text": text}}
        body = json.dumps(answer).encode()
        visit.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        visit.raw(b"transfer-encoding: chunked\r\n\r\n")
        pieces = [body[at : at + 2] for at in range(0, len(body), 2)]
        visit.raw(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces))
        visit.end()

    most, data = 0, PostedCall.on_data

    def count(posted: PostedCall, chunk: bytes) -> None:
        nonlocal most
        data(posted, chunk)
        most = max(most, len(posted._body))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostedCall, "on_data", count)
        async with linked(drips) as (_, link):
            assert await call(link) == {"text": text}
    assert 0 < most < 1_000, "each part takes forty bytes beside its own"
