"""The stdio listener on real pipes: it sees the client go, whatever it is waiting for."""

import asyncio
import os

import pytest
from tests.listener.backends import FakeBackend

from mcp_junction.listener.dispatch import Dispatcher
from mcp_junction.listener.stdio import StdioListener
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import names
from mcp_junction.sessions.session import Session
from mcp_junction.tasks import TaskScope

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
BOUND = 10.0


@pytest.mark.req("J-EOF")
async def test_the_end_of_the_input_is_seen_while_nothing_is_read():
    given, typed = os.pipe()
    shown, written = os.pipe()
    tasks = TaskScope("test")
    listener = StdioListener(Dispatcher(FakeBackend(), tasks), 1000)
    await listener.open(given, written)
    listener.session = Session(LOCAL_OWNER, names.STDIO, listener.send)
    listener.pause()  # as when the client does not read what it asked for
    os.write(typed, PING)
    serving = asyncio.create_task(listener.serve())
    done, _ = await asyncio.wait({serving}, timeout=1)
    assert not done
    os.close(typed)
    await asyncio.wait_for(serving, BOUND)
    await listener.close()
    assert os.read(shown, 1000) == b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
    os.close(shown)
    await tasks.close()
