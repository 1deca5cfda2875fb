"""What is said on stderr is written behind the back of who says it."""

import fcntl
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from mcp_junction.cli.stderr import LIMIT, StderrThread

HELD = 4096


@pytest.fixture
def pipe():
    ours, theirs = os.pipe()
    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, HELD)
    yield ours, theirs
    os.close(ours)


def ended(file: StderrThread, pipe: tuple[int, int]) -> list[str]:
    """Every line that comes out of a pipe once somebody reads, until its writer has finished."""
    found: list[bytes] = []

    def read() -> None:
        found.extend(iter(lambda: os.read(pipe[0], 65536), b""))

    reader = threading.Thread(target=read)
    reader.start()
    file.finish()
    os.close(pipe[1])
    reader.join()
    return b"".join(found).decode().splitlines()


def test_everything_is_written_in_order_once_somebody_reads(pipe):
    file = StderrThread(pipe[1])
    for number in range(5000):
        file.write(b"line %d\n" % number)
    assert ended(file, pipe) == [f"line {number}" for number in range(5000)]


def test_what_is_too_much_is_counted_in_its_place(pipe):
    file = StderrThread(pipe[1], limit=100_000)
    for number in range(3000):
        file.write(b"%-99d\n" % number)
    kept, missing = [], 0
    for line in ended(file, pipe):
        gap = re.fullmatch("mcp-junction: ([0-9]+) messages are missing here: nobody read", line)
        missing += int(gap[1]) if gap else 0
        if not gap:
            assert int(line) == len(kept) + missing, "each is in its place"
            kept.append(line)
    assert len(kept) + missing == 3000
    assert 1000 <= len(kept) <= 2000, "what may wait, what the pipe takes, and a little more"


def test_what_comes_after_a_gap_is_behind_the_words_for_it(pipe):
    file = StderrThread(pipe[1], limit=10_000)
    for _ in range(3):
        file.write(b"x" * 9_000 + b"\n")
    while not os.read(pipe[0], 65536).endswith(b"\n"):
        pass
    file.write(b"again\n")
    assert ended(file, pipe)[-2:] == [
        "mcp-junction: 2 messages are missing here: nobody read",
        "again",
    ]


def test_one_message_may_be_longer_than_all_that_may_wait(pipe):
    file = StderrThread(pipe[1])
    file.write(b"x" * (LIMIT + 1))
    assert ended(file, pipe) == ["x" * (LIMIT + 1)]


@pytest.mark.req("R-ISOLATE")
def test_the_end_does_not_wait_for_who_does_not_read(pipe):
    file = StderrThread(pipe[1])
    file.write(b"x" * 10 * HELD)
    file.finish(longest=3600.0)
    file.write(b"nor does this\n")


def test_the_end_waits_for_who_reads_slowly(pipe):
    file = StderrThread(pipe[1])
    file.write(b"x" * 10 * HELD)
    read = bytearray()

    def slowly() -> None:
        while len(read) < 10 * HELD:
            time.sleep(0.1)
            read.extend(os.read(pipe[0], HELD))

    reader = threading.Thread(target=slowly)
    reader.start()
    file.finish()
    reader.join()
    assert len(read) == 10 * HELD


def test_a_file_that_does_not_wait_gets_everything(pipe):
    os.set_blocking(pipe[1], False)
    file = StderrThread(pipe[1])
    for number in range(5000):
        file.write(b"line %d\n" % number)
    assert ended(file, pipe)[-1] == "line 4999"


def test_nobody_is_told_that_nobody_can_be_told():
    with open("/dev/full", "wb", 0) as full:
        file = StderrThread(full.fileno())
        assert file.write(b"words\n") == 6
        file.finish()


def test_prints_and_last_words_are_written_in_order():
    program = (
        "import sys, logging\n"
        "from mcp_junction.cli.stderr import take_stderr\n"
        "take_stderr()\n"
        "logging.basicConfig(stream=sys.stderr, format='%(message)s')\n"
        "for n in range(100):\n"
        "    print('print', n, file=sys.stderr)\n"
        "    logging.warning('log %d', n)\n"
        "raise SystemError('the last word \\udcff é')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8")
    lines = ended.stderr.splitlines()
    assert lines[:200] == [f"{word} {n}" for n in range(100) for word in ("print", "log")]
    assert lines[200].startswith("Traceback")
    assert lines[-1] == "SystemError: the last word \\udcff é"
