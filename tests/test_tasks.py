"""TaskScope: every task has an owner, and ends with it."""

import asyncio
import gc
import inspect
import logging

import pytest

from mcp_junction import tasks
from mcp_junction.tasks import (
    OnDemandTask,
    Supervision,
    TaskScope,
    resolve,
    wait_for_any,
    wait_unless,
    wait_until_set,
)

BOUND = 30.0


async def forever(started: asyncio.Event | None = None) -> None:
    if started is not None:
        started.set()
    await asyncio.Event().wait()


async def tidy(started: asyncio.Event, cleaned: asyncio.Event) -> None:
    try:
        await forever(started)
    finally:
        await asyncio.sleep(0)
        cleaned.set()


async def test_a_task_is_kept_until_it_ends():
    scope = TaskScope("test")
    gate = asyncio.Event()
    task = scope.spawn(gate.wait())
    gc.collect()
    await asyncio.sleep(0)
    assert len(scope) == 1
    gate.set()
    assert await asyncio.wait_for(task, BOUND) is True
    assert len(scope) == 0


async def test_what_a_task_died_of_is_reported_and_its_siblings_live(caplog):
    scope = TaskScope("test")

    async def fail() -> None:
        raise LookupError("mislaid")

    sibling = scope.spawn(forever())
    await asyncio.wait({scope.spawn(fail())}, timeout=BOUND)
    await asyncio.sleep(0)
    assert "a task of test failed: LookupError('mislaid')" in caplog.text
    assert not sibling.done()
    await scope.close()


async def test_a_cancelled_task_is_no_failure(caplog):
    caplog.set_level(logging.DEBUG, "mcp_junction")
    scope = TaskScope("test")
    task = scope.spawn(forever())
    task.cancel()
    await asyncio.wait({task}, timeout=BOUND)
    assert not [record for record in caplog.records if record.name.startswith("mcp_junction")]


async def test_closing_ends_what_is_left_and_waits_until_it_is_gone():
    scope = TaskScope("test")
    started, cleaned = asyncio.Event(), asyncio.Event()

    scope.spawn(tidy(started, cleaned))
    await asyncio.wait_for(started.wait(), BOUND)
    await scope.close()
    assert cleaned.is_set()
    assert len(scope) == 0
    await scope.close()


async def test_a_task_may_close_its_own_scope():
    scope = TaskScope("test")
    other = scope.spawn(forever())
    await asyncio.wait_for(scope.spawn(scope.close()), BOUND)
    assert other.cancelled()


async def test_settling_waits_for_those_who_end_by_themselves():
    scope = TaskScope("test")
    gate = asyncio.Event()
    waiting = scope.spawn(gate.wait())
    asyncio.get_running_loop().call_soon(gate.set)
    await scope.settle(BOUND)
    assert waiting.done()
    await scope.settle(BOUND)


async def test_settling_does_not_wait_for_ever_and_ends_nobody():
    scope = TaskScope("test")
    task = scope.spawn(forever())
    await scope.settle(0)
    assert not task.done()
    await scope.close()


async def test_what_is_handed_over_is_done_by_tasks_that_did_others_before():
    scope = TaskScope("test")
    seen: list[asyncio.Task | None] = []

    async def note() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)

    for _ in range(3):
        scope.run_pooled(note())
        scope.run_pooled(note())
        assert len(scope) == 2
        await done(scope)
    assert len(seen) == 6
    assert len(set(seen)) == 2
    await scope.close()
    assert all(task.done() for task in seen)


async def test_what_is_handed_over_and_fails_is_reported_and_the_next_is_done(caplog):
    scope = TaskScope("test")

    async def fail() -> None:
        raise LookupError("mislaid")

    async def give_up() -> None:
        given_up = asyncio.get_running_loop().create_future()
        given_up.cancel()
        await given_up

    done_after = asyncio.Event()
    scope.run_pooled(fail())
    await done(scope)
    scope.run_pooled(give_up())
    await done(scope)
    scope.run_pooled(set_later(done_after))
    async with asyncio.timeout(BOUND):
        await done_after.wait()
    assert caplog.text.count("a task of test failed") == 1
    await scope.close()


async def test_who_rests_for_long_is_gone():
    scope = TaskScope("test")
    scope.run_pooled(set_later(asyncio.Event()))
    await done(scope)
    async with asyncio.timeout(BOUND):
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0.01)
    after = asyncio.Event()
    scope.run_pooled(set_later(after))
    async with asyncio.timeout(BOUND):
        await after.wait()
    await scope.close()


