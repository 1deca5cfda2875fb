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

Nothing is stored or waited for here. ``breakers.py`` has the circuits of all servers and tools, and
decides by them about calls.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

WHOLE_SERVER: Final = "*"
"""Stands for the tool in the circuit of a whole server."""
_OTHERS: Final = 2
"""So many agents are kept beside the one that called last: more make no difference."""


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


class Effect(StrEnum):
    """What the end of an attempt says to a circuit."""

    SUCCESS = "success"
    FAILURE = "failure"
    NOTHING = "nothing"


SUCCESS: Final = Effect.SUCCESS
FAILURE: Final = Effect.FAILURE
NOTHING: Final = Effect.NOTHING


class Breaker:
    """One circuit."""

    __slots__ = (
        "_failures",
        "_others",
        "_settings",
        "_testing",
        "epoch",
        "failure_count",
        "is_calm",
        "last_failure_time",
        "latest",
        "latest_at",
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
        self.is_calm = True
        """Whether it is closed and counts no failures: a success then changes nothing."""
        self.success_count = 0
        """Successes while half-open."""
        self.last_failure_time: float | None = None
        self.opened_at: float | None = None
        self._settings = settings
        self._testing = 0
        """Attempts that are under way while half-open."""
        self._failures: dict[str, int] = {}
        """The failures in a row of each agent."""
        self.latest = ""
        """The agent that called last, and when; the others before it are in ``_others``."""
        self.latest_at = float("-inf")
        self._others: dict[str, float] = {}

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
        self.note(agent, now)
        if self.state is CLOSED:
            return False
        is_new = self.state is OPEN
        if is_new:
            self._turn(HALF_OPEN)
        self._testing += 1
        return is_new

    def note(self, agent: str, now: float) -> None:
        """Note that an agent calls now."""
        if agent != self.latest:
            others = self._others
            others.pop(agent, None)
            if self.latest:
                others[self.latest] = self.latest_at
            if len(others) > _OTHERS:
                del others[next(iter(others))]
            self.latest = agent
        self.latest_at = now

    def leave(self, effect: Effect, agent: str, epoch: int, now: float) -> bool:
        """Take in how a call ended that came in at ``epoch``; True when this changed the state."""
        if epoch != self.epoch:
            return False
        if self.state is HALF_OPEN:
            self._testing -= 1
            return self._test(effect, now)
        if effect is SUCCESS:
            if self.failure_count:
                self.failure_count, self.is_calm = 0, True
                self._failures.clear()
        elif effect is FAILURE:
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
        self._others.clear()
        self.latest, self.latest_at = "", float("-inf")
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

    def _test(self, effect: Effect, now: float) -> bool:
        if effect is FAILURE:
            self.failure_count += 1
            self.last_failure_time = now
            self._open(now)
            return True
        if effect is SUCCESS:
            self.success_count += 1
            if self.success_count >= self._settings.half_open_max:
                self._turn(CLOSED)
                self.failure_count = 0
                self._failures.clear()
                return True
        return False

    def _count(self, agent: str, now: float) -> None:
        self.failure_count += 1
        self.is_calm = False
        self.last_failure_time = now
        self._failures[agent] = self._failures.get(agent, 0) + 1

    def _is_over(self, now: float) -> bool:
        """Whether the failures that count reach the threshold."""
        threshold = self._settings.threshold
        if self.failure_count < threshold:
            return False
        since = now - self._settings.cooldown
        agents = sum(at > since for at in (self.latest_at, *self._others.values()))
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
        self.is_calm = state is CLOSED
        self.epoch += 1
        self.success_count = self._testing = 0
        if state is CLOSED:
            self.opened_at = None
