"""What a link over HTTP does again, and what it never does again: a call that may have run."""

import asyncio
import itertools
import json

import pytest
from tests.http.links import (
    GREETING,
    Ears,
    Impatient,
    call,
    failure,
    fly,
    http_link,
    landed,
    linked,
)
from tests.http.origin import BOUND, Origin, Visit

from mcp_junction.resilience.clock import SystemClock
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.http.refusals import UNKNOWN_SESSION
from mcp_junction.upstream.outcome import Delivery


class Forgetful:
    """A server whose sessions can be forgotten. A call says in which session it ran."""

    def __init__(self) -> None:
        self.unknown = lambda visit: visit.answer(404)
        self.known: set[str] = set()
        self.ids = itertools.count(1)
        self.held: asyncio.Event | None = None
        self.refuses = False

    async def __call__(self, visit: Visit) -> None:
        if visit.rpc == "initialize":
            await self._open(visit)
            return
        session = visit.headers.get("mcp-session-id", "")
        if self.held is not None and visit.rpc == "tools/call":
            await self.held.wait()
        if session not in self.known:
            self.unknown(visit)
        elif visit.method == "GET":
            visit.answer(405)
        elif "id" in visit.message:
            visit.result({"session": session})
        else:
            visit.accepted()

    async def _open(self, visit: Visit) -> None:
        if self.refuses:
            visit.answer(503)
            return
        session = f"s{next(self.ids)}"
        self.known.add(session)
        visit.result(GREETING, mcp_session_id=session)


@pytest.fixture
def server() -> Forgetful:
    return Forgetful()


async def test_a_forgotten_session_is_opened_again_and_the_call_sent_once_more(server):
    ears = Ears()
    async with Origin(server) as origin, http_link(origin.url, ears=ears) as link:
        assert await call(link) == {"session": "s1"}
        server.known.clear()
        assert await call(link) == {"session": "s2"}
        assert len(origin.told("initialize")) == 2
        assert len(origin.told("notifications/initialized")) == 2
        assert len(origin.told("tools/call")) == 3
        assert ears.renewals == 1


async def test_a_server_that_says_400_of_a_session_it_forgot_is_understood(server):
    def refuse(visit: Visit) -> None:
        error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
        visit.json({"jsonrpc": "2.0", "error": error, "id": None}, 400)

    server.unknown = refuse
    async with Origin(server) as origin, http_link(origin.url) as link:
        server.known.clear()
        assert await call(link) == {"session": "s2"}
        assert len(origin.told("initialize")) == 2


def _refused(message: str, frame_id: object = None) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": frame_id, "error": {"code": -32000, "message": message}}


@pytest.mark.parametrize(
    "answer",
    [
        lambda visit: _refused("Bad Request: No valid session ID provided", visit.message["id"]),
        lambda visit: _refused("Session not found", str(visit.message["id"])),
        lambda visit: _refused("the checkout session is closed; the payment was taken"),
        lambda visit: {"error": "your session has ended after the order was placed"},
    ],
    ids=["known words with our id", "our id as a string", "other words", "no frame"],
)
async def test_a_call_that_may_have_run_is_not_sent_again_whatever_a_400_says_of_sessions(answer):
    payments = 0

    async def pay(visit: Visit) -> None:
        nonlocal payments
        payments += 1
        visit.json(answer(visit), 400)

    async with linked(pay) as (origin, link):
        await failure(link)
        assert payments == 1
        assert len(origin.told("initialize")) == 1


@pytest.mark.parametrize("words", sorted(UNKNOWN_SESSION))
@pytest.mark.parametrize("form", ["frame", "object", "text"])
async def test_each_known_way_to_say_400_of_an_unknown_session_is_understood(server, words, form):
    def refuse(visit: Visit) -> None:
        if form == "text":
            visit.answer(400, words.upper().encode() + b"\n")
        else:
            visit.json(_refused(words) if form == "frame" else {"error": f"{words}."}, 400)

    server.unknown = refuse
    async with Origin(server) as origin, http_link(origin.url) as link:
        server.known.clear()
        assert await call(link) == {"session": "s2"}
        assert len(origin.told("tools/call")) == 2


async def test_any_other_400_is_an_answer(server):
    server.unknown = lambda visit: visit.answer(400, b"what do you mean?")
    async with Origin(server) as origin, http_link(origin.url) as link:
        server.known.clear()
        assert "HTTP 400" in (await failure(link))["message"]
        assert len(origin.told("initialize")) == 1