async def test_settling_waits_for_what_was_handed_over_and_not_for_who_rests():
    scope = TaskScope("test")
    started, ended = asyncio.Event(), asyncio.Event()
    scope.run_pooled(set_later(started))
    await done(scope)
    scope.run_pooled(set_later(ended))
    async with asyncio.timeout(BOUND):
        await scope.settle(BOUND * 2)
    assert ended.is_set()
    assert len(scope) == 0


@pytest.mark.parametrize("who", ["a new task", "one that rested"])
async def test_what_is_handed_over_as_the_scope_closes_is_never_begun(who):
    scope, begun = TaskScope("test"), asyncio.Event()
    if who != "a new task":
        first = asyncio.Event()
        scope.run_pooled(set_later(first))
        await first.wait()
        await asyncio.sleep(0)
    late = set_later(begun)
    scope.run_pooled(late)
    await scope.close()
    assert inspect.getcoroutinestate(late) == inspect.CORO_CLOSED
    assert not begun.is_set()


async def test_closing_ends_what_was_handed_over_and_who_rests():
    scope = TaskScope("test")
    started, cleaned = asyncio.Event(), asyncio.Event()

    scope.run_pooled(set_later(asyncio.Event()))
    await done(scope)
    scope.run_pooled(tidy(started, cleaned))
    scope.run_pooled(set_later(asyncio.Event()))
    await started.wait()
    async with asyncio.timeout(BOUND):
        await scope.close()
    assert cleaned.is_set()
    assert len(asyncio.all_tasks()) == 1, "only this one is left"


async def set_later(event: asyncio.Event) -> None:
    await asyncio.sleep(0.01)
    event.set()


async def done(scope: TaskScope) -> None:
    async with asyncio.timeout(BOUND):
        while len(scope):  # noqa: ASYNC110 - nothing tells when it rests
            await asyncio.sleep(0.001)


async def test_what_fails_when_nobody_waits_for_it_any_more_is_not_reported(caplog):
    stopped, ended = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("too late") from None
        finally:
            ended.set()

    asyncio.get_running_loop().call_soon(stopped.set)
    assert await wait_unless(stopped, stubborn()) is False
    await ended.wait()
    gc.collect()
    assert caplog.text == ""


async def test_what_fails_while_it_is_waited_for_is_raised():
    async def failing() -> None:
        raise ValueError("now")

    with pytest.raises(ValueError, match="now"):
        await wait_unless(asyncio.Event(), failing())


async def failing_first(times: int, runs: list[int], then: asyncio.Event) -> None:
    """Fail some times; from then on run."""
    runs.append(len(runs))
    if len(runs) <= times:
        raise LookupError("mislaid")
    then.set()
    await forever()


@pytest.mark.req("R-SUPERVISE")
async def test_a_supervised_task_that_fails_is_run_again_and_counted(caplog):
    scope, runs, running = TaskScope("test"), [], asyncio.Event()
    scope.supervise("keys", lambda: failing_first(2, runs, running))
    async with asyncio.timeout(BOUND):
        await running.wait()
    assert scope.supervision.failures == {"keys": 2}
    assert scope.supervision.is_down("keys"), "it has only just begun again"
    assert scope.supervision.down == ["keys"]
    async with asyncio.timeout(BOUND):
        while scope.supervision.down:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    assert caplog.text.count("the task 'keys' failed") == 2
    assert caplog.text.count("Traceback") == 1, "once an outage"
    await scope.close()


@pytest.mark.req("R-SUPERVISE")
async def test_a_supervised_task_that_keeps_failing_is_down_and_tried_ever_more_slowly(monkeypatch):
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr("mcp_junction.tasks.asyncio.sleep", sleep)
    scope, runs = TaskScope("test"), []
    scope.supervise("bus", lambda: failing_first(10**6, runs, asyncio.Event()))
    async with asyncio.timeout(BOUND):
        while len(pauses) < 12:
            await real(0)
            assert not runs or scope.supervision.is_down("bus")
    assert pauses[0] <= 0.1
    assert 1.0 <= pauses[10] <= 2.0
    await scope.close()


async def test_a_supervised_task_that_returns_or_is_ended_is_not_run_again():
    scope, runs = TaskScope("test"), []

    async def once() -> None:
        runs.append(1)

    await asyncio.wait_for(scope.supervise("once", once), BOUND)
    assert runs == [1]
    scope.supervise("for ever", lambda: failing_first(1, runs, asyncio.Event()))
    while len(runs) < 2:  # noqa: ASYNC110 - the next turn of the loop
        await asyncio.sleep(0)
    await scope.close()
    assert not scope.supervision.down, "nobody waits for what was ended"


