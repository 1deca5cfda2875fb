"""Servers that die under calls: every call gets one answer, and the answer says what is known."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from tests.plugin_faults import Figures, Rig

from mcp_junction.testing import history
from mcp_junction.testing.client import LineClient, key
from mcp_junction.testing.history import Seen
from mcp_junction.testing.processes import until


@dataclass(frozen=True)
class Load:
    calls: int
    per_second: int
    kill_every: float
    timeout_ms: int
    on_time: bool
    """Whether lateness is judged here, or only written down: a short run shares its machine."""


SHORT = Load(calls=1_200, per_second=240, kill_every=0.5, timeout_ms=1_000, on_time=False)
LONG = Load(calls=10_000, per_second=160, kill_every=0.5, timeout_ms=2_000, on_time=True)
ALLOWED_LATENESS = 0.25


@pytest.mark.req("F-01", "R-ANSWER")
@pytest.mark.parametrize(
    "load", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.soak)]
)
def test_each_call_is_answered_once_and_in_time_while_its_server_is_killed_again_and_again(
    rig: Rig, figures: Figures, load: Load
) -> None:
    rig.add("led", timeout=load.timeout_ms)
    client = rig.start("--restart")
    killer = Killer(rig, load.kill_every)
    killer.start()
    chance = random.Random(1)
    calls = {}
    began = time.monotonic()
    for number in range(load.calls):
        nonce = f"n{number}"
        fault = {"fault": "hang"} if chance.random() < 0.05 else {}
        frame_id = client.call("led:record", nonce=nonce, delay_ms=chance.randrange(30), **fault)
        calls[key(frame_id)] = nonce
        ahead = began + number / load.per_second - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)  # the pace of the load, not a wait for anything
    killer.stop()
    client.wait(
        lambda: all(client.answers[frame_id] for frame_id in calls),
        load.timeout_ms / 1000 + 10,
        "every answer",
    )
    seen = seen_by(client, calls)
    ends = history.tally(seen)
    deadline = load.timeout_ms / 1000
    lateness = max(client.answers[i][0].at - client.asked[i] for i in calls) - deadline
    figures(kills=killer.kills, calls=len(calls), lateness=lateness, **ends)
    assert history.check(seen, rig.ledger()) == []
    assert killer.kills > 3
    assert ends["result"] > load.calls // 10
    assert ends["unknown"] > 0
    assert client.garbage == []
    if load.on_time:
        assert lateness <= ALLOWED_LATENESS


@pytest.mark.req("F-02", "R-ANSWER")
@pytest.mark.parametrize(
    ("fault", "delivery", "runs"),
    [
        ("after_execute_before_answer", "unknown", 1),
        ("before_execute", "unknown", 0),
        ("half_answer", "executed", 1),
    ],
)
@pytest.mark.parametrize(
    "crashes",
    [pytest.param(24, id="short"), pytest.param(1_000, id="long", marks=pytest.mark.soak)],
)
def test_a_crash_around_the_execution_is_told_as_what_can_be_known(
    rig: Rig, figures: Figures, crashes: int, fault: str, delivery: str, runs: int
) -> None:
    servers = [rig.add(f"led{number}") for number in range(4)]
    client = rig.start("--restart")
    began = time.monotonic()

    def crash_again_and_again(server: str) -> list[Seen]:
        """What became of each call; one that was not sent does not count and is made again."""
        calls: dict[str, str] = {}
        counted = 0
        while counted < crashes // len(servers):
            nonce = f"n{len(calls)}"
            frame_id = client.call(f"{server}:record", nonce=nonce, fault=fault)
            calls[key(frame_id)] = nonce
            if history.verdict(client.answer(frame_id)) != "not_sent":
                counted += 1
            else:
                until(lambda: f"{server}:record" in client.tools(), 30, f"{server} to be back")
        return seen_by(client, calls)

    with ThreadPoolExecutor(len(servers)) as threads:
        for server, seen in zip(servers, threads.map(crash_again_and_again, servers), strict=True):
            ends = history.tally(seen)
            del ends["not_sent"]
            assert history.check(seen, rig.ledger(server)) == []
            assert ends == {delivery: crashes // len(servers)}
            assert rig.ledger(server).runs().total() == runs * ends[delivery]
    figures(crashes=crashes, seconds=time.monotonic() - began)


@pytest.mark.req("R-ANSWER")
def test_without_restart_calls_in_the_air_and_calls_after_the_crash_are_answered(rig: Rig) -> None:
    rig.add("led")
    client = rig.start()
    in_the_air = [client.call("led:record", nonce=f"n{n}", fault="hang") for n in range(50)]
    until(lambda: rig.ledger().runs().total() == 50, 30, "the calls to run")
    rig.kill(rig.server_pid())
    answers = [client.answer(frame_id) for frame_id in in_the_air]
    assert {history.verdict(answer) for answer in answers} == {"unknown"}
    assert {answer["error"]["code"] for answer in answers} == {-32005}
    until(lambda: client.tools() == [], 10, "the tools to leave the list")
    after = client.answer(client.call("led:record", nonce="after"))
    assert history.verdict(after) == "not_sent"
    assert rig.ledger().runs()["after"] == 0


@pytest.mark.req("R-ANSWER")
def test_a_server_that_closes_its_stdout_and_lives_on_is_ended_and_its_calls_answered(
    rig: Rig,
) -> None:
    rig.add("led")
    client = rig.start()
    waiting = client.call("led:record", nonce="waits", fault="hang")
    muted = client.call("led:record", nonce="n", fault="mute")
    for frame_id in (waiting, muted):
        assert history.verdict(client.answer(frame_id)) == "unknown"
    until(lambda: not rig.processes(), 10, "the server to be ended")
    assert history.verdict(client.answer(client.call("led:record", nonce="after"))) == "not_sent"


@pytest.mark.req("R-ANSWER")
def test_calls_that_wait_when_the_gateway_is_told_to_end_are_answered_before_it_does(
    rig: Rig,
) -> None:
    rig.settings["drain_ms"] = 300
    rig.add("led")
    client = rig.start()
    hanging = client.call("led:record", nonce="hangs", fault="hang")
    until(lambda: rig.ledger().runs().total() == 1, 30, "the call to run")
    client.process.terminate()
    assert history.verdict(client.answer(hanging)) == "unknown"
    assert client.wait_ended() == 0


class Killer:
    """Kills the newest process of a server, with -9, again and again."""

    def __init__(self, rig: Rig, every: float) -> None:
        self.kills = 0
        self._rig = rig
        self._every = every
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        last = None
        while not self._stopped.wait(self._every):
            pid = self._rig.server_pid()
            if pid != last:
                self._rig.kill(pid)
                self.kills += 1
                last = pid


def seen_by(client: LineClient, calls: dict[str, str]) -> list[Seen]:
    """What a client saw of its calls (id as a key -> nonce)."""
    return [
        Seen(nonce, [answer.frame for answer in client.answers[frame_id]])
        for frame_id, nonce in calls.items()
    ]
