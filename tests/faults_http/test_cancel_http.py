"""Calls over HTTP that are no longer wanted: the server that runs them is told, nothing remains."""

import asyncio
import time
from dataclasses import dataclass

import pytest
from tests.faults.test_cancel import cancels, run_ids
from tests.faults_http.served import served
from tests.faults_http.wire import Client, until
from tests.plugin_faults import Figures
from tests.plugin_faults_http import KINDS, HttpRig

from mcp_junction.testing import history
from mcp_junction.testing.client import key

pytestmark = pytest.mark.preloaded


@dataclass(frozen=True)
class Amount:
    points: int
    times: int
    bound: float


SHORT = Amount(points=10, times=12, bound=5.0)  # beside other tests
LONG = Amount(points=50, times=200, bound=0.2)
SPAN = 0.06  # seconds between a call and the latest moment of its cancellation


@pytest.mark.req("F-10", "R-ANSWER")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "amount",
    [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.soak)],
)
async def test_a_call_cancelled_over_http_is_cancelled_at_its_server(
    http_rig: HttpRig, figures: Figures, kind: str, amount: Amount
) -> None:
    http_rig.add_any(kind)
    gateway = http_rig.serve()
    client = Client(gateway.port)
    await client.open()
    await client.tools()
    late = round(1000 * SPAN * 2 / 3)
    when: dict[str, float] = {}
    answers: dict[str, object] = {}

    async def one(point: int, turn: int) -> None:
        nonce = f"{point}.{turn}"
        call = asyncio.ensure_future(
            client.call("led:record", frame_id=nonce, nonce=nonce, delay_ms=late)
        )
        await asyncio.sleep(SPAN * point / amount.points)  # the point of this cancellation
        when[nonce] = time.monotonic()
        await client.cancel(nonce)
        answers[nonce] = await call

    for point in range(amount.points):
        for start in range(0, amount.times, 12):
            turns = range(start, min(start + 12, amount.times))
            await asyncio.gather(*(one(point, turn) for turn in turns))
    await client.nonce("led:record", "last", delay_ms=late)
    runs = run_ids(http_rig.ledger())
    gone = [nonce for nonce, answer in answers.items() if answer is None and nonce in runs]
    await until(lambda: len(cancels(http_rig.ledger())) >= len(gone), "the cancellations to arrive")
    told = cancels(http_rig.ledger())
    slowest = 0.0
    for nonce in gone:
        slowest = max(slowest, told.pop(key(runs[nonce])) - when[nonce])
    # What is left was never written down by the server: its connection was gone before.
    assert not set(told) & {key(runs[nonce]) for nonce in answers if nonce in runs}
    unheard = [nonce for nonce, answer in answers.items() if answer is None and nonce not in runs]
    figures(cancels=len(when), reached=len(gone), never_ran=len(unheard), slowest=slowest)
    assert len(gone) > len(when) // 4
    assert slowest < amount.bound
    client.close()


@pytest.mark.req("F-10")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("points", "times"),
    [
        pytest.param(12, 10, id="short"),
        pytest.param(50, 200, id="long", marks=pytest.mark.soak),
    ],
)
async def test_calls_cancelled_over_http_leave_no_task_no_call_and_no_flight(
    http_rig: HttpRig, kind: str, points: int, times: int
) -> None:
    http_rig.add_any(kind, timeout=60_000)
    async with served(http_rig) as within:
        client = await within.client()
        await client.nonce("led:echo", "up")
        await within.quiet()
        tasks = len(asyncio.all_tasks())
        for point in range(points):
            ids = [f"{point}.{turn}" for turn in range(times)]
            calls = [
                asyncio.ensure_future(
                    client.call("led:record", frame_id=i, nonce=i, delay_ms=turn % 20)
                )
                for turn, i in enumerate(ids)
            ]
            for _ in range(point * 5):
                await asyncio.sleep(0)
            await asyncio.gather(*map(client.cancel, ids))
            await asyncio.gather(*calls)
        await within.quiet()
        assert within.flights() == 0
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "the tasks to end")


@pytest.mark.req("F-10", "R-ANSWER")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_that_is_deleted_ends_its_own_calls_and_no_others(
    http_rig: HttpRig, kind: str
) -> None:
    http_rig.add_any(kind)
    async with served(http_rig) as within:
        leaving, staying = await within.client(), await within.client()
        hanging = [
            asyncio.ensure_future(
                leaving.call("led:record", frame_id=n, nonce=f"leaving{n}", fault="hang")
            )
            for n in range(30)
        ]
        wanted = [
            asyncio.ensure_future(
                staying.call("led:record", frame_id=n, nonce=f"staying{n}", delay_ms=500)
            )
            for n in range(30)
        ]
        await until(lambda: http_rig.ledger().runs().total() == 60, "the calls to run")
        assert await leaving.delete() == 200
        for answer in await asyncio.gather(*hanging):
            assert history.verdict(answer) == "unknown"
        for number, answer in enumerate(await asyncio.gather(*wanted)):
            assert answer["result"]["structuredContent"] == {"nonce": f"staying{number}"}
        await until(lambda: len(cancels(http_rig.ledger())) == 30, "the cancellations")
        runs = run_ids(http_rig.ledger())
        assert set(cancels(http_rig.ledger())) == {key(runs[f"leaving{n}"]) for n in range(30)}
        assert await leaving.notify("ping") == 404
        await within.quiet()
        assert within.flights() == 0
        assert len(within.junction.clients.sessions) == 1


@pytest.mark.req("F-10", "R-ANSWER")
async def test_a_client_that_hangs_up_in_a_call_cancels_nothing_and_leaves_nothing(
    http_rig: HttpRig,
) -> None:
    """A broken connection is not a cancellation: the call runs to its end."""
    http_rig.add("led")
    async with served(http_rig) as within:
        client = await within.client()
        calls = [
            asyncio.ensure_future(client.call("led:record", nonce=f"n{n}", delay_ms=300))
            for n in range(30)
        ]
        await until(lambda: http_rig.ledger().runs().total() == 30, "the calls to run")
        client.close()
        await asyncio.gather(*calls, return_exceptions=True)
        await within.quiet()
        assert within.flights() == 0
        assert cancels(http_rig.ledger()) == {}
