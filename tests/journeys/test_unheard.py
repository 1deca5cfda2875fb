"""Nobody reads what it says on stderr: calls are answered, and it ends, all the same."""

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator

import pytest
from tests.journeys.client import Client
from tests.plugin_journeys import own_environment, scripted

SMALLEST = 4096  # bytes that a pipe holds
LOUD = scripted(last_words=("y" * 400 + "\n") * 20)


@pytest.fixture
async def unheard(config, executable) -> AsyncIterator[tuple]:
    """Start the program; also gives the end of the pipe that its stderr is, which nobody reads."""
    started: list[tuple[Client, int]] = []

    async def start(servers, *options):
        ours, theirs = os.pipe()
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, SMALLEST)
        words = [*executable, "--config", str(config(servers)), *options]
        client = await Client.start(words, own_environment(), stderr=theirs)
        os.close(theirs)
        started.append((client, ours))
        await client.introduce()
        return client, ours

    yield start
    for client, ours in started:
        os.close(ours)
        await client.kill()


def left_in(pipe: int) -> str:
    """What a pipe holds whose writer has ended."""
    return b"".join(iter(lambda: os.read(pipe, 65536), b"")).decode()


@pytest.mark.req("R-ISOLATE", "R-ANSWER")
async def test_calls_are_answered_though_nobody_reads_what_is_wrong_with_others(unheard):
    client, pipe = await unheard({"bad": LOUD, "worse": LOUD, "good": scripted("count")})
    assert list(await client.tools()) == ["good:count"]
    assert [await client.told("good:count") for _ in range(3)] == ["1", "2", "3"]
    assert await client.end() == 0
    assert "failed" in left_in(pipe)


@pytest.mark.req("R-ISOLATE")
async def test_a_signal_ends_it_though_nobody_reads_what_it_says(unheard):
    client, _ = await unheard({"bad": LOUD, "good": scripted("count")})
    await client.tools()
    client.signal(signal.SIGTERM)
    assert await client.ended() == 0


async def test_what_a_late_reader_finds_is_whole_and_in_order(unheard, tmp_path):
    log = tmp_path / "log"
    client, pipe = await unheard({"bad": LOUD, "worse": LOUD}, "--log-file", str(log))
    await client.tools()
    client.close_stdin()
    said = await asyncio.to_thread(left_in, pipe)
    assert said == log.read_text()
    assert await client.ended() == 0
    assert log.read_text().count("y" * 400) == 40
