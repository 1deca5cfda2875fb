"""Breakers: the circuits of all servers and their tools, and which of them let a call pass.

A call needs two: its tool's, which counts timeouts and 5xx, and its server's (tool ``*``), which
counts link failures. One circuit by itself is ``breaker.py``. Nothing is stored here:
``take_changes`` returns what has to be stored and told.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from mcp_junction.resilience.breaker import (
    CLOSED,
    FAILURE,
    NOTHING,
    SUCCESS,
    WHOLE_SERVER,
    Breaker,
    BreakerRow,
    BreakerSettings,
    BreakerState,
    Effect,
)
from mcp_junction.resilience.failures import BreakerScope, Failure


class Permit(msgspec.Struct, frozen=True):
    """What a call holds that both of its circuits let in. Calls that are alike share one."""

    server: Breaker
    server_epoch: int
    tool: Breaker
    tool_epoch: int
    agent: str

    @property
    def is_calm(self) -> bool:
        """Whether both circuits are closed and count no failures: a success changes nothing."""
        return self.server.is_calm and self.tool.is_calm


class CircuitPair:
    """The circuits of one tool and of its server; found once, then kept by who calls the tool."""

    __slots__ = ("last", "server", "tool")

    def __init__(self, server: Breaker, tool: Breaker) -> None:
        self.server = server
        self.tool = tool
        self.last = Permit(server, -1, tool, -1, "")
        """The permit of the last call that was let in while both were closed."""

    def permit(self, agent: str) -> Permit:
        """Make the permit of a call that is let in now."""
        return Permit(self.server, self.server.epoch, self.tool, self.tool.epoch, agent)


class CircuitOpen(NamedTuple):
    """Why a call was not let in."""

    circuit: BreakerRow
    wait: float
    """Seconds after which to try again; 0 when that depends on calls under way."""


class Breakers:
    """The circuits of all servers and their tools."""

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self._settings = settings or BreakerSettings()
        self._circuits: dict[tuple[str, str], Breaker] = {}
        self._changes: list[BreakerRow] = []

    def pair(self, server_id: str, tool_name: str | None) -> CircuitPair:
        """Return the circuits of a tool, or of calls to a server that are for none of its tools."""
        server = self._get(server_id, WHOLE_SERVER)
        if tool_name is None:
            return CircuitPair(server, Breaker(server_id, "", _NEVER))
        return CircuitPair(server, self._get(server_id, tool_name))

    def admit(self, pair: CircuitPair, agent: str, now: float) -> Permit | CircuitOpen:
        """Let a call in, or say which circuit does not. Every permit is given back by ``end``."""
        server, tool, last = pair.server, pair.tool, pair.last
        if (
            agent == last.agent == server.latest == tool.latest
            and server.epoch == last.server_epoch
            and tool.epoch == last.tool_epoch
        ):  # as nearly always
            server.latest_at = tool.latest_at = now
            return last
        if server.state is CLOSED and tool.state is CLOSED:
            server.note(agent, now)
            tool.note(agent, now)
            last = pair.last = pair.permit(agent)
            return last
        for circuit in (server, tool):
            wait = circuit.wait(now)
            if wait is not None:
                return CircuitOpen(circuit.row(), wait)
        for circuit in (server, tool):
            if circuit.enter(agent, now):
                self._changes.append(circuit.row())
        return pair.permit(agent)

    def end(self, permit: Permit, failure: Failure | None, now: float) -> None:
        """Take in how a call ended; ``failure`` is None when it went well."""
        server, tool = permit.server, permit.tool
        if failure is None and server.is_calm and tool.is_calm:
            return
        on_server, on_tool = _effects(failure)
        if server.leave(on_server, permit.agent, permit.server_epoch, now):
            self._changes.append(server.row())
        if tool.leave(on_tool, permit.agent, permit.tool_epoch, now):
            self._changes.append(tool.row())

    def reset(self, server_id: str, tool_name: str | None = None) -> None:
        """Close the circuit of a tool, or all of a server, as when its connection changes."""
        for circuit in self._of(server_id, tool_name):
            if circuit.reset():
                self._changes.append(circuit.row())

    def forget(self, server_id: str) -> None:
        """Drop the circuits of a server that is no more."""
        self._circuits = {key: one for key, one in self._circuits.items() if key[0] != server_id}

    def restore(self, rows: list[BreakerRow], now: float) -> None:
        """Take over the stored states."""
        for row in rows:
            self._get(row.server_id, row.tool_name).restore(row, now)

    def rows(self, server_id: str | None = None, tool_name: str | None = None) -> list[BreakerRow]:
        """Return the state of every circuit there is, in the order of their keys."""
        found = [circuit.row() for circuit in self._of(server_id, tool_name)]
        return sorted(found, key=lambda row: (row.server_id, row.tool_name))

    def state(self, server_id: str, tool_name: str) -> BreakerState:
        """Return the state of one circuit; of one that was never used, too."""
        circuit = self._circuits.get((server_id, tool_name))
        return circuit.state if circuit is not None else CLOSED

    @property
    def has_changes(self) -> bool:
        """Whether a circuit has changed its state since ``take_changes``."""
        return bool(self._changes)

    def take_changes(self) -> list[BreakerRow]:
        """Return each circuit that changed its state since this was asked last."""
        taken, self._changes = self._changes, []
        return taken

    def _get(self, server_id: str, tool_name: str) -> Breaker:
        key = server_id, tool_name
        found = self._circuits.get(key)
        if found is None:
            found = self._circuits[key] = Breaker(server_id, tool_name, self._settings)
        return found

    def _of(self, server_id: str | None, tool_name: str | None) -> list[Breaker]:
        """Find the circuits of a server and a tool; None is any."""
        return [
            circuit
            for circuit in self._circuits.values()
            if server_id in (None, circuit.server_id) and tool_name in (None, circuit.tool_name)
        ]


_NEVER: Final = BreakerSettings(threshold=2**62)
"""Of a circuit that never opens."""
_WELL: Final = (SUCCESS, SUCCESS)
_NEITHER: Final = (NOTHING, NOTHING)


def _effects(failure: Failure | None) -> tuple[Effect, Effect]:
    """Return what the end of a call says to its server's circuit, and to its tool's.

    An answer, whichever it is, shows that the server can be reached.
    """
    if failure is None:
        return _WELL
    if failure.counts is BreakerScope.SERVER:
        return FAILURE, NOTHING
    if failure.counts is BreakerScope.TOOL:
        return SUCCESS if failure.has_answer else NOTHING, FAILURE
    return _WELL if failure.has_answer else _NEITHER
