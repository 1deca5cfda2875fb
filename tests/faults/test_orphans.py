"""However a gateway ends, or one of its servers: nothing that a server started is left behind.

What is promised: while the warden lives, everything below a server goes, also what has left its
session, lost its parent or dropped its environment. When only the warden is killed, the gateway
sweeps in its place, and finds all but what has dropped its environment. When gateway and warden are
killed in one moment, the servers' own processes go by their parent-death signal, and what reads
their pipes sees them end; a grandchild that does neither is left.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes import stray_processes
from tests.plugin_faults import Figures, Rig, warden_of

from mcp_junction.testing import history, processes
from mcp_junction.testing.client import LineClient

AS_NPX_DOES = ["sh", "-c", '"$@"; true', "outer", "sh", "-c", '"$@"; true', "inner"]
STRAYS = ("child", "setsid", "daemon")
PROMISED = 2.0
BESIDE_OTHERS = 10.0  # a short run shares its machine with other tests
TURNS = [
    pytest.param(2, BESIDE_OTHERS, id="short"),
    pytest.param(100, PROMISED, id="long", marks=pytest.mark.soak),
]


def add_tree(
    rig: Rig, key: str, *kinds: str, shells: bool = True, args: tuple[str, ...] = ()
) -> None:
    """A server below two shells, with strays around it."""
    spawn = [word for kind in kinds for word in ("--spawn", kind)]
    wrap = [
        *(AS_NPX_DOES if shells else []),
        *(sys.executable, "-I", "-S", stray_processes.__file__),
        *("--pids", str(pids_file(rig, key))),
    ]
    rig.add(key, wrap=[*wrap, *spawn, "--"])


def pids_file(rig: Rig, key: str) -> Path:
    return rig.folder / f"pids-{key}"


def strays(rig: Rig, key: str, kind: str = "") -> set[int]:
    """Living processes that a server's tree has started, found by pid, not by any mark."""
    lines = pids_file(rig, key).read_text().splitlines() if pids_file(rig, key).exists() else []
    pids = [int(line.split()[1]) for line in lines if line.startswith(kind)]
    found = [processes.look(pid) for pid in pids]
    return {stray.pid for stray in found if stray and stray.is_alive and stray.name == "sleep"}


def everything(rig: Rig) -> set[int]:
    return rig.processes().union(*(strays(rig, key) for key in rig.entries))


def killed(client: LineClient) -> None:
    os.kill(client.pid, signal.SIGKILL)
    client.wait_ended()


def terminated(client: LineClient) -> None:
    os.kill(client.pid, signal.SIGTERM)
    assert client.wait_ended() == 0


def interrupted(client: LineClient) -> None:
    os.kill(client.pid, signal.SIGINT)
    assert client.wait_ended() == 0


def left_by_its_client(client: LineClient) -> None:
    assert client.end() == 0


@pytest.mark.req("F-08", "R-ORPHANS")
@pytest.mark.parametrize("end", [killed, terminated, interrupted, left_by_its_client])
@pytest.mark.parametrize(("turns", "bound"), TURNS)
def test_nothing_is_left_of_any_tree_when_the_gateway_ends(
    rig: Rig, figures: Figures, end: Callable[[LineClient], None], turns: int, bound: float
) -> None:
    for key in ("one", "two"):
        add_tree(rig, key, *STRAYS, "bare")
    rig.add("deaf", "--fault", "deaf")
    rig.settings["drain_ms"] = 100
    slowest = 0.0
    for turn in range(turns):
        client = rig.start()
        client.result("deaf:record", nonce=f"n{turn}")
        client.result("one:record", nonce=f"n{turn}")
        client.call("two:record", nonce=f"n{turn}", fault="hang")
        assert len(everything(rig)) == 2 * (2 + 1 + 4) + 1
        end(client)
        took = processes.until(lambda: not everything(rig), bound, "every process to be gone")
        slowest = max(slowest, took)
    figures(turns=turns, slowest=slowest)


@pytest.mark.req("F-08", "R-ORPHANS")
@pytest.mark.parametrize(("turns", "bound"), TURNS)
def test_a_gateway_killed_while_its_servers_start_leaves_nothing(
    rig: Rig, figures: Figures, turns: int, bound: float
) -> None:
    for number in range(4):
        add_tree(rig, f"led{number}", *STRAYS)
    slowest = 0.0
    for turn in range(turns):
        client = rig.start(opened=False)
        client.request("ping")
        # Somewhere between the first process and the last, another place each time.
        want = 1 + (turn * 7) % 20
        processes.until(lambda want=want: len(rig.processes()) >= want, 30, "some servers")
        killed(client)
        took = processes.until(lambda: not everything(rig), bound, "every process to be gone")
        slowest = max(slowest, took)
    figures(turns=turns, slowest=slowest)