async def test_a_server_that_has_no_standing_stream_is_not_taken_to_have_forgotten_us(server):
    async def without(visit: Visit) -> None:
        visit.answer(404) if visit.method == "GET" else await server(visit)

    async with Origin(without) as origin, http_link(origin.url) as link:
        for _ in range(3):
            assert await call(link) == {"session": "s1"}
        assert len(origin.told("initialize")) == 1


async def test_many_calls_that_find_the_session_forgotten_open_one_together(server):
    async with Origin(server) as origin, http_link(origin.url) as link:
        server.known.clear()
        flights = [fly(link) for _ in range(20)]
        for flight in flights:
            assert json.loads(bytes((await landed(flight)).payload)) == {"session": "s2"}
        assert len(origin.told("initialize")) == 2


async def test_a_call_that_hears_of_it_late_uses_the_session_there_is_by_then(server):
    async with Origin(server) as origin, http_link(origin.url) as link:
        server.known.clear()
        server.held = asyncio.Event()
        late = fly(link)
        await origin.visited("tools/call")
        held, server.held = server.held, None
        assert await call(link) == {"session": "s2"}
        held.set()
        assert json.loads(bytes((await landed(late)).payload)) == {"session": "s2"}
        assert len(origin.told("initialize")) == 2


async def test_a_call_made_while_the_session_is_opened_again_waits_for_it(server):
    async with Origin(server) as origin, http_link(origin.url) as link:
        server.known.clear()
        first = fly(link)
        await origin.visited("initialize", 2)
        second = fly(link)
        for flight in (first, second):
            assert json.loads(bytes((await landed(flight)).payload)) == {"session": "s2"}
        assert len(origin.told("tools/call")) == 3


async def test_a_session_that_is_forgotten_again_at_once_is_not_chased(server):
    async with Origin(server) as origin, http_link(origin.url) as link:
        server.known.clear()
        forgetting = server._open

        async def open_and_forget(visit: Visit) -> None:
            await forgetting(visit)
            server.known.clear()

        server._open = open_and_forget
        error = await failure(link)
        assert "it answered HTTP 404" in error["message"]
        assert len(origin.told("tools/call")) == 2


async def test_a_session_that_cannot_be_opened_again_ends_the_call_unsent(server):
    async with Origin(server) as origin, http_link(origin.url) as link:
        server.known.clear()
        server.refuses = True
        error = await failure(link)
        assert "its session was lost and could not be opened again" in error["message"]
        assert error["data"]["delivery"] == Delivery.NOT_SENT
        assert len(origin.told("tools/call")) == 1


async def test_a_session_forgotten_while_nobody_called_is_opened_for_the_standing_stream():
    sessions = []

    async def restarting(visit: Visit) -> None:
        if visit.rpc == "initialize":
            sessions.append(f"s{len(sessions) + 1}")
            visit.result(GREETING, mcp_session_id=sessions[-1])
        elif visit.headers.get("mcp-session-id") != sessions[-1]:
            visit.answer(404)
        elif visit.method == "GET":
            visit.stream()
            visit.event(None, retry=0)
            if len(sessions) == 1:
                sessions.append("another server's")
                visit.end()
        else:
            visit.accepted()

    ears = Ears()
    async with Origin(restarting) as origin, http_link(origin.url, ears=ears):
        await origin.visited("initialize", 2)
        last = await origin.until(lambda: origin.visits[-1].method == "GET" and origin.visits[-1])
        assert last.headers["mcp-session-id"] == "s3"
        assert ears.renewals == 1


# -- told to come back later


async def test_told_to_come_back_later_it_does_once():
    answers = iter([lambda v: v.answer(429, retry_after="0"), lambda v: v.result({"ok": 1})])

    async def busy(visit: Visit) -> None:
        next(answers)(visit)

    async with linked(busy) as (origin, link):
        assert await call(link) == {"ok": 1}
        assert len({visit.message["id"] for visit in origin.told("tools/call")}) == 1


async def test_told_to_come_back_later_twice_it_gives_up():
    async def busy(visit: Visit) -> None:
        visit.answer(429, retry_after="0")

    async with linked(busy) as (origin, link):
        assert "it answered HTTP 429" in (await failure(link))["message"]
        assert len(origin.told("tools/call")) == 2


