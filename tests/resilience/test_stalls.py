"""Who takes nothing of what is written to it is cut; who takes a little is not."""

import pytest

from mcp_junction.resilience.stalls import STALLED_AFTER, SWEEP_EVERY, StallSweep
from mcp_junction.tasks import TaskScope
from mcp_junction.testing.fakes import FakeClock


class Peer:
    """A connection; how much of it is read is up to the test."""

    def __init__(self, written: int = 0) -> None:
        self.written = self.unsent = written
        self.cut_after: float | None = None

    def cut_stalled(self, seconds: float) -> None:
        self.cut_after = seconds

    def write(self, size: int) -> None:
        self.written += size
        self.unsent += size

    def read(self, size: int) -> None:
        self.unsent -= size


@pytest.mark.req("R-QUOTA")
async def test_a_peer_that_takes_nothing_for_thirty_seconds_is_cut():
    clock = FakeClock()
    stalls, tasks = StallSweep(clock), TaskScope("test")
    tasks.spawn(stalls.run())
    stuck, slow, idle = Peer(100), Peer(100), Peer()
    for peer in (stuck, slow, idle):
        stalls.watch(peer)
    for _ in range(6):
        await clock.advance(SWEEP_EVERY)
        stuck.write(10)  # more for it does not mean that it reads
        slow.read(1)
    assert stuck.cut_after is None
    await clock.advance(SWEEP_EVERY)
    assert stuck.cut_after == STALLED_AFTER
    for _ in range(20):
        await clock.advance(SWEEP_EVERY)
        slow.write(10)
        slow.read(1)
    assert slow.cut_after is None
    assert idle.cut_after is None
    assert len(stalls) == 2
    await tasks.close()


async def test_time_counts_from_when_there_was_something_to_take():
    clock = FakeClock()
    stalls, peer = StallSweep(clock), Peer()
    stalls.watch(peer)
    for is_written in (False, True):
        await clock.advance(1000)
        stalls.sweep()
        assert peer.cut_after is None
        if not is_written:
            peer.write(1)
    await clock.advance(STALLED_AFTER - 1)
    stalls.sweep()
    assert peer.cut_after is None
    await clock.advance(1)
    stalls.sweep()
    assert peer.cut_after == STALLED_AFTER


async def test_nothing_is_kept_of_a_connection_that_is_gone():
    stalls, peer = StallSweep(FakeClock()), Peer(5)
    stalls.watch(peer)
    stalls.sweep()
    stalls.forget(peer)
    assert len(stalls) == len(stalls._since) == 0
