"""Lines of every length, both ways: up to the limit they pass, above it they are refused clearly.

What is refused must not cost memory, and must not keep others waiting.
"""

import json
import threading
import time

import pytest
from tests.plugin_faults import Figures, Rig

from mcp_junction.testing import history, processes
from mcp_junction.testing.client import LineClient, key

KIB = 1024
MIB = 1024 * KIB
LIMIT = 16 * MIB
FINE = [64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB, LIMIT - 64, LIMIT]
MAY_GROW = 64 * MIB
MAY_LAG = 0.25
MAY_LAG_BESIDE_OTHERS = 5.0  # a short run shares its machine with other tests
OVER = [
    pytest.param(LIMIT + 1, MAY_LAG_BESIDE_OTHERS, id="just-over"),
    pytest.param(64 * MIB, MAY_LAG_BESIDE_OTHERS, id="64MiB"),
    pytest.param(1024 * MIB, MAY_LAG, id="1GiB", marks=pytest.mark.soak),
]


class Pulse:
    """Pings, one after the other: the longest wait for an answer is the lag of the loop."""

    def __init__(self, client: LineClient) -> None:
        self.longest = 0.0
        self.beats = 0
        self._client = client
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.002):
            began = time.monotonic()
            self._client.ask("ping")
            self.longest = max(self.longest, time.monotonic() - began)
            self.beats += 1


def request_of(size: int, nonce: str, frame_id: int) -> bytes:
    """A call of exactly ``size`` bytes, without its line feed."""
    params = {"name": "led:record", "arguments": {"nonce": nonce, "padding": ""}}
    frame = {"jsonrpc": "2.0", "method": "tools/call", "params": params, "id": frame_id}
    bare = json.dumps(frame).encode()
    return bare.replace(b'"padding": ""', b'"padding": "%b"' % (b"x" * (size - len(bare))))


@pytest.mark.req("F-07")
@pytest.mark.parametrize("size", FINE)
def test_an_answer_up_to_the_limit_passes_whole(rig: Rig, size: int) -> None:
    rig.add("led")
    client = rig.start()
    result = client.result("led:record", nonce="n", size=size)
    # The gateway's id is as long as the ledger's here, so what came in is what went out.
    assert len(result["content"][0]["text"]) > size - 200
    assert set(result["content"][0]["text"][1:]) == {"x"}


@pytest.mark.req("F-07")
@pytest.mark.parametrize("size", FINE)
def test_a_request_up_to_the_limit_passes_whole(rig: Rig, size: int) -> None:
    rig.add("led", "--lines")
    client = rig.start()
    line = request_of(size, "n", 7)
    assert len(line) == size
    client.send(line + b"\n")
    assert client.answer(7)["result"]["structuredContent"] == {"nonce": "n"}
    received = max(entry["size"] for entry in rig.ledger().entries("line"))
    assert received > size - 200


@pytest.mark.req("F-07", "R-ANSWER")
@pytest.mark.parametrize("id_last", [False, True])
@pytest.mark.parametrize(("size", "may_lag"), OVER)
def test_an_answer_over_the_limit_is_a_clear_error_that_says_it_ran(
    rig: Rig, figures: Figures, size: int, may_lag: float, id_last: bool
) -> None:
    rig.add("led")
    rig.add("other")
    client = rig.start()
    waiting = client.call("led:record", nonce="waits", fault="hang")
    before = processes.memory(client.pid)
    processes.forget_peak(client.pid)
    with Pulse(client) as pulse:
        began = time.monotonic()
        asked = client.call("led:record", nonce="n", fault="huge", amount=size, id_last=id_last)
        answer = client.answer(asked, 120)
    grown = processes.peak_memory(client.pid) - before
    took = time.monotonic() - began
    figures(grown_mib=grown / MIB, lag=pulse.longest, pings=pulse.beats, seconds=took)
    assert history.verdict(answer) == "executed"
    assert str(size) in answer["error"]["message"]
    assert "limit" in answer["error"]["message"]
    assert client.result("led:record", nonce="next")["structuredContent"] == {"nonce": "next"}
    assert client.answers[key(waiting)] == []
    assert grown < MAY_GROW
    assert pulse.longest < may_lag


@pytest.mark.req("F-07", "R-ANSWER")
@pytest.mark.parametrize(("size", "may_lag"), OVER)
def test_a_request_over_the_limit_is_refused_and_reaches_no_server(
    rig: Rig, figures: Figures, size: int, may_lag: float
) -> None:
    rig.add("led")
    client = rig.start()
    before = processes.memory(client.pid)
    processes.forget_peak(client.pid)
    head, tail = request_of(1_000, "never", 7).split(b"xxx", 1)
    client.send(head)
    missing = size - len(head) - len(tail)
    while missing > 0:
        client.send(b"x" * min(missing, MIB))
        missing -= MIB
    client.send(tail + b"\n")
    answer = client.answer(7, 120)
    grown = processes.peak_memory(client.pid) - before
    figures(grown_mib=grown / MIB)
    assert answer["error"]["code"] == -32600
    assert str(size) in answer["error"]["message"]
    assert "limit" in answer["error"]["message"]
    assert client.result("led:record", nonce="next")["structuredContent"] == {"nonce": "next"}
    assert rig.ledger().runs() == {"next": 1}
    assert grown < MAY_GROW


@pytest.mark.req("F-07")
def test_pings_are_answered_while_lines_at_the_limit_pass(rig: Rig, figures: Figures) -> None:
    rig.add("led")
    client = rig.start()
    with Pulse(client) as pulse:
        for number in range(4):
            client.result("led:record", nonce=f"n{number}", size=LIMIT)
    figures(lag=pulse.longest, pings=pulse.beats)
    assert pulse.beats > 0
