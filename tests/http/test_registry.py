"""Sessions of HTTP clients: whose they are, when they end, how many there may be. Time is told."""

import asyncio
import heapq

import pytest

from mcp_junction.catalog.endpoints import EVERYTHING, one_server
from mcp_junction.config.settings import Quota
from mcp_junction.listener.http.exchange import AsgiExchange
from mcp_junction.listener.http.replies import HttpReply
from mcp_junction.listener.http.sessions import (
    KEPT_STREAMS,
    SWEEP_EVERY,
    SessionRegistry,
)
from mcp_junction.listener.http.streams import KEPT_BYTES
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role
from mcp_junction.policy.quotas import Quotas
from mcp_junction.protocol import names
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope

IDLE = 1800.0


class Told:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.time = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.time + seconds, id(woken), woken))
        await woken

    async def pass_by(self, seconds: float) -> None:
        end = self.time + seconds
        await self._turns()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.time, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            await self._turns()
        self.time = end

    async def _turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


class Desk:
    """A registry, and who has been told that a session is over."""

    def __init__(self, limit: int = 100) -> None:
        self.clock = Told()
        self.ended: list[Session] = []
        self.quotas = Quotas(Quota(sessions=limit))
        self.registry = SessionRegistry(self.clock, IDLE, self.ended.append)
        self.tasks = TaskScope("streams")

    def open(self, principal: Principal = LOCAL_OWNER, endpoint=EVERYTHING):
        usage = self.quotas.of(principal)
        session = Session(principal, names.PLATFORM, lambda _: None, endpoint=endpoint, usage=usage)
        session.protocol_version = "2025-11-25"
        return self.registry.add(self.registry.new_id(), session, endpoint)

    def knows(self, found) -> bool:
        session = found.session
        return self.registry.find(found.id, session.principal, found.endpoint) is found


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def listens(desk: Desk, found) -> list[bytes]:
    """Attach a reader to the standing stream; what it is sent."""
    sent: list[bytes] = []

    async def send(message) -> None:
        sent.append(message.get("body", b""))

    await found.standing(desk.tasks).attach(send, after=None, prime=False)
    return sent


async def test_a_session_is_found_by_whoever_opened_it_where_it_was_opened(desk):
    bot = Principal("bot", Role.AGENT)
    found = desk.open(bot)
    assert desk.registry.find(found.id, Principal("bot", Role.AGENT), EVERYTHING) is found
    assert desk.registry.find(found.id, Principal("bot", Role.ADMIN), EVERYTHING) is None
    assert desk.registry.find(found.id, LOCAL_OWNER, EVERYTHING) is None
    assert desk.registry.find(found.id, bot, one_server("a")) is None
    assert desk.registry.find("another", bot, EVERYTHING) is None


def test_ids_cannot_be_guessed():
    registry = Desk().registry
    ids = {registry.new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(found) >= 24 and found.isascii() and found.isprintable() for found in ids)


async def test_a_session_that_is_idle_for_long_expires(desk):
    sweeping = asyncio.create_task(desk.registry.run())
    idle, used = desk.open(), desk.open()
    await desk.clock.pass_by(IDLE - SWEEP_EVERY)
    assert desk.knows(used)
    assert len(desk.registry) == 2
    await desk.clock.pass_by(2 * SWEEP_EVERY)
    assert desk.ended == [idle.session]
    assert not desk.knows(idle)
    await desk.clock.pass_by(IDLE + SWEEP_EVERY)
    assert len(desk.registry) == 0
    sweeping.cancel()


async def test_a_session_with_a_call_or_a_reader_does_not_expire(desk):
    calling, listening = desk.open(), desk.open()
    calling.session.calls[b"1"] = Waiting()
    await listens(desk, listening)
    desk.clock.time += 10 * IDLE
    desk.registry.sweep()
    assert not desk.ended
    calling.session.calls.clear()
    listening.standing(desk.tasks).detach()
    desk.registry.sweep()
    assert len(desk.ended) == 2


class Waiting:
    """A call whose client is there."""

    def __init__(self, channel: object = None) -> None:
        self.channel = channel
        self.dropped: list[str] = []

    def drop(self, reason: str) -> None:
        self.dropped.append(reason)


