"""The rules of a server's health: what was seen goes in, a verdict comes out.

    checks    1 failure in a row is logged, 2 make DEGRADED, 3 make FAILED (ERROR, and reconnect);
              an answer of 4xx is a warning and counts for nothing
    traffic   more than 20 % of the last 50 calls failed, and there were at least 10: DEGRADED
    back      2 good checks in a row, or 20 good calls in a row: HEALTHY, and the slate is clean

Which failures of calls count is R-BREAKER's: connection failures, timeouts and 5xx do; a tool's own
errors, wrong parameters, 4xx, cancellations and a client's own short deadline do not.

Enabled, reachable, authenticated and healthy are four facts. None follows from another: a server
that refuses our credentials is reachable, and one that was switched off may be in perfect health.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Final

import msgspec

DEGRADED_AFTER: Final = 2
FAILED_AFTER: Final = 3
WINDOW: Final = 50
FEWEST: Final = 10
WORST_RATE: Final = 0.2
GOOD_CHECKS: Final = 2
GOOD_CALLS: Final = 20


class HealthVerdict(StrEnum):
    """Of a connected server. FAILED asks for a new connection."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


class ProbeKind(StrEnum):
    GOOD = "good"
    CLIENT_ERROR = "client_error"  # 3xx and 4xx: it is there, and does not like the question
    UNAUTHENTICATED = "unauthenticated"  # 401 and 403
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"


class CallKind(StrEnum):
    """How a call ended, as far as the health of its server is concerned."""

    GOOD = "good"
    FAILED = "failed"
    NEUTRAL = "neutral"


# For the call path, see protocol/versions.py.
GOOD: Final = CallKind.GOOD
FAILED: Final = CallKind.FAILED
NEUTRAL: Final = CallKind.NEUTRAL
DEGRADED: Final = HealthVerdict.DEGRADED


class Probed(msgspec.Struct, frozen=True):
    """What one active check found, and how long it took."""

    kind: ProbeKind
    seconds: float = 0.0
    detail: str = ""

    @property
    def has_failed(self) -> bool:
        return self.kind in _FAILURES


_FAILURES: Final = (ProbeKind.SERVER_ERROR, ProbeKind.TIMEOUT, ProbeKind.UNREACHABLE)
_ANSWERS: Final = (
    ProbeKind.GOOD,
    ProbeKind.CLIENT_ERROR,
    ProbeKind.UNAUTHENTICATED,
    ProbeKind.SERVER_ERROR,
)


class Facts(msgspec.Struct, frozen=True):
    """What is known of a server's health; None is not known yet."""

    enabled: bool
    reachable: bool | None
    authenticated: bool | None
    healthy: bool | None
    verdict: HealthVerdict
    response_time_ms: float | None
    error_rate: float
    last_check: float | None
    """When it was last checked, by the clock that was passed in."""
    detail: str
    """The words of the last failure or warning; empty when all is well."""


class HealthRecord:
    """What was seen of one server, and what follows."""

    def __init__(self) -> None:
        self.enabled = True
        self.verdict = HealthVerdict.HEALTHY
        self._reachable: bool | None = None
        self._authenticated: bool | None = None
        self._known = False
        self._failed_checks = 0
        self._good_checks = 0
        self._good_calls = 0
        self._calls: deque[bool] = deque(maxlen=WINDOW)
        self._failed_calls = 0
        self._seconds: float | None = None
        self._checked: float | None = None
        self._detail = ""

    # -- what is seen

    def connected(self) -> None:
        """It has greeted us: a new life, and what was counted was of the old one."""
        self._reachable = self._authenticated = self._known = True
        self._forgive()

    def disconnected(self, *, reachable: bool, authenticated: bool | None = None) -> None:
        """Its link is gone, or could not be made; why is told as far as it is known."""
        self._reachable = reachable
        if authenticated is not None:
            self._authenticated = authenticated

    def probe(self, now: float, found: Probed) -> HealthVerdict:
        """An active check has ended."""
        self._checked = now
        self._reachable = found.kind in _ANSWERS
        if self._reachable:
            self._seconds = found.seconds
        if found.kind is ProbeKind.UNAUTHENTICATED:
            self._authenticated = False
        if found.kind is ProbeKind.GOOD:
            self._good_check()
        elif found.has_failed:
            self._failed_check(found)
        else:
            self._detail = found.detail  # a warning: it changes no count
        return self.verdict

    def call(self, kind: CallKind) -> HealthVerdict:
        """A call has ended. On the way of every call: it must cost next to nothing."""
        if kind is NEUTRAL:
            return self.verdict
        calls = self._calls
        if len(calls) == WINDOW and not calls[0]:
            self._failed_calls -= 1
        good = kind is GOOD
        calls.append(good)
        if good:
            self._good_calls += 1
            if self._good_calls >= GOOD_CALLS and self.verdict is DEGRADED:
                self._forgive()
        else:
            self._good_calls = 0
            self._failed_calls += 1
            if self.verdict is HealthVerdict.HEALTHY and self._fails_too_often:
                self.verdict = HealthVerdict.DEGRADED
                self._detail = f"{self._failed_calls} of its last {len(calls)} calls failed"
        return self.verdict

    # -- what follows

    @property
    def error_rate(self) -> float:
        """The part of the last calls that failed."""
        return self._failed_calls / len(self._calls) if self._calls else 0.0

    @property
    def failed_checks(self) -> int:
        """How many checks in a row have failed."""
        return self._failed_checks

    def facts(self) -> Facts:
        return Facts(
            enabled=self.enabled,
            reachable=self._reachable,
            authenticated=self._authenticated,
            healthy=self.verdict is HealthVerdict.HEALTHY if self._known else None,
            verdict=self.verdict,
            response_time_ms=None if self._seconds is None else self._seconds * 1000,
            error_rate=self.error_rate,
            last_check=self._checked,
            detail=self._detail,
        )

    @property
    def _fails_too_often(self) -> bool:
        return len(self._calls) >= FEWEST and self.error_rate > WORST_RATE

    def _good_check(self) -> None:
        self._known = True
        self._failed_checks = 0
        self._good_checks += 1
        if self.verdict is HealthVerdict.HEALTHY:
            self._detail = ""
        elif self.verdict is HealthVerdict.DEGRADED and self._good_checks >= GOOD_CHECKS:
            self._forgive()

    def _failed_check(self, found: Probed) -> None:
        self._known = True
        self._good_checks = 0
        self._failed_checks += 1
        self._detail = found.detail or found.kind.value
        if self._failed_checks >= FAILED_AFTER:
            self.verdict = HealthVerdict.FAILED
        elif self._failed_checks >= DEGRADED_AFTER and self.verdict is HealthVerdict.HEALTHY:
            self.verdict = HealthVerdict.DEGRADED

    def _forgive(self) -> None:
        self.verdict = HealthVerdict.HEALTHY
        self._failed_checks = self._good_checks = self._good_calls = self._failed_calls = 0
        self._calls.clear()
        self._detail = ""
