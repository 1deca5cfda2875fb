"""The process table: who lives, who is a zombie, who carries a mark, what they hold."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import stray_processes
from tests.fakes.stray_processes import KINDS

from mcp_junction.testing import processes


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    for pid in processes.marked("TEST_MARK", mark):
        os.kill(pid, 9)


def start(argv: list[str], mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, env={**os.environ, "TEST_MARK": mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_a_process_is_found_by_its_mark_and_its_parent_until_it_is_gone(mark: str) -> None:
    with start(["sleep", "600"], mark) as child:
        processes.until(lambda: processes.look(child.pid).name == "sleep", 10, "exec")
        assert set(processes.marked("TEST_MARK", mark)) == {child.pid}
        assert processes.marked("TEST_MARK", "another") == {}
        assert child.pid in {process.pid for process in processes.below(os.getpid())}
        assert processes.is_alive(child.pid)
        assert processes.look(child.pid).parent == os.getpid()
        child.kill()
        processes.until(lambda: not processes.is_alive(child.pid), 10, "its end")
        assert child.pid in {process.pid for process in processes.zombies(os.getpid())}
        assert processes.marked("TEST_MARK", mark) == {}
    assert processes.look(child.pid) is None


def test_what_a_process_holds_is_told(tmp_path: Path) -> None:
    me = os.getpid()
    before = processes.descriptors(me)
    with (tmp_path / "file").open("w"):
        gained = processes.descriptors(me).items() - before.items()
        assert any(path == str(tmp_path / "file") for _, path in gained)
    processes.forget_peak(me)
    len_of_ballast = 32 * 1024 * 1024
    ballast = bytearray(len_of_ballast)
    ballast[::4096] = b"x" * len(ballast[::4096])
    grown = processes.memory(me)
    del ballast
    assert grown > len_of_ballast
    assert processes.peak_memory(me) > grown - len_of_ballast // 2  # the kernel counts in batches


def test_waiting_has_a_bound() -> None:
    assert processes.until(lambda: True, 1, "nothing") < 1
    with pytest.raises(TimeoutError, match=r"waited 0\.01 s for the moon"):
        processes.until(lambda: False, 0.01, "the moon")


def test_a_tree_starts_what_it_is_told_and_then_becomes_the_program(
    tmp_path: Path, mark: str
) -> None:
    pids = tmp_path / "pids"
    spawn = [word for kind in KINDS for word in ("--spawn", kind)]
    module = [sys.executable, stray_processes.__file__, "--pids", str(pids)]
    with start([*module, *spawn, "--", "cat"], mark) as child:
        processes.until(lambda: processes.look(child.pid).name == "cat", 10, "the program")
        started = dict(line.split() for line in pids.read_text().splitlines())
        assert started.keys() == KINDS.keys()
        everyone = processes.table()
        found = {kind: everyone[int(pid)] for kind, pid in started.items()}
        processes.until(
            lambda: all(processes.look(p.pid).name == "sleep" for p in found.values()), 10, "sleep"
        )
        assert found["child"].parent == found["setsid"].parent == child.pid
        assert found["daemon"].parent not in (child.pid, os.getpid())
        session = processes.look(child.pid).session
        assert found["child"].session == session
        assert {found[kind].session for kind in KINDS} & {session} == {session}
        assert found["setsid"].session == found["setsid"].pid
        marked = set(processes.marked("TEST_MARK", mark))
        assert marked == {child.pid, *(found[k].pid for k in ("child", "setsid", "daemon"))}
        os.kill(found["bare"].pid, 9)
        child.kill()
