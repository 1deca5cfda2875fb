"""CallEnded: what the log is told of a call, and that the event stays as it was."""

import logging

import pytest
from tests.calls.world import World

from mcp_junction.calls.events import CallEnded, log_call
from mcp_junction.calls.pipeline import compose
from mcp_junction.calls.stages.record import RecordCall
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol import names
from mcp_junction.testing.fakes import MemorySink
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.outcome import Delivery

LOST = outcomes.failed(-32005, "lost", Delivery.UNKNOWN)
UNKNOWN = outcomes.failed(-32602, "unknown", Delivery.NOT_SENT)
OK = outcomes.result(b"{}")


def ended(method, name, route, outcome, seconds=0.1, waited=0.0):
    return CallEnded(LOCAL_OWNER, method, name, route, False, None, outcome, seconds, waited)


async def test_a_call_is_one_line_of_the_debug_log(caplog):
    route = World(FakeUpstream("s", ["t"])).snapshot.catalog.view(names.STDIO).find("s:t")
    with caplog.at_level(logging.DEBUG, "mcp_junction.telemetry"):
        log_call(ended("tools/call", "s__t", route, LOST))
        log_call(ended("tools/call", "x" * 300, None, UNKNOWN, 0.001))
        log_call(ended("resources/read", "a://b?key=secret", None, OK, 0.0))
        log_call(ended("tools/call", "s__t", route, OK, 3.1, 3.0))
    assert caplog.messages == [
        "tools/call of 's:t' at server 's': error, unknown after 100.0 ms",
        f"tools/call of '{'x' * 199} at no server: error, not_sent after 1.0 ms",
        "resources/read of 'a://b' at no server: ok after 0.0 ms",
        "tools/call of 's:t' at server 's': ok after 3100.0 ms, waited 3000.0 ms for a connection",
    ]


@pytest.mark.parametrize(("level", "lines"), [(logging.DEBUG, 1), (logging.INFO, 0)])
async def test_the_log_is_told_of_calls_only_where_it_is_to_hold_everything(caplog, level, lines):
    async def last(call):
        return OK

    with caplog.at_level(level, "mcp_junction.telemetry"):
        world = World(FakeUpstream("one"))
        await compose([RecordCall(world.clock, world.deadlines)], last)(world.call())
    assert len(caplog.messages) == lines


@pytest.mark.req("R-ANSWER")
async def test_a_sink_that_fails_harms_neither_the_others_nor_the_call(caplog):
    def broken(event):
        raise OSError("disk full")

    async def last(call):
        return OK

    world, before, after = World(FakeUpstream("one")), MemorySink(), MemorySink()
    handle = compose([RecordCall(world.clock, world.deadlines, [before, broken, after])], last)
    assert await handle(world.call()) is OK
    assert before.events == after.events
    assert len(after.calls) == 1
    assert "a sink of calls failed" in caplog.text


def test_the_event_cannot_be_changed():
    event = ended("tools/call", "s:t", None, OK)
    with pytest.raises(AttributeError, match="immutable"):
        event.outcome = LOST