async def test_a_supervised_task_goes_on_when_only_what_it_waited_for_was_cancelled():
    scope, begun = TaskScope("test"), asyncio.Event()
    runs: list[int] = []

    async def wait_for_another() -> None:
        runs.append(1)
        if len(runs) == 1:
            other = asyncio.get_running_loop().create_future()
            other.cancel()
            await other
        begun.set()
        await forever()

    scope.supervise("waiting", wait_for_another)
    async with asyncio.timeout(BOUND):
        await begun.wait()
    assert scope.supervision.failures["waiting"] == 1
    await scope.close()


async def test_one_supervision_tells_of_all_it_includes_and_what_is_not_vital_apart():
    one, two = TaskScope("one"), TaskScope("two")
    both = Supervision()
    both.include(one.supervision, two.supervision)
    never = asyncio.Event()
    one.supervise("checks", lambda: failing_first(10**6, [], never), is_vital=False)
    one.supervise("checks", lambda: failing_first(10**6, [], never), is_vital=False)
    two.supervise("audit", lambda: failing_first(10**6, [], never))
    for _ in range(3):
        await asyncio.sleep(0)
    assert both.down == ["audit"]
    assert both.down_by_name == {"audit": 1, "checks": 2}
    assert both.failures == {"audit": 1, "checks": 2}
    await one.close()
    await two.close()
    assert both.down_by_name == {}
    assert both.failures == {"audit": 1, "checks": 2}


@pytest.mark.req("R-MEMORY")
async def test_tasks_that_are_sent_home_or_cancelled_leave_no_garbage():
    scope = TaskScope("test")
    at_work = asyncio.Event()

    async def work():
        at_work.set()
        await asyncio.sleep(0)

    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        scope.run_pooled(work())
        await asyncio.wait_for(at_work.wait(), 30)
        for _ in range(5):
            await asyncio.sleep(0)
        scope._dismiss_idle()
        scope.run_pooled(asyncio.sleep(60))
        for _ in range(5):
            await asyncio.sleep(0)
        await scope.close()
        await asyncio.sleep(0)
        gc.collect()
        left = [type(found) for found in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


async def test_waiting_for_any_ends_with_the_first_or_in_time_and_cancels_none():
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    await wait_for_any(first, second, timeout=0)
    assert not first.done()
    assert not second.done()
    loop.call_soon(resolve, second, "here")
    await asyncio.wait_for(wait_for_any(first, second), BOUND)
    assert not first.done()
    assert second.result() == "here"


async def test_a_future_is_resolved_once():
    future = asyncio.get_running_loop().create_future()
    resolve(future, 1)
    resolve(future, 2)
    assert future.result() == 1
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    resolve(cancelled, 3)
    assert cancelled.cancelled()


async def test_a_task_on_demand_runs_when_it_is_woken_and_ends_when_nothing_is_left():
    scope, done = TaskScope("test"), []

    async def work() -> None:
        while task.news.is_set():
            task.news.clear()
            done.append(len(scope))
            await asyncio.sleep(0)

    task = OnDemandTask(scope, "work", work)
    await task.wait_until_done()
    assert done == [], "nobody has woken it"
    task.wake()
    await asyncio.sleep(0)
    task.wake()
    await asyncio.wait_for(task.wait_until_done(), BOUND)
    assert done == [1, 1], "once more after what it was at, in one task"
    task.wake()
    await task.wait_until_done(BOUND)
    assert done == [1, 1, 1]
    await scope.close()


async def test_work_that_failed_is_done_when_its_task_is_run_again(monkeypatch, caplog):
    monkeypatch.setattr(tasks, "FIRST_PAUSE", 0.001)
    scope, tries = TaskScope("test"), []

    async def work() -> None:
        while task.news.is_set():
            task.news.clear()
            tries.append(1)
            if len(tries) == 1:
                raise RuntimeError("it does not work the first time")

    task = OnDemandTask(scope, "work", work)
    task.wake()
    await asyncio.wait_for(task.wait_until_done(), BOUND)
    assert len(tries) == 2
    await scope.close()


async def test_an_event_is_waited_for_and_a_cancellation_that_comes_with_it_is_not_lost():
    event = asyncio.Event()
    assert not await wait_until_set(event, 0.001)
    task = asyncio.create_task(wait_until_set(event, BOUND))
    await asyncio.sleep(0)
    event.set()
    task.cancel()  # at this very moment; asyncio.wait_for would return
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await wait_until_set(event, BOUND)