class Gone:
    """An exchange whose client has left."""

    is_gone = True


@pytest.mark.req("R-QUOTA")
async def test_a_call_whose_client_has_gone_is_ended_with_the_idle_time_of_its_session(desk):
    left, waited_for = desk.open(), desk.open()
    there, stays = Gone(), Gone()
    stays.is_gone = False
    for found, exchange in ((left, there), (waited_for, stays)):
        wire = HttpReply(None, desk.tasks, b"", exchange, found)
        found.session.calls[b"1"] = Waiting(wire)
    call = left.session.calls[b"1"]
    desk.clock.time += IDLE - 1
    desk.registry.sweep()
    assert not desk.ended, "the client may yet come back for it"
    desk.clock.time += 2
    desk.registry.sweep()
    assert desk.ended == [left.session]
    assert call.dropped == ["the session has expired"]


class Connection:
    """A connection that takes all that is written."""

    is_paused = False

    def write(self, data: bytes) -> None:
        """Take it."""

    def finish(self, exchange: AsgiExchange) -> None:
        """Go on."""


@pytest.mark.req("R-QUOTA")
@pytest.mark.parametrize("leaves_first", [True, False])
async def test_a_call_that_has_spoken_is_ended_so_too_when_its_client_has_gone(desk, leaves_first):
    found = desk.open()
    exchange = AsgiExchange(Connection(), {"method": "POST", "http_version": "1.1"}, b"{}")
    reply = HttpReply(exchange.send, desk.tasks, b"", exchange, found)
    found.session.calls[b"1"] = call = Waiting(reply)
    if leaves_first:
        exchange.disconnect()
    reply.send(b'"progress"')
    await desk.tasks.settle(5)
    if not leaves_first:
        assert not found.is_idle
        exchange.disconnect()
    assert found.is_idle, "nobody reads"
    desk.clock.time += IDLE + 1
    desk.registry.sweep()
    assert desk.ended == [found.session]
    assert call.dropped == ["the session has expired"]


async def test_the_answer_to_a_call_that_has_spoken_is_delivered_with_the_end_of_its_stream(desk):
    found = desk.open()
    exchange = AsgiExchange(Connection(), {"method": "POST", "http_version": "1.1"}, b"{}")
    reply = HttpReply(exchange.send, desk.tasks, b"", exchange, found)
    reply.send(b'"progress"')
    await desk.tasks.settle(5)
    await reply.end(b'"answer"')
    (stream,) = found.streams.values()
    assert (stream.is_delivered, stream.is_attached, exchange.when_gone) == (True, False, None)


@pytest.mark.req("R-QUOTA")
async def test_at_the_limit_the_oldest_one_that_is_not_in_use_goes():
    desk = Desk(limit=3)
    busy, used, unused = desk.open(), desk.open(), desk.open()
    busy.session.calls[b"1"] = Waiting()
    desk.clock.time += 1
    assert desk.knows(used)
    fourth = desk.open()
    assert desk.ended == [unused.session]
    assert all(desk.knows(found) for found in (busy, used, fourth))


@pytest.mark.req("R-QUOTA")
async def test_at_the_limit_of_those_that_are_all_in_use_the_oldest_goes():
    desk = Desk(limit=2)
    first, second = desk.open(), desk.open()
    for found in (first, second):
        found.session.calls[b"1"] = Waiting()
    assert desk.knows(desk.open())
    assert desk.ended == [first.session]


@pytest.mark.req("R-QUOTA")
async def test_who_opens_too_many_sessions_loses_none_of_anybody_else():
    desk = Desk(limit=2)
    others = [desk.open(Principal(name, Role.AGENT)) for name in ("ann", "ben", "cid")]
    for _ in range(50):
        desk.open(Principal("greedy", Role.AGENT))
    assert all(desk.knows(found) for found in others)
    assert len(desk.registry) == 5
    assert {session.principal.id for session in desk.ended} == {"greedy"}


async def test_nothing_is_kept_of_a_principal_that_holds_nothing():
    desk = Desk()
    for number in range(100):
        desk.registry.remove(desk.open(Principal(f"p{number}", Role.AGENT)), "enough")
    desk.ended.clear()
    assert len(desk.quotas) == 0


