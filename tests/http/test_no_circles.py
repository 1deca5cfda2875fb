"""What a session leaves behind goes by itself: the collector runs too seldom to be waited for."""

import gc
import json
from collections import Counter

import pytest
from tests.http.test_doors import PING, opened, post

from mcp_junction.calls.call import Call
from mcp_junction.listener.http.exchange import AsgiExchange
from mcp_junction.listener.http.replies import HttpReply
from mcp_junction.listener.http.sessions import HttpSession
from mcp_junction.listener.http.streams import EventStream
from mcp_junction.sessions.session import Session
from mcp_junction.sessions.stateless import StatelessClient

KINDS = (AsgiExchange, HttpSession, Session, EventStream, HttpReply)
KINDS += (Call, StatelessClient)
VERSION = "2026-07-28"
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "no:such",
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}
SAID = {"mcp_protocol_version": VERSION, "mcp_method": "tools/call", "mcp_name": "no:such"}


def alive() -> Counter[str]:
    return Counter(type(o).__name__ for o in gc.get_objects() if isinstance(o, KINDS))


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("listens", [False, True])
async def test_sessions_that_are_over_are_gone_without_the_collector(serving, uncollected, listens):
    gateway = await serving({})
    before = alive()
    for _ in range(10):
        session = await opened(gateway)
        assert (await post(gateway, PING, **session)).status == 200
        if listens:
            stream = await gateway.wire()
            stream.request("GET", "/mcp", accept="text/event-stream", **session)
            assert (await stream.response()).is_stream
        wire = await gateway.wire()
        wire.request("DELETE", "/mcp", **session)
        assert (await wire.response()).status == 200
        if listens:
            await stream.rest()
    left = alive() - before
    assert left.total() <= 3, left  # the last ones may still be on their way out


async def test_stateless_calls_that_are_over_are_gone_without_the_collector(serving, uncollected):
    gateway = await serving({})
    before = alive()
    for _ in range(10):
        answer = await post(gateway, json.dumps(CALL).encode(), **SAID)
        assert "unknown tool" in answer.words
    left = alive() - before
    assert left.total() <= 3, left