@pytest.mark.req("F-08", "R-ORPHANS")
def test_a_tree_that_keeps_starting_processes_is_ended_too(rig: Rig) -> None:
    loop = "while :; do setsid sleep 600 & sleep 0.01; done"
    rig.add("led", wrap=["sh", "-c", f'({loop}) <&- >&- 2>&- & exec "$@"', "sh"])
    client = rig.start()
    processes.until(lambda: len(rig.processes()) > 20, 30, "the processes")
    killed(client)
    processes.until(lambda: not rig.processes(), BESIDE_OTHERS, "every process to be gone")


@pytest.mark.req("F-08", "R-ORPHANS")
def test_a_server_that_ends_takes_its_strays_with_it_and_nothing_of_another(rig: Rig) -> None:
    add_tree(rig, "one", *STRAYS)
    add_tree(rig, "two", *STRAYS, shells=False)
    add_tree(rig, "three", *STRAYS)
    client = rig.start()
    kept = rig.processes("three")
    assert len(kept) == 3 + len(STRAYS)
    for key in ("one", "two"):
        waiting = client.call(f"{key}:record", nonce="waits", fault="hang")
        processes.until(lambda key=key: rig.ledger(key).runs().total() == 1, 30, "the call to run")
        rig.kill(rig.server_pid(key))
        assert history.verdict(client.answer(waiting)) == "unknown"
        processes.until(
            lambda key=key: not rig.processes(key) | strays(rig, key), 10, "its strays to go"
        )
    assert rig.processes("three") == kept
    client.result("three:record", nonce="still there")


@pytest.mark.req("R-ORPHANS")
def test_strays_that_hold_the_pipes_of_a_dead_server_do_not_hold_up_its_calls(rig: Rig) -> None:
    add_tree(rig, "led", "setsid", "child", shells=False)
    client = rig.start()
    waiting = client.call("led:record", nonce="n", fault="after_execute_before_answer")
    assert history.verdict(client.answer(waiting, 10)) == "unknown"


@pytest.mark.req("F-08", "R-ORPHANS", "R-ANSWER")
@pytest.mark.parametrize(("turns", "bound"), TURNS)
def test_when_the_warden_is_killed_the_gateway_sweeps_and_goes_on(
    rig: Rig, figures: Figures, turns: int, bound: float
) -> None:
    add_tree(rig, "one", *STRAYS)
    add_tree(rig, "two", *STRAYS, shells=False)
    client = rig.start("--restart")
    slowest = 0.0
    for turn in range(turns):
        for key in ("one", "two"):
            started = rig.ledger(key)
            processes.until(
                lambda started=started, turn=turn: len(started.entries("start")) == turn + 1,
                30,
                f"{key} to start",
            )
            name = f"{key}:record"
            processes.until(lambda name=name: name in client.tools(), 30, f"{key} to be up")
        before = everything(rig)
        assert len(before) == 4 + 2 * len(STRAYS)
        waiting = client.call("one:record", nonce=f"n{turn}", fault="hang")
        processes.until(
            lambda turn=turn: rig.ledger("one").runs()[f"n{turn}"] == 1, 30, "the call to run"
        )
        os.kill(warden_of(client), signal.SIGKILL)
        took = processes.until(
            lambda before=before: not everything(rig) & before, bound, "every process to be gone"
        )
        slowest = max(slowest, took)
        assert history.verdict(client.answer(waiting)) == "unknown"
    assert processes.zombies(client.pid) == []
    figures(turns=turns, slowest=slowest)


@pytest.mark.req("F-08", "R-ORPHANS")
def test_gateway_and_warden_killed_at_once_leave_no_server(rig: Rig) -> None:
    rig.add("plain")
    rig.add("deaf", "--fault", "deaf")
    rig.add("shells", wrap=AS_NPX_DOES)
    client = rig.start()
    client.result("deaf:record", nonce="n")
    warden = warden_of(client)
    os.kill(warden, signal.SIGSTOP)  # so that it cannot see the gateway go
    killed(client)
    os.kill(warden, signal.SIGKILL)
    processes.until(lambda: not rig.processes(), BESIDE_OTHERS, "every process to be gone")
