"""Seen from inside: after calls were cancelled, lost or left, no task and no flight remains."""

import asyncio
import gc
import os
import signal

import pytest
from tests.faults.inside import inside, until
from tests.plugin_faults import Figures, Rig

from mcp_junction.calls.call import Call
from mcp_junction.testing.client import key


@pytest.mark.req("F-10")
@pytest.mark.parametrize(
    ("points", "times"),
    [
        pytest.param(20, 20, id="short"),
        pytest.param(50, 200, id="long", marks=pytest.mark.soak),
    ],
)
async def test_calls_cancelled_at_every_turn_of_the_loop_leave_no_task_and_no_flight(
    rig: Rig, figures: Figures, points: int, times: int
) -> None:
    rig.add("led", timeout=60_000)
    async with inside(rig) as within:
        client = within.client()
        await asyncio.sleep(0)
        before = asyncio.all_tasks()
        for point in range(points):
            for turn in range(times):
                client.call(
                    "led:record", f"{point}.{turn}", nonce=f"{point}.{turn}", delay_ms=turn % 6
                )
            for _ in range(point):
                await asyncio.sleep(0)
            for turn in range(times):
                client.cancel(f"{point}.{turn}")
        await within.settled()
        assert within.flights("led") == 0
        assert client.session.calls == {}
        assert len(within.junction._deadlines) == 0
        assert asyncio.all_tasks() <= before, "one that rested before may be gone"
        client.call("led:record", "last", nonce="last", delay_ms=50)
        await within.settled()
        ledger = rig.ledger()
        runs = {entry["nonce"]: key(entry["id"]) for entry in ledger.entries("run")}
        cancelled = {key(entry["id"]) for entry in ledger.entries("cancel")}
        answers = [frame["id"] for frame in client.frames if "result" in frame]
        answered = set(answers)
        assert len(answered) == len(answers)
        for nonce, wire_id in runs.items():
            assert (wire_id in cancelled) != (nonce in answered)
        figures(runs=len(runs), cancelled=len(cancelled), answered=len(answered))


@pytest.mark.req("F-10")
async def test_a_session_that_closes_ends_its_own_calls_and_no_others(rig: Rig) -> None:
    rig.add("led")
    async with inside(rig) as within:
        leaving, staying = within.client(), within.client()
        for number in range(50):
            leaving.call("led:record", number, nonce=f"leaving{number}", fault="hang")
            staying.call("led:record", number, nonce=f"staying{number}", delay_ms=300)
        await until(lambda: rig.ledger().runs().total() == 100, "the calls to run")
        leaving.session.close("gone")
        await within.settled()
        runs = {key(e["id"]): e["nonce"] for e in rig.ledger().entries("run")}
        cancelled = {runs[key(e["id"])] for e in rig.ledger().entries("cancel")}
        assert cancelled == {f"leaving{number}" for number in range(50)}
        for number in range(50):
            (answer,) = staying.answers(number)
            assert answer["result"]["structuredContent"] == {"nonce": f"staying{number}"}


@pytest.mark.req("F-10", "R-ANSWER")
async def test_when_a_junction_closes_no_task_is_left_whatever_ran(rig: Rig) -> None:
    rig.add("led")
    rig.add("dead")
    rig.add("stopped")
    before = asyncio.all_tasks()
    async with inside(rig) as within:
        client = within.client()
        for server in rig.entries:
            for number in range(20):
                name = f"{server}{number}"
                client.call(f"{server}:record", name, nonce=name, fault="hang")
        await until(lambda: rig.ledger("dead").runs().total() == 20, "the calls to run")
        os.kill(rig.server_pid("stopped"), signal.SIGSTOP)
        os.kill(rig.server_pid("dead"), signal.SIGKILL)
        await until(lambda: len(within.calls) == 40, "the calls of the dead server to end")
    assert asyncio.all_tasks() <= before, "one that rested before may be gone"
    assert len(client.answers("dead3")) == 1


@pytest.mark.req("F-10")
async def test_a_call_that_has_ended_is_gone_without_waiting_for_the_garbage_collector(
    rig: Rig,
) -> None:
    """In a circle of references, large calls would pile up until the collector comes by."""
    rig.add("led")
    async with inside(rig) as within:
        client = within.client()
        gc.collect()
        gc.disable()
        try:
            for number in range(30):
                client.call("led:record", number, nonce="n", fault="hang" if number % 3 else "")
            await until(lambda: rig.ledger().runs().total() == 30, "the calls to run")
            for number in range(30):
                client.cancel(number)
            client.call("no:such", 31)
            await within.settled()
            await asyncio.sleep(0)
            left = [found for found in gc.get_objects() if isinstance(found, Call)]
        finally:
            gc.enable()
    assert left == []
