"""How it ends: what runs is finished, children go, the exit status is 0."""

import asyncio
import os
import signal
import sys

import pytest
from tests.plugin_journeys import scripted


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.req("J-EOF")
async def test_at_the_end_of_input_running_calls_are_finished_and_children_end(junction, gate):
    client = await junction({"one": scripted(), "two": scripted()})
    pids = [(await client.read(f"{key}:about"))["pid"] for key in ("one", "two")]
    running = await client.under_way("one:wait", gate=str(gate))
    client.close_stdin()
    gate.open()
    assert (await client.answer(running))["result"]["content"][0]["text"] == "the gate was opened"
    assert await client.ended() == 0
    assert not any(alive(pid) for pid in pids)


@pytest.mark.req("J-EOF")
async def test_requests_sent_just_before_the_end_of_input_are_answered(launch):
    client = await launch({"one": scripted("echo")})
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "pipe"}}
    ids = [client.ask("initialize", hello), client.ask("tools/list"), client.begin("one:echo")]
    client.close_stdin()
    for frame_id in ids:
        assert "result" in await client.answer(frame_id)
    assert await client.ended() == 0


@pytest.mark.req("J-EOF")
async def test_a_call_that_does_not_end_is_not_waited_for_for_ever(junction):
    client = await junction({"one": scripted()}, drain_ms=200)
    running = await client.under_way("one:hold")
    client.close_stdin()
    error = (await client.answer(running))["error"]
    assert error["code"] == -32000
    assert error["data"]["delivery"] == "unknown"
    assert await client.ended() == 0


@pytest.mark.req("J-EOF")
async def test_it_ends_when_its_input_ends_before_a_word_was_said(launch):
    client = await launch({"one": scripted("echo")})
    assert await client.end() == 0
    assert client.lines == []


@pytest.mark.req("J-EOF")
async def test_a_last_line_without_a_line_feed_counts(launch):
    client = await launch({})
    client.process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    client.close_stdin()
    assert (await client.answer(1))["result"] == {}
    assert await client.ended() == 0


@pytest.mark.req("J-EOF")
async def test_a_server_that_does_not_care_is_ended_all_the_same(launch, gate):
    stubborn = (
        "import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        " open(sys.argv[1], 'w').write(str(os.getpid())); signal.pause()"
    )
    entry = {"command": sys.executable, "args": ["-S", "-c", stubborn, str(gate)]}
    client = await launch({"one": entry})
    pid = int(await gate.said())
    assert await client.end() == 0
    assert not alive(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_lets_running_calls_finish_and_exits_0(junction, gate, number):
    client = await junction({"one": scripted()})
    pid = (await client.read("one:about"))["pid"]
    running = await client.under_way("one:wait", gate=str(gate))
    client.signal(number)
    gate.open()
    assert "result" in await client.answer(running)
    assert await client.ended() == 0
    assert not alive(pid)


async def test_a_signal_that_comes_twice_at_once_lets_running_calls_finish_too(junction, gate):
    """As where whoever started us passes on what the terminal has sent us already."""
    client = await junction({"one": scripted()})
    running = await client.under_way("one:wait", gate=str(gate))
    client.signal(signal.SIGINT)
    client.signal(signal.SIGINT)
    gate.open()
    assert "result" in await client.answer(running)
    assert await client.ended() == 0


async def test_who_asks_again_is_not_kept_waiting(junction):
    client = await junction({"one": scripted()}, drain_ms=3_600_000)
    answer = asyncio.ensure_future(client.answer(await client.under_way("one:hold")))
    while not answer.done():
        client.signal(signal.SIGINT)
        await asyncio.wait({answer}, timeout=0.3)
    assert answer.result()["error"]["data"]["delivery"] == "unknown"
    assert await client.ended() == 0


async def test_a_signal_after_the_end_of_input_is_the_second_word(junction):
    """Clients close our input, wait a little, send a signal, and kill us soon after."""
    client = await junction({"one": scripted()}, "--debug", drain_ms=3_600_000)
    running = await client.under_way("one:hold")
    client.close_stdin()
    await client.complaint("the input has ended")
    client.signal(signal.SIGTERM)
    assert (await client.answer(running))["error"]["data"]["delivery"] == "unknown"
    assert await client.ended() == 0


async def test_a_signal_does_not_wait_for_ever_and_every_call_is_answered(junction):
    client = await junction({"one": scripted()}, drain_ms=200)
    running = [await client.under_way("one:hold") for _ in range(3)]
    client.signal(signal.SIGTERM)
    for frame_id in running:
        error = (await client.answer(frame_id))["error"]
        assert error["code"] == -32000
        assert error["data"]["delivery"] == "unknown"
    assert await client.ended() == 0
