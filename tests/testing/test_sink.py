"""MemorySink keeps what it is told, in order."""

from mcp_junction.calls.events import CallEnded
from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.testing.fakes import MemorySink
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.events import ServerChange, ServerChanged
from mcp_junction.upstream.state import ServerState


async def test_events_are_kept_and_sorted_by_kind() -> None:
    memory = MemorySink()
    outcome = outcomes.result(b"{}")
    call = CallEnded(LOCAL_OWNER, "tools/call", "led:record", None, False, None, outcome, 0.1)
    change = ServerChanged(FakeUpstream("led"), ServerChange.STATE, ServerState.CONNECTED)
    for event in (change, call, change):
        memory(event)
    assert memory.events == [change, call, change]
    assert memory.calls == [call]
    assert memory.changes == [change, change]
