"""Remote servers that are away for a while: calls wait where that helps, and none runs twice."""

import asyncio
import signal
import time
from typing import Any

import pytest
from tests.faults_http.served import served
from tests.faults_http.wire import Client, until
from tests.plugin_faults import Figures
from tests.plugin_faults_http import HttpRig

from mcp_junction.testing import history
from mcp_junction.testing.faults import FaultProxy
from mcp_junction.testing.history import Ledger, Seen
from mcp_junction.upstream import connecting

pytestmark = pytest.mark.preloaded

CALLS = 200
LATER = 150  # from here on they are made in the middle of an outage
WAITING = 100  # how many may wait for a server that has just gone


def openings(ledger: Ledger) -> int:
    """How often the server was greeted since it last started."""
    events = [entry["event"] for entry in ledger.entries()]
    return events[len(events) - 1 - events[::-1].index("start") :].count("initialize")


@pytest.mark.req("F-03", "R-RECONNECT", "R-ANSWER")
@pytest.mark.parametrize("leaves", ["nothing", "connections"])
@pytest.mark.parametrize(
    "seconds", [pytest.param(1.5, id="short"), pytest.param(5.0, id="long", marks=pytest.mark.soak)]
)
async def test_calls_to_a_server_that_refuses_connections_wait_or_fail_and_run_at_most_once(
    http_rig: HttpRig, figures: Figures, seconds: float, leaves: str
) -> None:
    """An outage takes the connections that are there, or it leaves them."""
    remote = http_rig.add_remote()
    async with FaultProxy(remote.port) as proxy:
        http_rig.entries["led"]["url"] = f"http://127.0.0.1:{proxy.port}/mcp"
        gateway = http_rig.serve()
        client = Client(gateway.port)
        await client.open()
        await client.nonce("led:record", "first")
        await proxy.refuse()
        if leaves == "nothing":
            proxy.reset()
        began = time.monotonic()

        def calls(*numbers: int) -> list[asyncio.Future[Any]]:
            made = (client.call("led:record", nonce=f"n{n}") for n in range(*numbers))
            return [asyncio.ensure_future(call) for call in made]

        coming = calls(LATER)  # which may all be sent before anything is known of the outage
        await asyncio.sleep(seconds / 2)
        coming += calls(LATER, CALLS)
        await asyncio.sleep(seconds / 2)
        if leaves == "nothing":  # then all have come once those are refused for which is no room
            refused = CALLS - WAITING
            await until(lambda: sum(call.done() for call in coming) >= refused, "the refusals")
        early = sum(call.done() for call in coming)
        await proxy.accept()
        answers = await asyncio.gather(*coming)
        took = time.monotonic() - began
        await client.nonce("led:record", "last")
    seen = [Seen("first", answers=[{"result": {"structuredContent": {"nonce": "first"}}}])]
    seen += [Seen(f"n{n}", [a] if a else []) for n, a in enumerate(answers)]
    seen += [Seen("last", answers=[{"result": {"structuredContent": {"nonce": "last"}}}])]
    ends = history.tally(seen[1:-1])
    figures(took=took, answered_during_outage=early, leaves=leaves, **ends)
    assert history.check(seen, http_rig.ledger()) == []
    assert set(ends) <= {"result", "not_sent"}
    assert ends.total() == CALLS
    if leaves == "nothing":
        assert 0 < ends["result"] <= WAITING
    client.close()


@pytest.mark.req("R-RECONNECT")
async def test_calls_wait_only_for_a_while_after_a_healthy_link_was_lost(
    http_rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "RECONNECT_WINDOW", 3.0)
    remote = http_rig.add_remote()
    async with served(http_rig) as within:
        client = await within.client()
        await client.nonce("led:record", "first")
        remote.kill()
        upstream = within.junction.servers["led"]
        assert history.verdict(await client.call("led:record", nonce="lost")) == "not_sent"
        await until(lambda: upstream.link is None, "the loss to be seen")
        upstream._gate.shut(was_open=True)  # as if that were now, however long we took to look
        waits = asyncio.ensure_future(client.call("led:record", nonce="waits"))
        await until(lambda: waits.done() or upstream.calls == 1, "the call to wait")
        assert not waits.done()
        assert history.verdict(await waits) == "not_sent"
        monkeypatch.setattr(connecting, "RECONNECT_WINDOW", 3600.0)
        upstream._gate._down_since -= 7200.0  # one that waited would do so until the test is over
        answers = [await client.call("led:record", nonce=f"n{n}") for n in range(20)]
        assert {history.verdict(answer) for answer in answers} == {"not_sent"}
        upstream._gate._down_since += 7200.0  # what is down for long is tried more rarely
        starts = upstream.starts
        await until(lambda: upstream.starts > starts + 1, "it not to be given up")
        remote.start()
        await until(lambda: upstream.link is not None, "it to be back")
        await client.nonce("led:record", "last")
    assert http_rig.ledger().runs() == {"first": 1, "last": 1}


