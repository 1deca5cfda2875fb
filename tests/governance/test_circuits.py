"""Circuits beyond one process: stored, restored, reset and announced."""

import asyncio

import pytest
from tests.plugin_store import Opener

from mcp_junction.errors import StoreUnavailable
from mcp_junction.governance.failures import Circuits
from mcp_junction.resilience.breaker import BreakerSettings
from mcp_junction.resilience.breakers import CircuitOpen, Permit
from mcp_junction.resilience.failures import Failure, FailureKind
from mcp_junction.tasks import TaskScope
from mcp_junction.telemetry.bus import Bus
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream.events import ServerChange, ServerChanged
from mcp_junction.upstream.state import ServerState

NOW = 1_000_000.0
LATE, LOST = Failure(FailureKind.TIMEOUT), Failure(FailureKind.LINK)
BOUND = 30.0


class Process:
    """The circuits of one process on a store."""

    def __init__(self, store) -> None:
        self.now = NOW
        self.bus = Bus(store.events)
        self.circuits = Circuits(BreakerSettings(), store.circuits, self.bus, lambda: self.now)
        self.tasks = TaskScope("circuits")

    async def __aenter__(self):
        await self.bus.__aenter__()
        await self.circuits.restore()
        self.tasks.supervise("circuits", self.circuits.run)
        await asyncio.sleep(0)  # a task that has not begun has nothing to end
        return self

    async def __aexit__(self, *_):
        await self.tasks.close()  # which stores what is left
        await self.bus.__aexit__(None, None, None)

    def admit(self, tool: str = "t", server: str = "s") -> Permit | CircuitOpen:
        breakers = self.circuits.breakers
        return breakers.admit(breakers.pair(server, tool), "a", self.now)

    def fail(self, times: int, failure: Failure = LATE, tool: str = "t", server: str = "s") -> None:
        for _ in range(times):
            permit = self.admit(tool, server)
            assert isinstance(permit, Permit)
            self.circuits.breakers.end(permit, failure, self.now)
        self.circuits.announce_changes()

    def states(self) -> dict[str, str]:
        rows = self.circuits.breakers.rows()
        return {row.circuit_key: row.state.value for row in rows if row.state != "CLOSED"}


def changed(change: ServerChange, server_id: str) -> ServerChanged:
    upstream = FakeUpstream("one", server_id=server_id)
    return ServerChanged(upstream, change, ServerState.CONNECTED)


@pytest.mark.req("REQ-MCP-CALL-005")
async def test_an_open_circuit_is_open_after_a_restart_for_the_rest_of_its_time(store):
    async with Process(store) as first:
        first.fail(5)
        first.fail(5, LOST, server="other")
    async with Process(store) as second:
        assert second.states() == {"s:t": "OPEN", "other:*": "OPEN"}
        second.now += 59.0
        refused = second.admit()
        assert isinstance(refused, CircuitOpen)
        assert refused.wait == 1.0
        second.now += 1.0
        assert isinstance(second.admit(), Permit)


@pytest.mark.req("REQ-MCP-CALL-005")
async def test_what_was_being_tested_is_open_after_a_restart(store):
    async with Process(store) as first:
        first.fail(5)
        first.now += 60.0
        assert isinstance(first.admit(), Permit)
        first.circuits.announce_changes()
        assert first.states() == {"s:t": "HALF_OPEN"}
    async with Process(store) as second:
        assert second.states() == {"s:t": "OPEN"}


async def test_a_clock_that_was_put_back_does_not_keep_a_circuit_open(store):
    async with Process(store) as first:
        first.now += 1_000_000.0
        first.fail(5)
    async with Process(store) as second:
        refused = second.admit()
        assert isinstance(refused, CircuitOpen)
        assert refused.wait == 60.0


async def test_a_closed_circuit_stays_closed(store):
    async with Process(store) as first:
        first.fail(5)
        assert [row.state.value for row in first.circuits.reset("s", "t")] == ["CLOSED"]
        assert first.circuits.reset("s", "nothing") == []
    async with Process(store) as second:
        assert second.states() == {}


@pytest.mark.req("REQ-MCP-CALL-005")
async def test_a_server_that_is_reached_another_way_begins_anew_and_a_removed_one_is_forgotten(
    store,
):
    async with Process(store) as first:
        first.fail(5)
        first.fail(5, server="gone")
        first.circuits.follow(changed(ServerChange.STATE, "s"))
        assert first.states() == {"s:t": "OPEN", "gone:t": "OPEN"}
        first.circuits.follow(changed(ServerChange.REPLACED, "s"))
        first.circuits.follow(changed(ServerChange.REMOVED, "gone"))
        assert first.states() == {}
    async with Process(store) as second:
        assert second.states() == {}
        keys = [row.circuit_key for row in second.circuits.breakers.rows()]
        assert not [key for key in keys if key.startswith("gone")]


async def test_the_star_resets_all_of_a_server(store):
    async with Process(store) as first:
        first.fail(5, tool="t")
        first.fail(5, tool="t2")
        first.fail(5, LOST, tool="t3")
        assert set(first.states()) == {"s:*", "s:t", "s:t2"}
        first.circuits.reset("s", "*")
        assert first.states() == {}


async def test_opening_and_closing_are_announced(store):
    async with Process(store) as first:
        first.circuits.follow(changed(ServerChange.ADDED, "s"))
        first.fail(5)
        first.now += 60.0
        for _ in range(3):
            first.circuits.breakers.end(first.admit(), None, first.now)
        first.circuits.announce_changes()
        await asyncio.wait_for(first.bus.flush(), BOUND)
    events = await store.events.after(0)
    assert [event.type for event in events] == ["circuit.opened", "circuit.closed"]
    assert events[0].data["circuit_key"] == "s:t"
    assert events[0].data["server_name"] == "one"
    assert events[0].data["retry_at"] == NOW + 60.0


@pytest.mark.req("REQ-MCP-CALL-005")
async def test_a_row_that_somebody_else_wrote_is_none(store, dump):
    async with Process(store) as first:
        first.fail(5)
        first.fail(5, tool="t2")
    await dump.run("UPDATE circuits SET opened_at = 9e9 WHERE tool_name = 't2'")
    async with Process(store) as second:
        assert second.states() == {"s:t": "OPEN"}


class Broken:
    """A table whose store is away until it is mended."""

    def __init__(self, table) -> None:
        self.table = table
        self.is_away = True
        self.tried = asyncio.Event()

    def __getattr__(self, name):
        async def run(*args):
            self.tried.set()
            if self.is_away:
                raise StoreUnavailable("it is away")
            return await getattr(self.table, name)(*args)

        return run


@pytest.mark.req("REQ-MCP-CALL-005")
async def test_circuits_go_on_in_memory_while_the_store_is_away(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mcp_junction.governance.failures._RETRY", 0.01)
    store = await opener()
    broken = Broken(store.circuits)
    store.circuits = broken
    async with Process(store) as first:
        first.fail(5)
        await asyncio.wait_for(broken.tried.wait(), BOUND)
        assert first.states() == {"s:t": "OPEN"}
        assert isinstance(first.admit(), CircuitOpen)
        broken.is_away = False
    assert [row.circuit_key for row in await broken.table.all()] == ["s:t"]
