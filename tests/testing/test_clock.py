"""FakeClock: time moves when told, and sleepers wake in the order in which they are due."""

import asyncio

import pytest

from mcp_junction.calls.deadlines import TICK, Deadlines
from mcp_junction.resilience.clock import Clock
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
async def tasks():
    scope = TaskScope("test")
    yield scope
    await scope.close()


async def test_it_is_a_clock_that_stands_still(clock: FakeClock) -> None:
    as_clock: Clock = clock
    assert as_clock.now() == clock.now() == 100.0
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.now() == 100.0


async def test_sleepers_wake_when_due_each_at_its_own_time(
    clock: FakeClock, tasks: TaskScope
) -> None:
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    for name, seconds in [("c", 3.0), ("a", 1.0), ("b", 2.0), ("a2", 1.0), ("late", 9.0)]:
        tasks.spawn(sleeper(name, seconds))
    await clock.advance(0.5)
    assert woken == []
    assert clock.sleepers == 5
    await clock.advance(3.0)
    assert woken == [("a", 101.0), ("a2", 101.0), ("b", 102.0), ("c", 103.0)]
    assert clock.now() == 103.5
    assert clock.sleepers == 1


async def test_a_sleeper_that_sleeps_again_is_woken_again_within_one_advance(
    clock: FakeClock, tasks: TaskScope
) -> None:
    times: list[float] = []

    async def ticking() -> None:
        while True:
            await clock.sleep(0.25)
            times.append(clock.now())

    tasks.spawn(ticking())
    await clock.advance(1.0)
    assert times == [100.25, 100.5, 100.75, 101.0]


async def test_a_cancelled_sleeper_is_forgotten(clock: FakeClock, tasks: TaskScope) -> None:
    task = tasks.spawn(clock.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    await clock.advance(5)
    assert task.cancelled()
    assert clock.sleepers == 0


async def test_it_drives_what_is_given_a_clock(clock: FakeClock, tasks: TaskScope) -> None:
    class Late:
        deadline: float | None = None
        is_paused = False
        expired: float | None = None

        def expire(self, seconds: float) -> None:
            self.expired = clock.now()

    deadlines, call = Deadlines(clock), Late()
    tasks.spawn(deadlines.run())
    deadlines.watch(call, 2.0)
    await clock.advance(1.9)
    assert call.expired is None
    await clock.advance(0.2)
    assert call.expired is not None
    assert 102.0 <= call.expired <= 102.0 + 2 * TICK