async def test_the_end_of_a_session_is_told_once_and_ends_its_streams(desk):
    found = desk.open()
    sent = await listens(desk, found)
    desk.registry.remove(found, "enough")
    desk.registry.remove(found, "enough")
    await desk.tasks.settle(5)
    assert desk.ended == [found.session]
    assert sent[-1] == b""


async def test_whoever_is_no_longer_let_in_is_expelled(desk):
    bad = Principal("bad", Role.AGENT)
    expelled, kept = desk.open(bad), desk.open(Principal("good", Role.AGENT))
    desk.registry.expel(lambda principal: principal != bad)
    assert desk.ended == [expelled.session]
    assert desk.knows(kept)


async def test_only_the_last_streams_of_a_session_are_kept(desk):
    found = desk.open()
    for _ in range(KEPT_STREAMS * 3):
        found.new_stream(desk.tasks).end()
    assert len(found.streams) <= KEPT_STREAMS + 1
    assert found.find_stream(b"1_0") is None
    assert found.find_stream(b"%d_0" % (KEPT_STREAMS * 3)) is not None


async def test_streams_that_have_not_ended_are_kept_however_many(desk):
    found = desk.open()
    for _ in range(KEPT_STREAMS * 2):
        found.new_stream(desk.tasks)
    assert len(found.streams) == KEPT_STREAMS * 2


async def test_a_whole_gateway_ends_sessions_that_are_idle(serving):
    clock = Told()
    gateway = await serving({}, clock=clock, session_idle_ms=60_000)
    client = await gateway.front(listens=False)
    await clock.pass_by(50)
    assert await client.result("ping") == {}
    await clock.pass_by(80)
    assert not gateway.junction.clients.sessions
    assert "no such session" in (await client.error_without_id("ping"))["message"]


async def test_a_whole_gateway_has_a_limit_on_sessions(serving):
    gateway = await serving({}, max_sessions_per_principal=2)
    first = await gateway.front(listens=False)
    second, third = await gateway.front(), await gateway.front()
    assert "no such session" in (await first.error_without_id("ping"))["message"]
    assert await second.result("ping") == await third.result("ping") == {}
    fourth = await gateway.front(listens=False)
    assert "no such session" in (await second.error_without_id("ping"))["message"]
    assert await third.result("ping") == await fourth.result("ping") == {}
    assert len(gateway.junction.clients.sessions) == 2


async def deliver(desk: Desk, found, size: int, *, reads: bool = True) -> int:
    """Send one event of a call's stream to a client, and end it; the number of the stream."""
    written: list[dict] = []

    async def send(message: dict) -> None:
        written.append(message)

    stream = found.new_stream(desk.tasks)
    attached = await stream.attach(send, after=0, prime=False)
    if not reads:
        stream.release(attached)
    stream.send(b"x" * size)
    stream.end()
    if reads:
        await asyncio.wait_for(attached, 30)
        assert sum(len(message.get("body", b"")) for message in written) >= size
    return stream.number


@pytest.mark.req("R-MEMORY")
async def test_an_answer_that_was_delivered_is_kept_for_a_sweep_and_then_no_longer():
    desk = Desk()
    found = desk.open()
    number = await deliver(desk, found, 1000)
    desk.registry.sweep()
    assert found.find_stream(b"%d_0" % number) is not None
    desk.registry.sweep()
    assert found.find_stream(b"%d_0" % number) is None


@pytest.mark.req("R-MEMORY")
async def test_an_answer_that_nobody_has_read_waits_for_its_client():
    desk = Desk()
    found = desk.open()
    number = await deliver(desk, found, 1000, reads=False)
    for _ in range(3):
        desk.registry.sweep()
    assert found.find_stream(b"%d_0" % number) is not None


@pytest.mark.req("R-MEMORY")
async def test_what_is_kept_of_delivered_answers_is_bounded_for_each_session():
    desk = Desk()
    found = desk.open()
    numbers = [await deliver(desk, found, KEPT_BYTES // 2) for _ in range(6)]
    found.new_stream(desk.tasks)
    kept = [number for number in numbers if found.find_stream(b"%d_0" % number) is not None]
    assert kept == numbers[-2:]
