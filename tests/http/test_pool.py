"""The pool and its connections, against a server that answers byte by byte."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.http.origin import BOUND, Handler, Origin, Visit

from mcp_junction.resilience.read_budget import AT_ONCE, TURN_LIMIT, ReadBudget
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.http import pool as pools
from mcp_junction.upstream.http.connection import Target, parse_target
from mcp_junction.upstream.http.pool import Pool

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Asking:
    """An exchange that keeps what it is told."""

    def __init__(self, path: str = "/") -> None:
        self.connection = None
        self.payload = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode()
        self.told: list[str] = []
        self.statuses: list[int] = []
        self.body = b""
        self.is_over = False
        self.is_parked = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_written(self) -> None:
        self.told.append("written")

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.statuses.append(status)

    def on_data(self, chunk: bytes) -> None:
        self.body += chunk

    def on_complete(self) -> None:
        self.told.append("done")
        self.ended.set_result("")

    def on_lost(self, why: str) -> None:
        self.told.append("lost")
        self.ended.set_result(why)

    async def end(self) -> str:
        return await asyncio.wait_for(asyncio.shield(self.ended), BOUND)


@asynccontextmanager
async def pooled(handler: Handler) -> AsyncIterator[tuple[Origin, Pool]]:
    async with Origin(handler) as origin:
        tasks = TaskScope("test")
        pool = Pool(parse_target(origin.url), tasks)
        try:
            yield origin, pool
        finally:
            pool.close()
            await tasks.close()


def send(pool: Pool, path: str = "/") -> Asking:
    asking = Asking(path)
    pool.send(asking)
    return asking


async def plainly(visit: Visit) -> None:
    visit.answer(200, visit.path.encode())


class Doors:
    """A handler that holds each request until the test opens its door."""

    def __init__(self) -> None:
        self.at = defaultdict[str, asyncio.Event](asyncio.Event)

    async def __call__(self, visit: Visit) -> None:
        await self.at[visit.path].wait()
        visit.answer(200, visit.path.encode())


async def visits(origin: Origin, count: int) -> None:
    await origin.until(lambda: len(origin.visits) >= count)


async def test_one_after_another_use_one_connection():
    async with pooled(plainly) as (origin, pool):
        for path in ("/a", "/b", "/c"):
            asking = send(pool, path)
            assert await asking.end() == ""
            assert asking.told == ["written", "done"]
            assert asking.body == path.encode()
        assert origin.connections == 1


async def test_many_at_once_have_a_connection_each_and_leave_them_for_the_next():
    async with pooled(doors := Doors()) as (origin, pool):
        for turn in (1, 2):
            askings = [send(pool, f"/{turn}/{n}") for n in range(5)]
            await visits(origin, 5 * turn)
            for n, asking in enumerate(askings):
                doors.at[f"/{turn}/{n}"].set()
                assert await asking.end() == ""
        assert origin.connections == 5


async def test_a_burst_makes_only_so_many_connections_at_a_time_and_all_are_served(monkeypatch):
    begun, opened = 0, asyncio.Event()
    async with pooled(plainly) as (_, pool):
        dial = pool._dialer.dial

        async def dial_later(*how):
            nonlocal begun
            begun += 1
            await opened.wait()
            return await dial(*how)

        monkeypatch.setattr(pool._dialer, "dial", dial_later)
        askings = [send(pool, f"/{n}") for n in range(100)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == pools.MAX_OPENING
        opened.set()
        assert [await asking.end() for asking in askings] == [""] * 100


async def test_what_finds_no_connection_waits_for_one_to_come_free(monkeypatch):
    monkeypatch.setattr(pools, "MAX_CONNECTIONS", 2)
    async with pooled(plainly) as (origin, pool):
        askings = [send(pool, f"/{n}") for n in range(9)]
        for number, asking in enumerate(askings):
            await asking.end()
            assert asking.body == b"/%d" % number
        assert origin.connections == 2


async def test_a_place_that_nobody_waits_at_any_more_is_taken_back(monkeypatch):
    monkeypatch.setattr(pools, "MAX_CONNECTIONS", 1)
    async with pooled(doors := Doors()) as (origin, pool):
        forgotten = send(pool, "/forgotten")
        await visits(origin, 1)
        forgotten.is_over = True
        doors.at["/next"].set()
        asking = send(pool, "/next")
        assert await asking.end() == ""


async def test_a_call_that_begins_to_wait_for_its_client_makes_room_for_another(monkeypatch):
    monkeypatch.setattr(pools, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(pools, "CONNECT_AGAIN", 0.01)
    async with pooled(doors := Doors()) as (origin, pool):
        first = send(pool, "/first")
        await visits(origin, 1)
        doors.at["/second"].set()
        second = send(pool, "/second")
        first.is_parked = True  # nothing else happens that the pool could hear of
        assert await second.end() == ""
        assert first.told == ["written"]


async def test_one_that_waited_for_its_client_and_is_given_up_leaves_no_room_behind(monkeypatch):
    monkeypatch.setattr(pools, "MAX_CONNECTIONS", 1)
    async with pooled(doors := Doors()) as (origin, pool):
        parked = send(pool, "/parked")
        await visits(origin, 1)
        parked.is_parked = True
        running = send(pool, "/running")
        await visits(origin, 2)
        pool.drop(parked)
        await asyncio.wait_for(origin.visits[0].gone.wait(), BOUND)
        late = send(pool, "/late")
        doors.at["/running"].set()
        doors.at["/late"].set()
        assert await running.end() == ""
        assert await late.end() == ""
        assert origin.connections == 2


async def test_nothing_is_kept_of_what_has_ended_however_it_did():
    async def variously(visit: Visit) -> None:
        if visit.path == "/cut":
            visit.hang_up()
        elif visit.path != "/held":
            visit.answer(200, b"x")

    async with pooled(variously) as (origin, pool):
        askings = [send(pool, path) for path in ("/plain", "/cut", "/held")]
        await visits(origin, 3)
        pool.drop(askings[2])
        for asking in askings[:2]:
            await asking.end()
        held = next(visit for visit in origin.visits if visit.path == "/held")
        await asyncio.wait_for(held.gone.wait(), BOUND)
        assert not any(asking.connection for asking in askings)
        assert len(pool._all) == len(pool._idle) == 1


async def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch):
    async with pooled(plainly) as (origin, pool):
        await send(pool).end()
        monkeypatch.setattr(pools, "STALE_AFTER", 0.0)
        await send(pool).end()
        assert origin.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again():
    async with pooled(plainly) as (origin, pool):
        await send(pool).end()
        (link,) = origin.links
        link.writer.close()
        await link.gone.wait()
        assert await send(pool).end() == ""
        assert origin.connections == 2


async def test_an_answer_to_nothing_ends_the_connection():
    async with pooled(plainly) as (origin, pool):
        await send(pool).end()
        (link,) = origin.links
        link.writer.write(b"HTTP/1.1 408 X\r\ncontent-length: 0\r\n\r\n")
        await asyncio.wait_for(link.gone.wait(), BOUND)
        asking = send(pool)
        assert await asking.end() == ""
        assert asking.statuses == [200]


async def test_where_nothing_listens_nothing_is_sent():
    async with pooled(plainly) as (origin, pool):
        await origin.close()
        asking = send(pool)
        assert await asking.end() == "connection refused"
        assert asking.told == ["lost"]


async def test_a_connection_cut_before_the_answer_is_known_to_have_been_used():
    async def cut(visit: Visit) -> None:
        visit.hang_up()

    async with pooled(cut) as (_, pool):
        asking = send(pool)
        await asking.end()
        assert asking.told == ["written", "lost"]


async def test_what_waits_ends_when_no_more_connections_are_taken(monkeypatch):
    """Another may come free, but it need not: a stream can last for ever."""
    monkeypatch.setattr(pools, "CONNECT_TIMEOUT", 0.2)
    monkeypatch.setattr(pools, "CONNECT_AGAIN", 0.05)
    async with pooled(Doors()) as (origin, pool):
        stream = send(pool, "/stream")
        await visits(origin, 1)
        await origin.refuse()
        asking = send(pool, "/call")
        assert await asking.end() == "connection refused"
        assert asking.told == ["lost"]
        assert stream.told == ["written"]


async def test_what_waits_goes_on_a_connection_that_comes_free(monkeypatch):
    monkeypatch.setattr(pools, "CONNECT_AGAIN", 0.01)
    async with pooled(doors := Doors()) as (origin, pool):
        send(pool, "/first")
        await visits(origin, 1)
        await origin.refuse()
        tried = asyncio.Event()
        monkeypatch.setattr(pool, "_grow_later", _noted(pool._grow_later, tried))
        asking = send(pool, "/second")
        await asyncio.wait_for(tried.wait(), BOUND)
        doors.at["/first"].set()
        doors.at["/second"].set()
        assert await asking.end() == ""


def _noted(function, event):
    async def noting() -> None:
        event.set()
        await function()

    return noting


async def test_what_is_given_up_while_it_waits_is_never_sent(monkeypatch):
    monkeypatch.setattr(pools, "MAX_CONNECTIONS", 1)
    async with pooled(doors := Doors()) as (origin, pool):
        first = send(pool, "/first")
        given_up, last = send(pool, "/given-up"), send(pool, "/last")
        await visits(origin, 1)
        pool.drop(given_up)
        for path in ("/first", "/given-up", "/last"):
            doors.at[path].set()
        await first.end()
        await last.end()
        assert [visit.path for visit in origin.visits] == ["/first", "/last"]
        assert given_up.told == []


async def test_what_is_given_up_on_the_wire_takes_its_connection_along():
    async with pooled(Doors()) as (origin, pool):
        asking = send(pool)
        await visits(origin, 1)
        pool.drop(asking)
        await asyncio.wait_for(origin.visits[0].gone.wait(), BOUND)
        assert asking.told == ["written"]


async def test_closing_ends_what_waits_and_takes_nothing_more():
    async with pooled(Doors()) as (_, pool):
        asking = send(pool)
        pool.close()
        assert await asking.end() == "the link is closed"
        late = send(pool)
        assert await late.end() == "the link is closed"
        assert late.told == ["lost"]


@pytest.mark.parametrize(
    ("answer", "closes"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", False),
        (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", False),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello", True),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", True),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", True),
    ],
    ids=["sized", "chunked", "after a continue", "last", "until the end", "1.0"],
)  # fmt: skip
async def test_every_way_to_end_a_body_is_understood(answer, closes):
    async def as_told(visit: Visit) -> None:
        for byte in answer:
            visit.raw(bytes([byte]))
            await asyncio.sleep(0)
        if closes:
            visit.link.writer.close()

    async with pooled(as_told) as (origin, pool):
        for connections in (1, 2 if closes else 1):
            asking = send(pool)
            assert await asking.end() == ""
            assert (asking.statuses[-1], asking.body) == (200, b"hello")
            assert origin.connections == connections


@pytest.mark.parametrize(
    "more",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"garbage\r\n\r\n",
        b"H",
    ],
)
async def test_what_follows_a_response_unasked_is_nobodys(more):
    async def say_too_much(visit: Visit) -> None:
        visit.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello" + more)

    async with pooled(say_too_much) as (origin, pool):
        for connections in (1, 2, 3):
            asking = send(pool)
            assert await asking.end() == ""
            assert (asking.statuses, asking.body) == ([200], b"hello")
            assert origin.connections == connections, "each is given up"


async def test_a_server_that_switches_to_another_protocol_has_not_answered(caplog):
    async def switch(visit: Visit) -> None:
        visit.raw(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")

    async with pooled(switch) as (_, pool):
        assert "another protocol" in await send(pool).end()
    assert not caplog.records


@pytest.mark.parametrize(
    "answers",
    [
        [b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"],
        [b"HTTP/1.1 204 No Content\r\n\r\n", b""],
    ],
    ids=["hints", "nothing, after an answer without a length"],
)
async def test_a_server_that_closes_before_it_answers_has_not_answered(answers):
    coming = iter(answers)

    async def answer_or_close(visit: Visit) -> None:
        answer = next(coming)
        visit.raw(answer)
        if answer is answers[-1]:
            visit.link.writer.close()

    async with pooled(answer_or_close) as (origin, pool):
        for _ in answers[:-1]:
            assert await send(pool).end() == ""
        asking = send(pool)
        assert await asking.end() == "it closed the connection"
        assert (asking.statuses, origin.connections) == ([], 1)


async def test_an_answer_that_is_cut_short_is_no_answer():
    async def half(visit: Visit) -> None:
        visit.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello")
        visit.link.writer.close()

    async with pooled(half) as (_, pool):
        assert await send(pool).end() == "it closed the connection"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 40_000 + b"\r\n", "headers of its response"),
    ],
)
async def test_what_is_no_answer_is_refused(answer, words):
    async def say(visit: Visit) -> None:
        visit.raw(answer)

    async with pooled(say) as (_, pool):
        asking = send(pool)
        assert words in await asking.end()
        assert asking.told == ["written", "lost"]


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://h/mcp", Target("h", 80, "/mcp", False)),
        ("https://h", Target("h", 443, "/", True)),
        ("https://h:8443/a?b=c&d", Target("h", 8443, "/a?b=c&d", True)),
        ("http://[::1]:9/x", Target("::1", 9, "/x", False)),
    ],
)
def test_a_url_says_where_to_connect(url, found):
    assert parse_target(url) == found
    host = found.head("GET", {}).decode().split("\r\n")[1]
    assert host == "host: " + url.split("/")[2]


@pytest.mark.parametrize(
    "url",
    ["ftp://h/", "h/mcp", "http:///mcp", "http://h/a b", "http://h/\r\nx: y", "http://h/ü",
     "http://h:99999/", "http://h:port/"],
)  # fmt: skip
def test_a_url_that_makes_no_sense_is_refused(url):
    with pytest.raises(ValueError, match=r"."):
        parse_target(url)


@pytest.mark.req("R-ISOLATE")
async def test_a_flood_is_parsed_in_pieces_between_which_others_have_their_turn():
    class Clock:
        time = 0.0

    class Slow(Asking):
        in_turn = most = 0

        def on_data(self, chunk: bytes) -> None:
            super().on_data(chunk)
            Clock.time += TURN_LIMIT / 10
            self.in_turn += 1
            self.most = max(self.most, self.in_turn)

    async def flood(visit: Visit) -> None:
        visit.raw(CHUNKED + b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n")

    async with Origin(flood) as origin:
        tasks = TaskScope("test")
        budget = ReadBudget(lambda: Clock.time)
        pool = Pool(parse_target(origin.url), tasks, read_budget=budget)
        slow = Slow()
        pool.send(slow)
        while not slow.ended.done():
            await asyncio.sleep(0)
            slow.in_turn = 0
        assert await slow.end() == ""
        assert slow.body == b"x" * 40_000
        assert slow.most < AT_ONCE / 6 + 200
        assert await send(pool).end() == "", "the connection is read again"
        assert origin.connections == 1
        pool.close()
        await tasks.close()
