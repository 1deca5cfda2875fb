"""Peers that do not read, or do nothing: nobody else waits for them, and memory is bounded."""

import os
import signal
import statistics
import time

import pytest
from tests.plugin_faults import Figures, Rig

from mcp_junction.testing import history, processes
from mcp_junction.testing.client import LineClient, key
from mcp_junction.testing.processes import until

MIB = 1024 * 1024
UNREAD = 64 * MIB  # what may wait for a server that does not read, or for a client
SLACK = 64 * MIB


def latencies(client: LineClient, calls: int) -> list[float]:
    """How long calls to a healthy server take, one after the other."""
    took = []
    for number in range(calls):
        began = time.monotonic()
        client.result("well:echo", nonce=f"n{number}")
        took.append(time.monotonic() - began)
    return took


@pytest.mark.req("R-ANSWER")
@pytest.mark.parametrize(
    "calls",
    [pytest.param(300, id="short"), pytest.param(20_000, id="long", marks=pytest.mark.soak)],
)
def test_a_stopped_server_does_not_hold_up_the_calls_of_another(
    rig: Rig, figures: Figures, calls: int
) -> None:
    rig.add("well")
    rig.add("stopped")
    client = rig.start()
    before = latencies(client, calls)
    os.kill(rig.server_pid("stopped"), signal.SIGSTOP)
    hanging = [client.call("stopped:record", nonce=f"n{n}", padding="x" * 1000) for n in range(500)]
    after = latencies(client, calls)
    assert "well:echo" in client.tools()
    figures(
        p50_before=statistics.median(before) * 1e6,
        p50_after=statistics.median(after) * 1e6,
        longest=max(after),
    )
    assert [i for i in hanging if client.answers[key(i)]] == []
    os.kill(rig.server_pid("stopped"), signal.SIGCONT)
    for number, frame_id in enumerate(hanging):
        assert client.answer(frame_id)["result"]["structuredContent"] == {"nonce": f"n{number}"}


@pytest.mark.parametrize(
    "text",
    [
        "x\n",
        "\n",
        "{}\n",
        "an ordinary line of a log\n",
        '{"level":30,"time":1700000000000,"id":1,"msg":"a structured one"}\n',
        '{"jsonrpc":"2.0","id":99999,"result":{}}\n',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0}}\n',
        "no line feed at all",
    ],
)
@pytest.mark.parametrize(
    ("calls", "bound"),
    [
        pytest.param(40, 30.0, id="short"),
        pytest.param(500, 1.0, id="long", marks=pytest.mark.soak),
    ],
)
def test_a_server_that_floods_its_stdout_does_not_hold_up_the_calls_of_another(
    rig: Rig, figures: Figures, text: str, calls: int, bound: float
) -> None:
    rig.add("well")
    rig.add("floods")
    client = rig.start()
    client.call("floods:record", nonce="n", fault="flood", text=text)
    until(lambda: rig.ledger("floods").runs().total() == 1, 30, "the flood to begin")
    took = latencies(client, calls)
    figures(p50=statistics.median(took), longest=max(took))
    assert max(took) < bound


@pytest.mark.req("R-ANSWER")
@pytest.mark.parametrize(
    "amount",
    [
        pytest.param(128 * MIB, id="short"),
        pytest.param(2048 * MIB, id="long", marks=pytest.mark.soak),
    ],
)
def test_what_a_server_does_not_read_is_bounded_and_more_is_refused_unsent(
    rig: Rig, figures: Figures, amount: int
) -> None:
    rig.add("well")
    rig.add("deaf")
    client = rig.start()
    client.result("deaf:record", nonce="first", fault="deaf")
    before = processes.memory(client.pid)
    processes.forget_peak(client.pid)
    padding = "x" * MIB
    asked = [
        client.call("deaf:record", nonce=f"n{number}", padding=padding)
        for number in range(amount // MIB)
    ]
    client.result("well:echo", nonce="well")
    grown = processes.peak_memory(client.pid) - before
    answered = [client.answers[key(i)][0].frame for i in asked if client.answers[key(i)]]
    figures(refused=len(answered), grown_mib=grown / MIB)
    assert {history.verdict(answer) for answer in answered} == {"not_sent"}
    assert len(answered) >= (amount - UNREAD) // MIB - 2
    assert grown < 3 * UNREAD + SLACK  # the line it came in, and the line it goes out in
    rig.kill(rig.server_pid("deaf"))
    ends = {history.verdict(client.answer(frame_id)) for frame_id in asked}
    assert ends == {"not_sent", "unknown"}


@pytest.mark.parametrize(
    ("amount", "bound"),
    [
        pytest.param(100_000, 16 * MIB, id="short"),
        pytest.param(5_000_000, UNREAD + SLACK, id="long", marks=pytest.mark.soak),
    ],
)
def test_a_server_that_asks_and_never_reads_the_answers_costs_bounded_memory(
    rig: Rig, figures: Figures, amount: int, bound: int
) -> None:
    rig.add("well")
    rig.add("asks")
    client = rig.start()
    before = processes.memory(client.pid)
    processes.forget_peak(client.pid)
    client.result("asks:record", nonce="n", fault="pings", amount=amount, seconds=600)
    client.result("well:echo", nonce="well")
    grown = processes.peak_memory(client.pid) - before
    figures(pings=amount, grown_mib=grown / MIB)
    assert grown < bound


@pytest.mark.parametrize(
    ("kind", "size", "amount"),
    [
        pytest.param("logs", 10_000, 64 * MIB, id="logs-short"),
        pytest.param("progress", 1_000, 32 * MIB, id="progress-short"),
        pytest.param("logs", 10_000, 1024 * MIB, id="logs-long", marks=pytest.mark.soak),
        pytest.param("progress", 130, 256 * MIB, id="progress-long", marks=pytest.mark.soak),
    ],
)
def test_a_client_that_does_not_read_costs_bounded_memory_and_loses_only_what_it_can_miss(
    rig: Rig, figures: Figures, kind: str, size: int, amount: int
) -> None:
    rig.add("led")
    client = rig.start()
    client.stop_reading()
    before = processes.memory(client.pid)
    processes.forget_peak(client.pid)
    flood = {"fault": kind, "amount": amount // size, "size": size}
    frame_id = client.call("led:record", nonce="n" * size, meta={"progressToken": 1}, **flood)
    # The server writes its flood before it reads on: when this has run, all of it has come.
    second = client.call("led:record", nonce="second")
    until(lambda: rig.ledger().runs()["second"] == 1, 600, "the flood to be over")
    grown = processes.peak_memory(client.pid) - before
    figures(flood_mib=amount / MIB, grown_mib=grown / MIB)
    assert grown < SLACK
    client.start_reading()
    assert client.answer(second)["result"]["structuredContent"] == {"nonce": "second"}
    assert len(client.answers[key(frame_id)]) == 1


@pytest.mark.req("R-ANSWER")
def test_a_client_that_reads_late_gets_every_answer_it_asked_for(
    rig: Rig, figures: Figures
) -> None:
    rig.add("led")
    client = rig.start()
    client.stop_reading()
    asked = [client.call("led:record", nonce=f"n{n}", size=MIB) for n in range(40)]
    until(lambda: rig.ledger().runs().total() == 40, 60, "the calls to run")
    client.start_reading()
    for number, frame_id in enumerate(asked):
        assert client.answer(frame_id)["result"]["structuredContent"] == {"nonce": f"n{number}"}
    assert client.end() == 0
