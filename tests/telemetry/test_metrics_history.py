"""MetricsHistory: counts are stored by the minute, become hours, and are read over any time."""

import asyncio

import pytest

from mcp_junction.errors import StoreUnavailable
from mcp_junction.store.call_metrics import HOUR, MINUTE
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry import metrics_history
from mcp_junction.telemetry.metrics_history import MINUTES_KEPT, MetricsHistory
from mcp_junction.telemetry.tallies import CallTallies
from mcp_junction.testing.fakes import FakeClock

pytestmark = pytest.mark.req("REQ-MCP-OBS-001")
START = 1_700_000_000 // HOUR * HOUR
DAY = 24 * HOUR


class Process:
    """One process that counts calls, at a time that the test sets."""

    def __init__(self, store, name="w1", days=0) -> None:
        self.now = float(START)
        self.tallies = CallTallies()
        self.history = MetricsHistory(
            store.call_metrics,
            name,
            self.tallies.take_minute,
            lambda: self.tallies.current,
            FakeClock(),
            days=days,
            now=lambda: self.now,
        )

    def count(self, calls=1, tool="t", server="s", ms=10.0, error=None) -> None:
        tally = self.tallies.open((server, tool))
        tally.times += [ms] * calls
        for _ in range(calls if error else 0):
            tally.count_error(error)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and have the minute stored that is over then."""
        minute = int(self.now) // MINUTE * MINUTE
        self.now += seconds
        await self.history.store_minute(minute)
        await self.history.close_hours()

    async def read(self, since, until, server=None, tool=None) -> dict:
        found = await self.history.read(since, until, server, tool)
        return {key: tally.calls for key, tally in found.items()}

    async def total(self, since=0, until=1e10) -> int:
        return sum((await self.read(since, until)).values())


@pytest.fixture
def one(store) -> Process:
    return Process(store)


async def test_what_was_counted_is_read_back_with_the_current_minute(one):
    one.count(3)
    one.count(2, tool="u", ms=400.0, error="timeout")
    assert await one.total() == 5, "nothing is stored yet"
    await one.pass_time(MINUTE)
    one.count(4)
    assert await one.read(START, START + DAY) == {("s", "t"): 7, ("s", "u"): 2}
    assert await one.read(START, START + MINUTE) == {("s", "t"): 3, ("s", "u"): 2}
    assert await one.read(START + MINUTE, START + DAY) == {("s", "t"): 4}
    assert await one.read(START, START + DAY, "s", "u") == {("s", "u"): 2}
    assert await one.read(START, START + DAY, "nobody") == {}
    found = (await one.history.read(START, START + DAY, None, "u"))["s", "u"]
    assert (found.errors, found.total_ms) == ({"timeout": 2}, 800.0)


async def test_a_minute_that_is_being_stored_when_the_process_ends_is_stored_once(one):
    one.count(3)
    one.now += MINUTE
    over = one.history.store_minute(START)
    await asyncio.gather(over, one.history.store_last(), one.history.store_last())
    assert await one.total() == 3


async def test_after_a_restart_nothing_is_forgotten_and_processes_are_added_up(store, one):
    one.count(3)
    await one.history.store_last()
    two = Process(store, "w2")
    two.count(5)
    await two.history.store_last()
    assert await Process(store, "w3").read(START, START + DAY) == {("s", "t"): 8}


async def test_hours_are_made_of_minutes_and_stay_when_those_are_gone(store, one):
    counted = 0
    two = Process(store, "w2")
    for step in range(60 * 24 * 3 // 90):
        one.count(step % 5 + 1)
        two.count(1, tool="u")
        counted += step % 5 + 2
        two.now += 90 * MINUTE
        await two.history.store_minute(int(one.now) // MINUTE * MINUTE)
        await one.pass_time(90 * MINUTE)
        assert await one.total() == counted, step
    table = store.call_metrics
    rows = await table.read(MINUTE, 0, 10**10)
    assert rows
    assert min(row.at for row in rows) >= one.now - MINUTES_KEPT - 90 * MINUTE
    assert {row.writer for row in await table.read(HOUR, 0, 10**10)} == {"w1", "w2"}
    assert await one.total(START, START + 90 * MINUTE) == 2
    half = START + DAY // 2
    assert await one.total(START, half) + await one.total(half) == counted


async def test_hours_are_removed_when_the_audit_would_be(store):
    one = Process(store, days=5)
    one.count()
    await one.pass_time(4 * DAY)
    assert await one.total() == 1
    one.count()
    await one.pass_time(2 * DAY)
    assert await one.total() == 1


async def test_what_cannot_be_stored_waits_and_is_never_lost(one, monkeypatch, caplog):
    table = one.history._table

    async def broken(*_: object) -> None:
        raise StoreUnavailable("it is away")

    with monkeypatch.context() as patched:
        patched.setattr(table, "add", broken)
        for _ in range(3):
            one.count(2)
            await one.pass_time(MINUTE)
    assert caplog.text.count("cannot be stored now") == 1
    await table.close_hours(0, int(one.now) // HOUR + 5, ())  # others went on meanwhile
    await one.pass_time(6 * HOUR)
    one.count()
    assert await one.total() == 7
    await one.pass_time(2 * HOUR)
    assert await one.total() == 7
    assert not one.history._unstored


async def test_only_the_busiest_are_stored_one_by_one(one, monkeypatch):
    monkeypatch.setattr(metrics_history, "STORED", 2)
    for number in range(1, 6):
        one.count(number, tool=f"t{number}")
    await one.history.store_last()
    assert await one.read(0, 1e10) == {("s", "t5"): 5, ("s", "t4"): 4, ("", "other"): 6}


async def test_a_row_that_was_written_by_somebody_else_counts_nothing(store, one, dump, caplog):
    one.count(3)
    await one.history.store_last()
    await dump.run("UPDATE call_metrics SET retries = 1000")
    assert await one.total() == 0
    assert "carry no valid signature" in caplog.text


async def test_the_task_stores_each_minute_when_it_is_over(store, one):
    one.now += 50
    clock = one.history._clock
    tasks = TaskScope("test")
    try:
        one.count(2)
        tasks.spawn(one.history.run())
        await clock.advance(9)
        assert not await store.call_metrics.read(MINUTE, START, START + MINUTE)
        one.now += 10
        await clock.advance(1)
        async with asyncio.timeout(20):
            while not (rows := await store.call_metrics.read(MINUTE, START, START + MINUTE)):
                pass
        assert [(row.server_id, row.tool_name, row.at) for row in rows] == [("s", "t", START)]
    finally:
        await tasks.close()
