"""However a call ends, on whichever way: it leaves nothing for the collector, and holds nothing.

Cyclic garbage is collected late in this program, if at all: with results of a megabyte, a cycle a
call is a gigabyte after a thousand calls.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from tests.memory.world import FRONTS, KINDS, UPSTREAMS, World

TIMES = {"timeout": 1, "lost": 1}
"""How many calls are looked at; three, unless they take their time."""
RESULT = 256 * 1024


class Running:
    """A world and its loop; each test takes the loop a step further."""

    def __init__(self, folder: Path) -> None:
        self.loop = uvloop.new_event_loop()
        self.world = World(folder)
        self.loop.run_until_complete(self.world.open())

    def close(self) -> None:
        self.loop.run_until_complete(self.world.close())
        self.loop.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


@pytest.mark.req("R-MEMORY")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("front", FRONTS)
def test_calls_leave_no_garbage_and_hold_no_result(
    running: Running, front: str, upstream: str, kind: str
) -> None:
    calls = running.world.left_by(front, upstream, kind, TIMES.get(kind, 3))
    left = running.loop.run_until_complete(calls)
    assert not left.kinds
    assert left.held < RESULT // 4, left.large
