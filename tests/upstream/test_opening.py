"""Opening a link is bounded: whoever must start the program may be stuck."""

import asyncio
import os
import signal
import sys

import pytest

from mcp_junction.app import Junction
from mcp_junction.config.load import load
from mcp_junction.errors import Phase
from mcp_junction.testing import processes
from mcp_junction.upstream.state import ServerState
from mcp_junction.upstream.upstream import Upstream

BOUND = 20.0
CONFIG = """{
  "mcpServers": {
    "first": {"command": %r, "args": ["-m", "mcp_junction", "demo", "clock"]},
    "second": {"command": %r, "args": ["-m", "mcp_junction", "demo", "clock"],
               "junction": {"isolation": "per-session"}}
  },
  "junction": {"start_timeout_ms": 3000}
}"""


@pytest.fixture
async def junction(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text((CONFIG % (sys.executable, sys.executable)).replace("'", '"'))
    async with Junction(load(str(path), {}, {})) as found:
        found.greet()
        async with asyncio.timeout(BOUND):
            await found.wait_until_settled()
        yield found


async def test_a_stuck_warden_does_not_hang_a_start(junction):
    assert junction.servers["first"].state is ServerState.CONNECTED
    warden = junction._factory._warden._running.process.pid
    children = {child.pid for child in processes.below(warden)}
    session = junction.open_session(lambda frame: None)
    os.kill(warden, signal.SIGSTOP)
    try:
        twin: Upstream = junction.servers["second"].for_session(session, session.hello)
        async with asyncio.timeout(BOUND):
            await twin.settled.wait()
        assert twin.state is ServerState.ERROR
        assert twin.error.phase is Phase.STARTUP
        assert "was not started within 3 s" in str(twin.error)
    finally:
        os.kill(warden, signal.SIGCONT)
    # It was told to start one and then to end it: nothing is left of it when it has caught up.
    another: Upstream = junction.servers["second"].for_session(object(), session.hello)
    async with asyncio.timeout(BOUND):
        await another.settled.wait()
        assert another.state is ServerState.CONNECTED
        while len({child.pid for child in processes.below(warden)} - children) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
