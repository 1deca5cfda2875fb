"""Limits of agents, servers, tools and grants; what is used up survives a restart."""

import asyncio

import pytest

from mcp_junction.governance.call_limits import CallLimits
from mcp_junction.governance.governance import buckets_of
from mcp_junction.policy.grants import ANY, CallLimit, Grant
from mcp_junction.resilience.buckets import Buckets, Limited
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import FakeClock

HOUR = CallLimit(3, 3_600.0)


def grant(name: str, limits: CallLimit | None = HOUR) -> Grant:
    return Grant(name, "ann", ANY, ANY, limits=limits)


class Time:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def take(limits: CallLimits, *grants: Grant, agent="ann", server="s1", tool="echo"):
    return limits.take(agent, server, tool, grants)


@pytest.mark.req("J-LIMIT")
@pytest.mark.parametrize(
    ("which", "same", "other"),
    [
        ("agents", {"server": "s2", "tool": "look"}, {"agent": "bob"}),
        ("servers", {"agent": "bob", "tool": "look"}, {"server": "s2"}),
        ("tools", {"agent": "bob"}, {"server": "s2"}),
        ("tools", {"agent": "bob"}, {"tool": "look"}),
    ],
)
def test_each_rate_counts_its_own(time, which, same, other):
    limits = CallLimits(**{which: buckets_of("2/10")}, now=time)
    assert take(limits) is None
    assert take(limits, **same) is None
    refused = take(limits, **same)
    assert isinstance(refused, Limited)
    assert 0 < refused.wait <= 5
    assert take(limits, **other) is None
    time.now += 5
    assert take(limits) is None


@pytest.mark.req("J-LIMIT")
def test_calls_of_an_agent_share_one_bucket_after_others_were_dropped(time):
    agents = Buckets(0.1, 2, limit=4)
    limits = CallLimits(agents, now=time)
    assert take(limits) is None  # its buckets are kept together
    for number in range(4):
        assert take(limits, agent=f"a{number}") is None
    assert agents.sweeps  # hers was the oldest
    found = [take(limits, tool=tool) for tool in ("echo", "look", "echo", "look")]
    assert [one is None for one in found] == [True, True, False, False]


@pytest.mark.req("J-LIMIT")
def test_the_longest_wait_is_told(time):
    limits = CallLimits(buckets_of("1/1"), buckets_of("1/10"), buckets_of("1/5"), now=time)
    assert take(limits) is None
    assert take(limits) == Limited("the server", 10.0)


@pytest.mark.req("J-LIMIT")
def test_what_one_limit_refuses_no_other_counts(time):
    limits = CallLimits(buckets_of("2/10"), None, buckets_of("1/10"), now=time)
    assert take(limits) is None
    for _ in range(10):
        assert isinstance(take(limits), Limited)
    assert take(limits, tool="look") is None  # the agent has one left


def test_a_grant_has_its_own_limit(time):
    limits = CallLimits(now=time)
    given = grant("g1")
    assert [take(limits, given) for _ in range(3)] == [given] * 3
    refused = take(limits, given)
    assert refused.name == "grant g1"
    assert 3_500 < refused.wait <= 3_660
    time.now += refused.wait
    assert take(limits, given) is given


@pytest.mark.req("J-LIMIT")
def test_a_limit_that_is_used_up_leaves_the_next_grant(time):
    limits = CallLimits(now=time)
    first, second = grant("g1", CallLimit(1, 60)), grant("g2", CallLimit(1, 3_600))
    assert take(limits, first, second) is first
    assert take(limits, first, second) is second
    assert take(limits, first, second).name == "grant g1"  # the one with less to wait
    free = grant("g3", None)
    assert take(limits, free, first) is free


def test_a_changed_limit_keeps_what_was_used(time):
    limits = CallLimits(now=time)
    for _ in range(3):
        take(limits, grant("g1"))
    assert isinstance(take(limits, grant("g1", CallLimit(3, 3_600.0))), Limited)
    assert take(limits, grant("g1", CallLimit(4, 3_600.0))) is not None
    assert isinstance(take(limits, grant("g1", CallLimit(4, 3_600.0))), Limited)


@pytest.mark.req("J-LIMIT")
async def test_long_windows_survive_a_restart(store, time):
    long, short = grant("long"), grant("short", CallLimit(3, 30.0))
    before = CallLimits(table=store.limits, now=time)
    for _ in range(3):
        assert take(before, long) is long
        assert take(before, short) is short
    await before.save()
    after = CallLimits(table=store.limits, now=time)
    await after.load()
    assert isinstance(take(after, long), Limited)
    assert take(after, short) is short
    time.now += 2 * 3_600.0
    later = CallLimits(table=store.limits, now=time)
    await later.load()
    assert take(later, long) is long


async def test_a_forged_window_counts_nothing_and_an_old_one_is_removed(store, dump, time):
    limits = CallLimits(table=store.limits, now=time)
    take(limits, grant("g1"))
    await limits.save()
    await dump.run("UPDATE limit_windows SET slots = '{}'")
    assert await store.limits.all(time.now) == []
    time.now += 10 * 3_600.0
    take(limits, grant("g2"))
    await limits.save()
    assert [row[0] for row in await dump.run("SELECT grant_id FROM limit_windows")] == ["g2"]


async def test_only_what_changed_is_stored(store, dump, time):
    limits = CallLimits(table=store.limits, now=time)
    take(limits, grant("g1"))
    await limits.save()
    await dump.run("DELETE FROM limit_windows")
    await limits.save()
    assert await dump.run("SELECT grant_id FROM limit_windows") == []
    limits.forget(["g1"])
    assert [take(limits, grant("g1")).id for _ in range(3)] == ["g1"] * 3


async def test_what_changed_is_stored_when_the_service_ends(store, dump, time):
    limits = CallLimits(table=store.limits, now=time)
    clock = FakeClock()
    tasks = TaskScope("limits")
    tasks.spawn(limits.run(clock))
    await clock.advance(0)
    take(limits, grant("g1"))
    await tasks.close()
    assert [row[0] for row in await dump.run("SELECT grant_id FROM limit_windows")] == ["g1"]


async def test_what_is_being_stored_when_the_process_ends_is_stored_once_more(time):
    """A statement that is cancelled may not have been carried out."""
    stored, is_storing = [], asyncio.Event()

    class Table:
        async def store(self, records, now):
            stored.append([record.grant_id for record in records])
            if not is_storing.is_set():
                is_storing.set()
                await asyncio.Event().wait()

    limits, clock, tasks = CallLimits(table=Table(), now=time), FakeClock(), TaskScope("limits")
    take(limits, grant("g1"))
    tasks.spawn(limits.run(clock))
    await asyncio.sleep(0)
    await clock.advance(60)
    await asyncio.wait_for(is_storing.wait(), 30)
    await asyncio.wait_for(tasks.close(), 30)
    assert stored == [["g1"], ["g1"]]