@pytest.mark.req("F-04", "R-ANSWER")
@pytest.mark.parametrize("calls", [1, 50])
@pytest.mark.parametrize(
    "times", [pytest.param(3, id="short"), pytest.param(200, id="long", marks=pytest.mark.soak)]
)
async def test_when_a_server_forgets_its_sessions_calls_succeed_after_one_new_opening(
    http_rig: HttpRig, figures: Figures, calls: int, times: int
) -> None:
    remote = http_rig.add_remote()
    gateway = http_rig.serve()
    client = Client(gateway.port)
    await client.open()
    await client.nonce("led:record", "first")
    ledger = http_rig.ledger()
    for turn in range(times):
        remote.signal(signal.SIGUSR1)
        await until(lambda t=turn: len(ledger.entries("forgot")) == t + 1, "it to forget")
        await asyncio.gather(*(client.nonce("led:record", f"{turn}.{n}") for n in range(calls)))
        assert openings(ledger) == turn + 2
    refused = len(ledger.entries("unknown session"))
    figures(calls=calls * times, refused=refused, openings=openings(ledger))
    assert set(ledger.runs().values()) == {1}
    assert ledger.runs().total() == 1 + calls * times
    client.close()


@pytest.mark.req("F-04", "R-RECONNECT", "R-ANSWER")
@pytest.mark.parametrize("kind", ["http", "sse"])
@pytest.mark.parametrize(
    "times", [pytest.param(2, id="short"), pytest.param(50, id="long", marks=pytest.mark.soak)]
)
async def test_after_a_restart_of_a_server_the_next_call_succeeds_after_one_new_opening(
    http_rig: HttpRig, figures: Figures, kind: str, times: int
) -> None:
    remote = http_rig.add_remote(kind=kind)
    gateway = http_rig.serve()
    client = Client(gateway.port)
    await client.open()
    await client.nonce("led:record", "first")
    slowest = 0.0
    for turn in range(times):
        remote.kill()
        remote.start()
        began = time.monotonic()
        await asyncio.gather(*(client.nonce("led:record", f"{turn}.{n}") for n in range(20)))
        slowest = max(slowest, time.monotonic() - began)
        assert openings(http_rig.ledger()) == 1
    figures(slowest=slowest)
    assert set(http_rig.ledger().runs().values()) == {1}
    client.close()


@pytest.mark.req("R-ANSWER")
@pytest.mark.parametrize("kind", ["http", "sse"])
@pytest.mark.parametrize(
    ("fault", "delivery", "runs"),
    [
        ("after_execute_before_answer", "unknown", 1),
        ("before_execute", "unknown", 0),
        ("half_answer", "unknown", 1),
        ("cut", "unknown", 1),
    ],
)
async def test_a_remote_server_that_breaks_off_is_told_as_what_can_be_known(
    http_rig: HttpRig, kind: str, fault: str, delivery: str, runs: int
) -> None:
    http_rig.add_remote(kind=kind)
    gateway = http_rig.serve()
    client = Client(gateway.port)
    await client.open()
    await client.nonce("led:echo", "up")
    answer = await client.call("led:record", nonce="n", fault=fault)
    assert history.verdict(answer) == delivery
    assert http_rig.ledger().runs()["n"] == runs
    client.close()


@pytest.mark.req("R-ANSWER")
@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_slow_and_dripping_network_changes_no_answer(http_rig: HttpRig, kind: str) -> None:
    remote = http_rig.add_remote(kind=kind)
    async with FaultProxy(remote.port) as proxy:
        path = "sse" if kind == "sse" else "mcp"
        http_rig.entries["led"]["url"] = f"http://127.0.0.1:{proxy.port}/{path}"
        gateway = http_rig.serve()
        client = Client(gateway.port)
        await client.open()
        await client.tools()
        proxy.drip, proxy.delay = 7, 0.0002
        await asyncio.gather(
            *(client.nonce("led:record", f"ä€𝄞{n}", wide=True) for n in range(8)),
            *(client.nonce("led:record", f"s{n}", fault="stream") for n in range(8)),
        )
        client.close()
    assert set(http_rig.ledger().runs().values()) == {1}
