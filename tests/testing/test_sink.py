"""MemorySink keeps what it is told, in order."""

from mcp_junction.telemetry.events import CallCompleted, ServerChanged, Sink
from mcp_junction.testing.fakes import MemorySink


def test_events_are_kept_and_sorted_by_kind() -> None:
    memory = MemorySink()
    sink: Sink = memory
    call = CallCompleted("me", "tools/call", "led", "led:record", "result", None, 0.1)
    change = ServerChanged("led", "CONNECTED")
    for event in (change, call, change):
        sink(event)
    assert memory.events == [change, call, change]
    assert memory.calls == [call]
    assert memory.changes == [change, change]