async def test_told_to_come_back_much_later_it_does_not_wait():
    async def busy(visit: Visit) -> None:
        visit.answer(429, retry_after="3600")

    async with linked(busy) as (origin, link):
        assert "3600 s" in (await failure(link))["message"]
        assert len(origin.told("tools/call")) == 1


# -- a stream that breaks off


class Breaking:
    """A server whose stream breaks off after an event; ``resumed`` answers who comes back."""

    def __init__(self, resumed, *, with_ids: bool = True, ends: bool = False) -> None:
        self.resumed = resumed
        self.with_ids = with_ids
        self.ends = ends
        self.call: Visit | None = None

    async def __call__(self, visit: Visit) -> None:
        if visit.method == "GET":
            self.resumed(self, visit)
            return
        self.call = visit
        visit.stream()
        visit.event(None, id="7_1" if self.with_ids else None, retry=0)
        if self.ends:
            visit.end()
            return
        await visit.link.writer.drain()
        visit.link.writer.close()

    def answer(self, visit: Visit, event_id: str = "7_2") -> None:
        visit.stream()
        message = {"jsonrpc": "2.0", "id": self.call.message["id"], "result": {"ok": 1}}
        visit.event(message, id=event_id)
        visit.end()


@pytest.mark.parametrize("ends", [False, True], ids=["cut", "ended"])
async def test_a_stream_that_breaks_off_is_taken_up_after_its_last_event(ends):
    async with linked(Breaking(Breaking.answer, ends=ends)) as (origin, link):
        assert await call(link) == {"ok": 1}
        (resume,) = [v for v in origin.visits if "last-event-id" in v.headers]
        assert (resume.headers["last-event-id"], resume.headers["mcp-session-id"]) == ("7_1", "s1")
        assert len(origin.told("tools/call")) == 1


async def test_a_stream_is_taken_up_as_often_as_it_breaks_off():
    def again(server: Breaking, visit: Visit) -> None:
        number = int(visit.headers["last-event-id"].partition("_")[2])
        if number == 4:
            server.answer(visit, "7_5")
        else:
            visit.stream()
            visit.event(None, id=f"7_{number + 1}")
            visit.end()

    async with linked(Breaking(again)) as (_, link):
        assert await call(link) == {"ok": 1}


async def test_a_server_that_asks_for_no_pause_is_not_come_back_to_within_a_second():
    clock = Impatient()
    async with linked(Breaking(Breaking.answer), clock=clock) as (_, link):
        assert await call(link) == {"ok": 1}
    assert clock.waited == [1.0]


async def test_a_stream_without_ids_that_breaks_off_leaves_the_call_unknown():
    async with linked(Breaking(None, with_ids=False)) as (origin, link):
        assert (await failure(link))["data"]["delivery"] == Delivery.UNKNOWN
        assert len(origin.told("tools/call")) == 1


@pytest.mark.parametrize("status", [400, 404, 405, 429, 500])
async def test_a_call_whose_stream_cannot_be_taken_up_is_not_made_again(status):
    """It may have run, whatever the server says of its session by now."""

    def refuse(_: Breaking, visit: Visit) -> None:
        visit.answer(status, retry_after="0")

    async with linked(Breaking(refuse)) as (origin, link):
        error = await failure(link)
        assert error["data"]["delivery"] == Delivery.UNKNOWN
        assert f"HTTP {status}" in error["message"]
        assert len(origin.told("tools/call")) == 1


async def test_a_call_cancelled_between_two_streams_is_not_taken_up():
    async def breaking(visit: Visit) -> None:
        visit.stream()
        visit.event(None, id="1", retry=20_000)
        visit.end()
        await visit.link.writer.drain()

    async with linked(breaking, clock=SystemClock()) as (origin, link):
        flight = fly(link)
        await origin.visited("tools/call")
        async with asyncio.timeout(BOUND):
            while not flight.carrier._resumes:  # noqa: ASYNC110 - it says nothing
                await asyncio.sleep(0)
        flight.abandon(outcomes.cancelled("enough", Delivery.UNKNOWN), "enough")
        told = await origin.visited("notifications/cancelled")
        assert told.message["params"]["requestId"] == int(flight.wire_id)
        assert not [v for v in origin.visits if "last-event-id" in v.headers]
