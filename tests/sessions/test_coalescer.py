"""Coalescer: many changes in a short time are told once."""

import asyncio

from mcp_junction.sessions.clients import Coalescer

BOUND = 30.0


class Told:
    def __init__(self) -> None:
        self.times = 0
        self.now = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self.now.set()


async def test_a_run_of_changes_is_told_once():
    told = Told()
    coalescer = Coalescer(told, delay=0)
    for _ in range(100):
        coalescer.changed()
    assert told.times == 0, "not at once"
    await asyncio.wait_for(told.now.wait(), BOUND)
    assert told.times == 1


async def test_a_change_after_that_is_told_again():
    told = Told()
    coalescer = Coalescer(told, delay=0)
    for expected in (1, 2, 3):
        told.now.clear()
        coalescer.changed()
        await asyncio.wait_for(told.now.wait(), BOUND)
        assert told.times == expected


async def test_a_change_made_while_telling_is_not_lost():
    told = Told()
    twice = asyncio.Event()

    def tell() -> None:
        told()
        if told.times == 1:
            coalescer.changed()
        else:
            twice.set()

    coalescer = Coalescer(tell, delay=0)
    coalescer.changed()
    await asyncio.wait_for(twice.wait(), BOUND)
    assert told.times == 2


async def test_after_its_end_nothing_is_told():
    told = Told()
    coalescer = Coalescer(told, delay=0)
    coalescer.changed()
    coalescer.close()
    coalescer.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert told.times == 0
