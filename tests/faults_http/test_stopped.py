"""One server that stands still: the calls of the others go on."""

import asyncio
import os
import signal
import statistics
import time

import pytest
from tests.faults_http.served import served
from tests.faults_http.wire import Client, until
from tests.plugin_faults import Figures
from tests.plugin_faults_http import HttpRig

from mcp_junction.testing import history
from mcp_junction.upstream.http.pool import MAX_CONNECTIONS

HANGING = 40
BLOCKS = 4  # of calls, with all servers and with one stopped in turn: the machine's mood is in both


async def latencies(client: Client, servers: list[str], calls: int) -> list[float]:
    """How long calls take, some at a time, over all of these servers."""
    took: list[float] = []

    async def some(worker: int) -> None:
        for number in range(calls // 8):
            began = time.monotonic()
            await client.nonce(f"{servers[(worker + number) % len(servers)]}:echo", f"{number}")
            took.append(time.monotonic() - began)

    await asyncio.gather(*map(some, range(8)))
    return took


@pytest.mark.req("F-05", "R-ANSWER")
@pytest.mark.parametrize("kind", ["stdio", "http"])
@pytest.mark.parametrize(
    ("servers", "calls"),
    [
        pytest.param(4, 320, id="short"),
        pytest.param(20, 20_000, id="long", marks=pytest.mark.soak),
    ],
)
async def test_while_one_server_is_stopped_every_call_of_the_others_is_answered(
    http_rig: HttpRig, figures: Figures, kind: str, servers: int, calls: int
) -> None:
    for number in range(servers):
        http_rig.add_any("http" if number % 2 else "stdio", f"s{number}")
    stopped = "s1" if kind == "http" else "s0"
    others = [key for key in http_rig.entries if key != stopped]
    gateway = http_rig.serve()
    client = Client(gateway.port)
    await client.open()
    assert len(await client.tools()) == 3 * servers
    pid = http_rig.server_pid(stopped)
    before: list[float] = []
    after: list[float] = []
    for block in range(BLOCKS):
        before += await latencies(client, others, calls // BLOCKS)
        nonces = [f"n{block}.{number}" for number in range(HANGING)]
        os.kill(pid, signal.SIGSTOP)
        try:
            hanging = [
                asyncio.ensure_future(client.call(f"{stopped}:record", nonce=nonce))
                for nonce in nonces
            ]
            after += await latencies(client, others, calls // BLOCKS)
            assert len(await client.tools()) == 3 * servers
            assert not any(call.done() for call in hanging)
        finally:
            os.kill(pid, signal.SIGCONT)
        for nonce, answer in zip(nonces, await asyncio.gather(*hanging), strict=True):
            assert answer["result"]["structuredContent"] == {"nonce": nonce}
    p99 = [statistics.quantiles(took, n=100)[98] for took in (before, after)]
    figures(
        p99_before=p99[0] * 1e3, p99_after=p99[1] * 1e3, ratio=p99[1] / p99[0], calls=len(after)
    )
    client.close()


@pytest.mark.req("F-05", "R-ANSWER")
async def test_calls_given_up_before_they_were_sent_are_never_sent(http_rig: HttpRig) -> None:
    """More calls than there are connections: the rest waits here, and is given up here."""
    remote = http_rig.add_remote()
    async with served(http_rig) as within:
        client, other = await within.client(), await within.client()
        await client.nonce("led:record", "first")
        remote.signal(signal.SIGSTOP)
        coming = [
            asyncio.ensure_future(client.call("led:record", nonce=f"n{number}"))
            for number in range(MAX_CONNECTIONS + 100)
        ]
        await until(lambda: within.flights() == len(coming), "the calls to be on their way")
        assert await other.delete() == 200
        assert await client.delete() == 200
        answers = await asyncio.gather(*coming)
        remote.signal(signal.SIGCONT)
        last = await within.client()
        await last.nonce("led:record", "last")
        told = [history.verdict(answer) for answer in answers]
        unsent = {f"n{number}" for number, delivery in enumerate(told) if delivery == "not_sent"}
        assert len(unsent) >= 100
        sent = len(coming) - len(unsent)
        ledger = http_rig.ledger()
        await until(lambda: len(ledger.entries("cancel")) == sent, "the cancellations")
        assert not unsent & set(ledger.runs())
        assert within.flights() == 0
