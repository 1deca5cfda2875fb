"""Breaker: keeps calls from a server or a tool that keeps failing (R-BREAKER). The whole machine.

    CLOSED ──failures reach the threshold──▶ OPEN ──the cooldown is over──▶ HALF_OPEN
       ▲                                      ▲                               │    │
       │                                      └────────── a failure ──────────┘    │
       └──────────── as many successes as half-open admits at once ───────────────┘

- There is a circuit for each tool of a server, which counts timeouts and 5xx, and one for the whole
  server (tool ``*``), which counts link failures. A call needs both; what it meets goes to both.
- Failures count while they are consecutive: a success begins again at 0. What says nothing about
  the server (a cancellation, waiting for a link) changes nothing.
- When two or more agents called within the window, which is the cooldown, one agent's failures
  count for half of the threshold at most, rounded down (but for 1 at least). Two halves of an odd
  threshold do not add up to it: two agents open it when both have used up theirs.
- OPEN admits nothing. The first call after the cooldown makes it HALF_OPEN, which admits a few at
  once and waits for their ends.
- What ends after its circuit has changed its state is not counted.
- The clock is the wall's, because states are stored and restored. When it was put back, the
  cooldown begins anew: it never lasts longer than it should. HALF_OPEN restores as OPEN.

Nothing is stored or waited for here: ``take_changes`` returns what has to be stored and told.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from mcp_junction.resilience.failures import BreakerCount, Failure

WHOLE_SERVER: Final = "*"
"""Stands for the tool in the circuit of a whole server."""
_AGENTS: Final = 3
"""So many of the agents that called last are kept: more make no difference."""


class BreakerState(StrEnum):
    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


CLOSED: Final = BreakerState.CLOSED  # for the call path, see protocol/versions.py
OPEN: Final = BreakerState.OPEN
HALF_OPEN: Final = BreakerState.HALF_OPEN
GAUGE: Final = {CLOSED: 0, OPEN: 1, HALF_OPEN: 2}


class BreakerSettings(msgspec.Struct, frozen=True):
    """When circuits open, for how many seconds, and how many calls test them afterwards."""

    threshold: int = 5
    cooldown: float = 60.0
    half_open_max: int = 3


class BreakerRow(msgspec.Struct, frozen=True):
    """The state of one circuit, as it is stored and shown."""

    server_id: str
    tool_name: str
    state: BreakerState
    failure_count: int = 0
    success_count: int = 0
    last_failure_time: float | None = None
    opened_at: float | None = None
    retry_at: float | None = None

    @property
    def circuit_key(self) -> str:
        return f"{self.server_id}:{self.tool_name}"


class _Effect(StrEnum):
    """What the end of an attempt says to a circuit."""

    SUCCESS = "success"
    FAILURE = "failure"
    NOTHING = "nothing"


_SUCCESS: Final = _Effect.SUCCESS
_FAILURE: Final = _Effect.FAILURE
_NOTHING: Final = _Effect.NOTHING


class Breaker:
    """One circuit."""

    __slots__ = (
        "_agents",
        "_failures",
        "_latest",
        "_settings",
        "_testing",
        "epoch",
        "failure_count",
        "last_failure_time",
        "opened_at",
        "server_id",
        "state",
        "success_count",
        "tool_name",
    )

    def __init__(self, server_id: str, tool_name: str, settings: BreakerSettings) -> None:
        self.server_id = server_id
        self.tool_name = tool_name
        self.state = CLOSED
        self.epoch = 0
        """Another number after each change of state."""
        self.failure_count = 0
        """Failures in a row, whoever's they were."""
        self.success_count = 0
        """Successes while half-open."""
        self.last_failure_time: float | None = None
        self.opened_at: float | None = None
        self._settings = settings
        self._testing = 0
        """Attempts that are under way while half-open."""
        self._failures: dict[str, int] = {}
        """The failures in a row of each agent."""
        self._agents: dict[str, float] = {}
        """The agents that called last, the latest at the end, and when."""
        self._latest = ""

    def remaining(self, now: float) -> float:
        """Seconds of the cooldown that are left; 0 unless it is open."""
        if self.opened_at is None:
            return 0.0
        if now < self.opened_at:  # the clock was put back
            self.opened_at = now
        return max(0.0, self.opened_at + self._settings.cooldown - now)

    def wait(self, now: float) -> float | None:
        """None when a call may pass now; else the seconds after which to try again."""
        if self.state is CLOSED:
            return None
        if self.state is OPEN:
            return self.remaining(now) or None
        return None if self._testing < self._settings.half_open_max else 0.0

    def enter(self, agent: str, now: float) -> bool:
        """Let a call in that ``wait`` let pass; True when this changed the state."""
        agents = self._agents
        if agent != self._latest:
            self._latest = agent
            if agents.pop(agent, None) is None and len(agents) >= _AGENTS:
                del agents[next(iter(agents))]
        agents[agent] = now
        if self.state is CLOSED:
            return False
        is_new = self.state is OPEN
        if is_new:
            self._turn(HALF_OPEN)
        self._testing += 1
        return is_new

    def leave(self, effect: _Effect, agent: str, epoch: int, now: float) -> bool:
        """Take in how a call ended that came in at ``epoch``; True when this changed the state."""
        if epoch != self.epoch:
            return False
        if self.state is HALF_OPEN:
            self._testing -= 1
            return self._test(effect, now)
        if effect is _SUCCESS:
            if self.failure_count:
                self.failure_count = 0
                self._failures.clear()
        elif effect is _FAILURE:
            self._count(agent, now)
            if self._is_over(now):
                self._open(now)
                return True
        return False

    def reset(self) -> bool:
        """Close it and forget everything; True when this changed the state."""
        was_closed = self.state is CLOSED
        self._turn(CLOSED)
        self.failure_count = 0
        self.last_failure_time = None
        self._failures.clear()
        self._agents.clear()
        self._latest = ""
        return not was_closed

    def row(self) -> BreakerRow:
        retry_at = None
        if self.state is OPEN and self.opened_at is not None:
            retry_at = self.opened_at + self._settings.cooldown
        return BreakerRow(
            self.server_id,
            self.tool_name,
            self.state,
            self.failure_count,
            self.success_count,
            self.last_failure_time,
            self.opened_at,
            retry_at,
        )

    def restore(self, row: BreakerRow, now: float) -> None:
        """Take over a stored state. What was being tested when we stopped is open."""
        if row.state is CLOSED:
            return
        self._turn(OPEN)
        self.failure_count = row.failure_count
        self.last_failure_time = row.last_failure_time
        self.opened_at = min(row.opened_at if row.opened_at is not None else now, now)

    def _test(self, effect: _Effect, now: float) -> bool:
        if effect is _FAILURE:
            self.failure_count += 1
            self.last_failure_time = now
            self._open(now)
            return True
        if effect is _SUCCESS:
            self.success_count += 1
            if self.success_count >= self._settings.half_open_max:
                self._turn(CLOSED)
                self.failure_count = 0
                self._failures.clear()
                return True
        return False

    def _count(self, agent: str, now: float) -> None:
        self.failure_count += 1
        self.last_failure_time = now
        self._failures[agent] = self._failures.get(agent, 0) + 1

    def _is_over(self, now: float) -> bool:
        """Whether the failures that count reach the threshold."""
        threshold = self._settings.threshold
        if self.failure_count < threshold:
            return False
        since = now - self._settings.cooldown
        agents = sum(at > since for at in self._agents.values())
        if agents < 2:
            return True
        most = max(1, threshold // 2)
        counted = sum(min(count, most) for count in self._failures.values())
        return counted >= min(threshold, agents * most)

    def _open(self, now: float) -> None:
        self._turn(OPEN)
        self.opened_at = now

    def _turn(self, state: BreakerState) -> None:
        self.state = state
        self.epoch += 1
        self.success_count = self._testing = 0
        if state is CLOSED:
            self.opened_at = None


class Permit(NamedTuple):
    """What a call holds that both of its circuits let in."""

    server: Breaker
    server_epoch: int
    tool: Breaker
    tool_epoch: int
    agent: str


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

    def admit(self, server_id: str, tool_name: str, agent: str, now: float) -> Permit | CircuitOpen:
        """Let a call in, or say which circuit does not. Every permit is given back by ``end``."""
        server, tool = self._get(server_id, WHOLE_SERVER), self._get(server_id, tool_name)
        if server.state is not CLOSED or tool.state is not CLOSED:
            for circuit in (server, tool):
                wait = circuit.wait(now)
                if wait is not None:
                    return CircuitOpen(circuit.row(), wait)
        for circuit in (server, tool):
            if circuit.enter(agent, now):
                self._changes.append(circuit.row())
        return Permit(server, server.epoch, tool, tool.epoch, agent)

    def end(self, permit: Permit, failure: Failure | None, now: float) -> None:
        """Take in how a call ended; ``failure`` is None when it went well."""
        server, tool = permit.server, permit.tool
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
        for circuit in self._of(server_id, None):
            del self._circuits[circuit.server_id, circuit.tool_name]

    def restore(self, rows: list[BreakerRow], now: float) -> None:
        """Take over the stored states."""
        for row in rows:
            self._get(row.server_id, row.tool_name).restore(row, now)

    def rows(self, server_id: str | None = None, tool_name: str | None = None) -> list[BreakerRow]:
        """Return the state of every circuit there is, in the order of their keys."""
        found = [
            circuit.row()
            for circuit in self._circuits.values()
            if server_id in (None, circuit.server_id) and tool_name in (None, circuit.tool_name)
        ]
        return sorted(found, key=lambda row: (row.server_id, row.tool_name))

    def state(self, server_id: str, tool_name: str) -> BreakerState:
        """Return the state of one circuit; of one that was never used, too."""
        circuit = self._circuits.get((server_id, tool_name))
        return circuit.state if circuit is not None else CLOSED

    def take_changes(self) -> list[BreakerRow]:
        """Return each circuit that changed its state since this was asked last."""
        if not self._changes:
            return []
        taken, self._changes = self._changes, []
        return taken

    def _get(self, server_id: str, tool_name: str) -> Breaker:
        key = server_id, tool_name
        found = self._circuits.get(key)
        if found is None:
            found = self._circuits[key] = Breaker(server_id, tool_name, self._settings)
        return found

    def _of(self, server_id: str, tool_name: str | None) -> list[Breaker]:
        return [
            circuit
            for circuit in self._circuits.values()
            if circuit.server_id == server_id and tool_name in (None, circuit.tool_name)
        ]


_WELL: Final = (_SUCCESS, _SUCCESS)
_NEITHER: Final = (_NOTHING, _NOTHING)


def _effects(failure: Failure | None) -> tuple[_Effect, _Effect]:
    """Return what the end of a call says to its server's circuit, and to its tool's.

    An answer, whichever it is, shows that the server can be reached.
    """
    if failure is None:
        return _WELL
    if failure.counts is BreakerCount.SERVER:
        return _FAILURE, _NOTHING
    if failure.counts is BreakerCount.TOOL:
        return _SUCCESS if failure.has_answer else _NOTHING, _FAILURE
    return _WELL if failure.has_answer else _NEITHER
