"""Events: told once to every sink, whatever becomes of one of them."""

import pytest

from mcp_junction.telemetry.events import CallCompleted, ServerChanged, fan_out
from mcp_junction.testing.sink import MemorySink

EVENT = ServerChanged("s", "CONNECTED")


def test_without_sinks_nobody_is_told():
    assert fan_out([]) is None


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_sink_is_told_once(count):
    sinks = [MemorySink() for _ in range(count)]
    fan_out(sinks)(EVENT)
    assert [sink.events for sink in sinks] == [[EVENT]] * count


@pytest.mark.req("R-ANSWER")
def test_a_sink_that_fails_harms_neither_the_others_nor_the_call(caplog):
    def broken(event):
        raise OSError("disk full")

    before, after = MemorySink(), MemorySink()
    fan_out([before, broken, after])(EVENT)
    fan_out([broken])(EVENT)
    assert before.events == after.events == [EVENT]
    assert "a sink failed" in caplog.text


def test_events_cannot_be_changed():
    call = CallCompleted("me", "tools/call", "s", "s:t", "result", None, 0.1)
    with pytest.raises(AttributeError, match="immutable"):
        call.outcome = "error"
    with pytest.raises(AttributeError, match="immutable"):
        EVENT.state = "ERROR"
