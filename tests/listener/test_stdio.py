"""The stdio listener on real pipes: it sees the client go, whatever it is waiting for."""

import asyncio
import os
from typing import NamedTuple

import pytest
from tests.listener.backends import FakeBackend

from mcp_junction.listener import stdio
from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.listener.stdio import StdioListener
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import names
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope

ANSWER = b'{"jsonrpc":"2.0","id":1,"result":"%b"}\n' % (b"x" * 500_000)
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
BOUND = 30.0
PIPE = 1 << 16


class Client(NamedTuple):
    """The other ends of a listener's pipes."""

    listener: StdioListener
    types: int
    reads: int


@pytest.fixture
async def client():
    given, typed = os.pipe()
    shown, written = os.pipe()
    tasks = TaskScope("test")
    listener = StdioListener(Dispatcher(FakeBackend(), tasks), 1000, tasks)
    await listener.open(given, written)
    listener.session = Session(LOCAL_OWNER, names.STDIO, listener.send)
    yield Client(listener, typed, shown)
    os.close(shown)
    await tasks.close()


@pytest.mark.req("J-EOF")
async def test_the_end_of_the_input_is_seen_while_nothing_is_read(client):
    client.listener.pause()  # as when the client does not read what it asked for
    os.write(client.types, PING)
    serving = asyncio.create_task(client.listener.serve())
    done, _ = await asyncio.wait({serving}, timeout=1)
    assert not done
    os.close(client.types)
    await asyncio.wait_for(serving, BOUND)
    await client.listener.close()
    assert os.read(client.reads, 1000) == b'{"jsonrpc":"2.0","id":1,"result":{}}\n'


@pytest.fixture
async def unread(client):
    """A client that has closed its input, and has much to read."""
    os.close(client.types)
    await asyncio.wait_for(client.listener.serve(), BOUND)
    for _ in range(4):
        client.listener.send(ANSWER)
    return client


@pytest.mark.req("J-EOF")
async def test_who_reads_slowly_gets_everything(unread, caplog):
    unread.listener._patience = 1.0
    closing = asyncio.create_task(unread.listener.close())
    read = bytearray()
    while len(read) < 4 * len(ANSWER):  # which takes longer than anybody is waited for
        await asyncio.sleep(0.05)
        read += os.read(unread.reads, PIPE)
        # The loop goes on here and writes the rest anyhow; the program ends with the listener.
        assert not closing.done() or len(read) >= 4 * len(ANSWER) - 2 * PIPE
    await asyncio.wait_for(closing, BOUND)
    assert bytes(read) == 4 * ANSWER
    assert "lost" not in caplog.text


@pytest.mark.parametrize("told", [False, True])
async def test_who_reads_nothing_is_not_waited_for_and_that_is_said(
    unread, monkeypatch, caplog, told
):
    monkeypatch.setattr(stdio, "_HASTE", 0.1)
    unread.listener._patience = BOUND if told else 0.1
    if told:
        unread.listener.stop()
    await asyncio.wait_for(unread.listener.close(), BOUND)
    assert "bytes of answers are lost: the client did not read them" in caplog.text
