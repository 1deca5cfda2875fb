"""Events: told once to every sink, whatever becomes of one of them."""

import logging

import pytest

from mcp_junction.telemetry.events import ServerChanged, fan_out
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
    with caplog.at_level(logging.DEBUG, "mcp_junction.telemetry"):
        emit = fan_out([])
        for event in (EVENT, ServerChanged("s", "ERROR", "it left")):
            emit(event)
    assert caplog.messages == [
        "server 's' is CONNECTED",
        "server 's' is ERROR: it left",
    ]


def test_events_cannot_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        EVENT.state = "ERROR"
