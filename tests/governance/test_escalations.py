"""Escalations: one record for an outage, until somebody has seen to it."""

import asyncio

import msgspec
import pytest

from mcp_junction.errors import NotFound, StoreUnavailable
from mcp_junction.governance import failures as module
from mcp_junction.governance.failures import Escalations, FailedCall
from mcp_junction.resilience.clock import SystemClock
from mcp_junction.store.resilience import EscalationQuery
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.bus import Bus

NOW = 1_000_000.0
BOUND = 30.0
FAILED = FailedCall("a", "s", "t", "timeout", "it did not answer", "unknown", 3, "c-1")
OPEN, ALL = EscalationQuery(is_open=True), EscalationQuery()


class Process:
    """The escalations of one process on a store."""

    def __init__(self, store, days: int = 0) -> None:
        self.now = NOW
        self.bus = Bus(store.events)
        self.escalations = Escalations(
            store.escalations, self.bus, SystemClock(), days, lambda: self.now
        )

    def fail(self, times: int = 1, **more) -> None:
        for _ in range(times):
            self.now += 1
            self.escalations.escalate(msgspec.structs.replace(FAILED, **more))

    async def read(self, asked: EscalationQuery = ALL):
        return await self.escalations.read(asked)


@pytest.mark.req("REQ-MCP-CALL-004")
async def test_failures_of_one_agent_at_one_tool_share_a_record(store):
    process = Process(store)
    process.fail(3)
    process.fail(failure="link", message="it was cut")
    process.fail(agent_id="b")
    other, one = await process.read()
    assert (one.count, one.failure, one.message) == (4, "link", "it was cut")
    assert (one.first_at, one.last_at) == (NOW + 1, NOW + 4)
    assert (other.agent_id, other.count) == ("b", 1)
    assert await process.read(EscalationQuery(agent_id="b")) == [other]
    assert await process.read(EscalationQuery(server_id="elsewhere")) == []


@pytest.mark.req("REQ-MCP-CALL-004")
async def test_each_record_is_announced_once(store):
    process = Process(store)
    async with process.bus:
        process.fail(5)
        process.fail(tool_name="t2")
    events = await store.events.after(0)
    assert [(event.type, event.data["tool_name"]) for event in events] == [
        ("call.escalated", "t"),
        ("call.escalated", "t2"),
    ]
    assert events[0].data["correlation_id"] == "c-1"


@pytest.mark.req("REQ-MCP-CALL-004")
async def test_after_it_is_acknowledged_the_next_failure_makes_another(store):
    process = Process(store)
    process.fail(2)
    (one,) = await process.read()
    done = await process.escalations.acknowledge(one.id, "boss", "restarted it")
    assert (done.acknowledged_by, done.note, done.count) == ("boss", "restarted it", 2)
    again = await process.escalations.acknowledge(one.id, "another", None)
    assert again.acknowledged_by == "boss"
    process.fail()
    (fresh,) = await process.read(OPEN)
    assert fresh.id != one.id
    assert fresh.count == 1
    with pytest.raises(NotFound):
        await process.escalations.acknowledge("nothing", "boss")


async def test_what_another_process_acknowledged_is_not_opened_again(store):
    first, second = Process(store), Process(store)
    first.fail(2)
    (one,) = await first.read()
    await second.escalations.acknowledge(one.id, "boss")
    first.fail(3)
    (fresh,) = await first.read(OPEN) or await first.read(OPEN)
    assert fresh.id != one.id
    assert fresh.count == 3
    closed = await store.escalations.get(one.id)
    assert (closed.acknowledged_by, closed.count) == ("boss", 2)


async def test_after_a_restart_it_goes_on_with_what_is_open(store):
    before = Process(store)
    before.fail(2)
    await before.read()
    after = Process(store)
    await after.escalations.restore()
    after.fail()
    (one,) = await after.read()
    assert one.count == 3


async def test_what_failed_just_before_the_end_is_stored_at_the_end(store):
    process, tasks = Process(store), TaskScope("escalations")
    tasks.spawn(process.escalations.run())
    await asyncio.sleep(0)
    process.fail(2)
    await asyncio.wait_for(tasks.close(), BOUND)
    (one,) = await store.escalations.read(ALL)
    assert one.count == 2


async def test_who_reads_while_they_are_being_stored_finds_them(store, monkeypatch):
    process = Process(store)
    process.fail()
    begun, go_on, add = asyncio.Event(), asyncio.Event(), store.escalations.store

    async def store_slowly(records):
        begun.set()
        await go_on.wait()
        return await add(records)

    monkeypatch.setattr(store.escalations, "store", store_slowly)
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(process.read())
        await begun.wait()
        second = tasks.create_task(process.read())
        await asyncio.sleep(0)
        go_on.set()
    assert len(first.result()) == len(second.result()) == 1


async def test_pages_go_on_where_the_one_before_ended(store):
    process = Process(store)
    for number in range(5):
        process.fail(tool_name=f"t{number}")
    first = await process.read(EscalationQuery(limit=2))
    place = first[-1].first_at, first[-1].id
    rest = await process.read(EscalationQuery(before=place))
    assert [one.tool_name for one in (*first, *rest)] == ["t4", "t3", "t2", "t1", "t0"]


async def test_old_ones_and_too_many_are_removed(store, monkeypatch):
    process = Process(store, days=1)
    process.fail()
    await process.read()
    process.now += 2 * 24 * 3600
    process.fail(tool_name="t2")
    process.fail(tool_name="t3")
    await process.read()
    assert await process.escalations.retire() == 1
    monkeypatch.setattr(module, "MAX_STORED", 1)
    assert await process.escalations.retire() == 1
    assert [one.tool_name for one in await process.read()] == ["t3"]


async def test_there_is_a_limit_and_what_exceeds_it_is_counted(store, monkeypatch):
    monkeypatch.setattr(module, "MAX_OPEN", 3)
    process = Process(store)
    for number in range(5):
        process.fail(tool_name=f"t{number}")
    process.fail(tool_name="t0")
    assert len(await process.read()) == 3
    assert process.escalations.lost == 2


async def test_a_row_that_somebody_else_wrote_is_none(store, dump):
    process = Process(store)
    process.fail()
    (one,) = await process.read()
    await dump.run("UPDATE escalations SET message = 'all is well'")
    assert await process.read() == []
    with pytest.raises(NotFound):
        await store.escalations.get(one.id)


async def test_they_are_stored_when_the_store_is_back(store, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    monkeypatch.setattr(module, "_RETRY", 0.0)
    process, tried = Process(store), asyncio.Event()
    whole = store.escalations.store

    async def fail(records):
        tried.set()
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(store.escalations, "store", fail)
    tasks = TaskScope("escalations")
    tasks.supervise("escalations", process.escalations.run)
    process.fail(2)
    await asyncio.wait_for(tried.wait(), BOUND)
    process.fail(1)
    monkeypatch.setattr(store.escalations, "store", whole)
    async with asyncio.timeout(BOUND):
        while not await store.escalations.read(ALL):  # noqa: ASYNC110 - in the background
            await asyncio.sleep(0.01)
    await tasks.close()
    (one,) = await process.read()
    assert one.count == 3
