"""Events: told once to every sink, whatever becomes of one of them."""

import logging

import pytest

from mcp_junction.telemetry.events import CallCompleted, ServerChanged, fan_out
from mcp_junction.testing.fakes import MemorySink

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


def test_the_log_is_told_only_where_it_is_to_hold_everything(caplog):
    called = CallCompleted("me", "tools/call", "s", "s:t", "error", "unknown", 0.1)
    unknown = CallCompleted("me", "tools/call", None, "x" * 300, "error", "not_sent", 0.001)
    read = CallCompleted("me", "resources/read", "s", "a://b?key=secret", "ok", None, 0.0)
    with caplog.at_level(logging.DEBUG, "mcp_junction.telemetry"):
        emit = fan_out([])
        for event in (EVENT, ServerChanged("s", "ERROR", "it left"), called, unknown, read):
            emit(event)
    assert caplog.messages == [
        "server 's' is CONNECTED",
        "server 's' is ERROR: it left",
        "tools/call of 's:t' at server 's': error, unknown after 100.0 ms",
        f"tools/call of '{'x' * 199} at no server: error, not_sent after 1.0 ms",
        "resources/read of 'a://b' at server 's': ok after 0.0 ms",
    ]


def test_events_cannot_be_changed():
    call = CallCompleted("me", "tools/call", "s", "s:t", "ok", None, 0.1)
    with pytest.raises(AttributeError, match="immutable"):
        call.outcome = "error"
    with pytest.raises(AttributeError, match="immutable"):
        EVENT.state = "ERROR"
