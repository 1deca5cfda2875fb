"""Crash and restart, over and over: what a gateway holds does not grow with it."""

from dataclasses import dataclass

import pytest
from tests.plugin_faults import Figures, Rig, warden_of

from mcp_junction.testing import processes
from mcp_junction.testing.client import LineClient
from mcp_junction.testing.processes import until

MIB = 1024 * 1024
MORE_DESCRIPTORS = 5
MORE_MEMORY = 20 * MIB
SERVERS = 6


@dataclass(frozen=True)
class Holding:
    """What two processes hold at a quiet moment."""

    descriptors: int
    warden_descriptors: int
    memory: int
    warden_memory: int
    zombies: int


def holding(client: LineClient) -> Holding:
    warden = warden_of(client)
    return Holding(
        descriptors=len(processes.descriptors(client.pid)),
        warden_descriptors=len(processes.descriptors(warden)),
        memory=processes.memory(client.pid),
        warden_memory=processes.memory(warden),
        zombies=len(processes.zombies(client.pid)),
    )


def crash_each(rig: Rig, client: LineClient, turn: int) -> None:
    """One crash of every server, with a call in the air; returns when all are back."""
    asked = [
        client.call(f"{key}:record", nonce=f"{turn}", fault="after_execute_before_answer")
        for key in rig.entries
    ]
    for frame_id in asked:
        assert client.answer(frame_id)["error"]["data"]["delivery"] == "unknown"
    for key in rig.entries:
        until(lambda key=key: starts(rig, key) == turn + 2, 60, f"{key} to start again")
    until(lambda: len(client.tools()) == 3 * SERVERS, 60, "all servers to be back")
    client.answers.clear()


def starts(rig: Rig, key: str) -> int:
    return rig.file(key).read_bytes().count(b'"event": "start"')


@pytest.mark.req("F-09")
@pytest.mark.parametrize(
    "cycles", [pytest.param(60, id="short"), pytest.param(5_000, id="long", marks=pytest.mark.soak)]
)
def test_crashes_and_restarts_leave_nothing_behind(rig: Rig, figures: Figures, cycles: int) -> None:
    for number in range(SERVERS):
        rig.add(f"led{number}")
    client = rig.start("--restart")
    for warm_up in range(3):
        crash_each(rig, client, warm_up)
    before = holding(client)
    for turn in range(cycles // SERVERS):
        crash_each(rig, client, 3 + turn)
    after = holding(client)
    started = sum(starts(rig, key) for key in rig.entries)
    figures(
        starts=started,
        descriptors=(before.descriptors, after.descriptors),
        warden_descriptors=(before.warden_descriptors, after.warden_descriptors),
        grown_mib=(after.memory - before.memory) / MIB,
        warden_grown_mib=(after.warden_memory - before.warden_memory) / MIB,
    )
    assert started >= cycles
    assert after.zombies == 0
    assert abs(after.descriptors - before.descriptors) <= MORE_DESCRIPTORS
    assert abs(after.warden_descriptors - before.warden_descriptors) <= MORE_DESCRIPTORS
    assert after.memory - before.memory < MORE_MEMORY
    assert after.warden_memory - before.warden_memory < MORE_MEMORY


@pytest.mark.req("F-09")
def test_a_server_that_never_comes_up_costs_nothing_but_its_attempts(rig: Rig) -> None:
    rig.add_program("broken", ["sh", "-c", "echo no luck >&2; exit 3"])
    rig.add("led")
    client = rig.start("--restart")
    attempts = b"server 'broken' failed"

    def tried(times: int) -> None:
        until(lambda: rig.stderr.read_bytes().count(attempts) >= times, 60, f"attempt {times}")

    tried(3)
    before = holding(client)
    tried(10)
    after = holding(client)
    assert abs(after.descriptors - before.descriptors) <= MORE_DESCRIPTORS
    assert abs(after.warden_descriptors - before.warden_descriptors) <= MORE_DESCRIPTORS
    client.result("led:record", nonce="n")
    until(lambda: not processes.zombies(client.pid), 10, "no zombies")
