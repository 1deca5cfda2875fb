"""The pool while connections cannot be made: what waits, what is tried, and when it is given up."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import chain, repeat

from tests.http.origin import Origin
from tests.http.test_pool import Doors, plainly, send, visits

from mcp_junction.config.urls import UrlTarget
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.http import pool as pools
from mcp_junction.upstream.http.connection import Connection, parse_target
from mcp_junction.upstream.http.dialer import Dialer, MakeConnection
from mcp_junction.upstream.http.pool import Pool

OK, REFUSED, HANGS = "ok", "refused", "hangs"


class Scripted(Dialer):
    """Each attempt ends as the script says, some turns of the loop after it was begun."""

    def __init__(self, *script: str, then: str = OK) -> None:
        super().__init__()
        self.attempts = 0
        self._script: Iterator[str] = chain(script, repeat(then))

    async def dial(self, place: UrlTarget, make: MakeConnection) -> Connection:
        self.attempts += 1
        how = next(self._script)
        for _ in range(3):
            await asyncio.sleep(0)
        if how == REFUSED:
            raise ConnectionRefusedError
        if how == HANGS:
            await asyncio.Event().wait()
        return await super().dial(place, make)


@asynccontextmanager
async def pooled(origin: Origin, dialer: Scripted) -> AsyncIterator[Pool]:
    tasks = TaskScope("test")
    pool = Pool(parse_target(origin.url), tasks, dialer)
    try:
        yield pool
    finally:
        pool.close()
        await tasks.close()


async def test_an_outage_is_seen_though_there_is_always_one_more_to_connect_for():
    dialer = Scripted(then=REFUSED)
    async with Origin(plainly) as origin, pooled(origin, dialer) as pool:
        askings = []
        while not any(asking.ended.done() for asking in askings) and len(askings) < 100:
            askings.append(send(pool))
            await asyncio.sleep(0)  # so that the next comes before the attempts so far have ended
        assert len(askings) < 20
        assert dialer.attempts <= len(askings)
        assert [asking.told for asking in askings] == [["lost"]] * len(askings)


async def test_an_attempt_that_hangs_keeps_nobody_from_another():
    async with Origin(plainly) as origin, pooled(origin, Scripted(REFUSED, HANGS)) as pool:
        askings = [send(pool), send(pool)]
        await asyncio.sleep(0.05)
        askings.append(send(pool))  # it is well again by now
        assert [await asking.end() for asking in askings] == [""] * 3


async def test_what_was_being_tried_when_an_attempt_failed_may_yet_succeed():
    async with Origin(plainly) as origin, pooled(origin, Scripted(REFUSED, OK, REFUSED)) as pool:
        askings = [send(pool), send(pool), send(pool)]
        assert [await asking.end() for asking in askings] == [""] * 3


async def test_each_answer_leads_to_one_attempt_while_no_connection_can_be_made():
    dialer = Scripted(OK, then=REFUSED)
    async with Origin(plainly) as origin, pooled(origin, dialer) as pool:
        assert await send(pool).end() == ""
        askings = [send(pool) for _ in range(200)]
        assert [await asking.end() for asking in askings] == [""] * 200
        assert dialer.attempts <= 1 + 2 * 200


async def test_all_that_wait_are_connected_for_once_an_outage_is_over(monkeypatch):
    monkeypatch.setattr(pools, "CONNECT_AGAIN", 0.01)
    dialer = Scripted(OK, *[REFUSED] * 12)
    async with Origin(doors := Doors()) as origin, pooled(origin, dialer) as pool:
        there = send(pool, "/there")  # a connection that stays, so that there is hope
        await visits(origin, 1)
        askings = [send(pool, f"/{n}") for n in range(5)]
        await visits(origin, 6)  # none of which was answered yet
        assert dialer.attempts == 18
        for path in ("/there", *(f"/{n}" for n in range(5))):
            doors.at[path].set()
        assert [await asking.end() for asking in (there, *askings)] == [""] * 6


async def test_an_outage_that_concerned_others_shortens_nobodys_wait(monkeypatch):
    monkeypatch.setattr(pools, "CONNECT_AGAIN", 0.01)
    monkeypatch.setattr(pools, "CONNECT_TIMEOUT", 0.1)
    dialer = Scripted(OK, REFUSED, REFUSED)
    async with Origin(doors := Doors()) as origin, pooled(origin, dialer) as pool:
        send(pool, "/there")
        await visits(origin, 1)
        given_up = send(pool)
        await asyncio.sleep(0)
        assert dialer.attempts == 2  # and has not failed yet
        pool.drop(given_up)
        await asyncio.sleep(0.2)  # longer than anybody waits in an outage
        doors.at["/late"].set()
        late = send(pool, "/late")
        assert await late.end() == ""
        assert dialer.attempts == 4
