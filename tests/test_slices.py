"""Long work is cut up: others run in between, and the busier they are the more."""

import asyncio
import time

import pytest

from mcp_junction import slices
from mcp_junction.slices import Breaks, Slices


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def others(turns: list[int], *, are_busy: bool) -> None:
    while True:
        turns.append(len(turns))
        if are_busy:
            spin(0.002)
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("are_busy", [False, True])
async def test_between_two_slices_others_have_their_turns(are_busy):
    turns: list[int] = []
    running = asyncio.ensure_future(others(turns, are_busy=are_busy))
    work, seen = Slices(), []
    while work.count < 5:
        if work.is_over:
            before = len(turns)
            await work.rest()
            seen.append(len(turns) - before)
        spin(0.0001)
    running.cancel()
    assert all(count >= 1 for count in seen)
    assert sum(seen) >= (2 if are_busy else 1) * len(seen)


async def test_a_slice_is_short(monkeypatch):
    assert slices.WORK < slices.IDLE_WORK <= 0.005
    assert slices.BUSY_REST > slices.REST > slices.WORK
    monkeypatch.setattr(slices, "WORK", 0.0)
    assert Slices().is_over


async def rests_of(breaks: Breaks, monkeypatch) -> list[float]:
    slept, real = [], asyncio.sleep

    async def noted(seconds):
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr("mcp_junction.slices.asyncio.sleep", noted)
    await breaks.rest()
    monkeypatch.undo()
    return slept


async def test_a_break_is_as_long_as_the_step_when_the_loop_was_busy(monkeypatch):
    monkeypatch.setattr("mcp_junction.slices.thread_time", time.perf_counter)
    breaks = Breaks()
    spin(0.01)
    (rest,) = await rests_of(breaks, monkeypatch)
    assert 0.01 <= rest <= slices.LONGEST_BREAK


async def test_there_is_no_break_when_nobody_else_worked(monkeypatch):
    breaks = Breaks()
    await asyncio.sleep(0.02)
    assert await rests_of(breaks, monkeypatch) == []


def test_paced_items_are_all_gone_through_in_order_with_pauses(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr("mcp_junction.slices.sleep", pauses.append)
    monkeypatch.setattr(slices, "WORK", 0.0)
    assert list(slices.pace(range(10))) == list(range(10))
    assert len(pauses) == 10
