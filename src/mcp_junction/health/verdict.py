"""HealthRecord: the rules that turn probes and calls of a server into a verdict.

    checks    1 failure in a row is logged, 2 make DEGRADED, 3 make FAILED (ERROR, and reconnect);
              an answer of 4xx is a warning and counts for nothing
    traffic   more than 20 % of the last 50 calls failed, and there were at least 10: DEGRADED
    recovery  2 good checks in a row, or 20 good calls in a row: HEALTHY, and all counts reset

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
MIN_CALLS: Final = 10
MAX_ERROR_RATE: Final = 0.2
GOOD_CHECKS: Final = 2
GOOD_CALLS: Final = 20


class HealthVerdict(StrEnum):
    """Whether a connected server is healthy. FAILED asks for a new connection."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


class ProbeKind(StrEnum):
    GOOD = "good"
    CLIENT_ERROR = "client_error"  # 3xx and 4xx: it answered, but refused the request
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
HEALTHY: Final = HealthVerdict.HEALTHY
DEGRADED: Final = HealthVerdict.DEGRADED


class ProbeResult(msgspec.Struct, frozen=True):
    """What one probe found, and how long it took."""

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


class HealthFacts(msgspec.Struct, frozen=True):
    """The health of a server at one moment; None stands for not known yet."""

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
    """Counts probes and calls of one server, and keeps the verdict that follows."""

    def __init__(self) -> None:
        self.enabled = True
        self.verdict = HealthVerdict.HEALTHY
        self._reachable: bool | None = None
        self._authenticated: bool | None = None
        self._has_evidence = False
        self.failed_checks = 0
        """How many checks in a row have failed."""
        self._good_checks = 0
        self._good_calls = 0
        self._calls: deque[bool] = deque(maxlen=WINDOW)
        self._failed_calls = 0
        self.is_steady = False
        """Whether it is healthy and all of its last calls were good: one more changes nothing."""
        self._seconds: float | None = None
        self._last_check: float | None = None
        self._detail = ""

    # -- input

    def note_connected(self) -> None:
        """Start anew: the counts were those of the connection before."""
        self._reachable = self._authenticated = self._has_evidence = True
        self._reset()

    def note_disconnected(self, *, reachable: bool, authenticated: bool | None = None) -> None:
        """Note that the link is gone, or could not be made; and why, as far as that is known."""
        self._reachable = reachable
        if authenticated is not None:
            self._authenticated = authenticated

    def add_probe(self, now: float, result: ProbeResult) -> HealthVerdict:
        """Count a probe, and return the verdict."""
        self._last_check = now
        self._reachable = result.kind in _ANSWERS
        if self._reachable:
            self._seconds = result.seconds
        if result.kind is ProbeKind.UNAUTHENTICATED:
            self._authenticated = False
        if result.kind is ProbeKind.GOOD:
            self._count_good_check()
        elif result.has_failed:
            self._count_failed_check(result)
        else:
            self._detail = result.detail  # a warning: it changes no count
        return self.verdict

    def count_good(self) -> bool:
        """Count a good call of a server that has had no others lately; whether it is such a one."""
        if self._failed_calls or self.verdict is not HEALTHY:
            return False
        self._good_calls += 1
        self._calls.append(True)
        self.is_steady = len(self._calls) == WINDOW
        return True

    def add_call(self, kind: CallKind) -> HealthVerdict:
        """Count a call, and return the verdict. Every call comes here: keep it cheap."""
        if kind is NEUTRAL or (kind is GOOD and self.count_good()):
            return self.verdict
        calls = self._calls
        if len(calls) == WINDOW and not calls[0]:
            self._failed_calls -= 1
        good = kind is GOOD
        calls.append(good)
        self.is_steady = False
        if good:
            self._good_calls += 1
            if self._good_calls >= GOOD_CALLS and self.verdict is DEGRADED:
                self._reset()
        else:
            self._good_calls = 0
            self._failed_calls += 1
            if self.verdict is HealthVerdict.HEALTHY and self._fails_too_often:
                self.verdict = HealthVerdict.DEGRADED
                self._detail = f"{self._failed_calls} of its last {len(calls)} calls failed"
        return self.verdict

    # -- output

    @property
    def error_rate(self) -> float:
        """The fraction of the last calls that failed."""
        return self._failed_calls / len(self._calls) if self._calls else 0.0

    def facts(self) -> HealthFacts:
        return HealthFacts(
            enabled=self.enabled,
            reachable=self._reachable,
            authenticated=self._authenticated,
            healthy=self.verdict is HealthVerdict.HEALTHY if self._has_evidence else None,
            verdict=self.verdict,
            response_time_ms=None if self._seconds is None else self._seconds * 1000,
            error_rate=self.error_rate,
            last_check=self._last_check,
            detail=self._detail,
        )

    @property
    def _fails_too_often(self) -> bool:
        return len(self._calls) >= MIN_CALLS and self.error_rate > MAX_ERROR_RATE

    def _count_good_check(self) -> None:
        self._has_evidence = True
        self.failed_checks = 0
        self._good_checks += 1
        if self.verdict is HealthVerdict.HEALTHY:
            self._detail = ""
        elif self.verdict is HealthVerdict.DEGRADED and self._good_checks >= GOOD_CHECKS:
            self._reset()

    def _count_failed_check(self, result: ProbeResult) -> None:
        self._has_evidence = True
        self._good_checks = 0
        self.failed_checks += 1
        self.is_steady = False
        self._detail = result.detail or result.kind.value
        if self.failed_checks >= FAILED_AFTER:
            self.verdict = HealthVerdict.FAILED
        elif self.failed_checks >= DEGRADED_AFTER and self.verdict is HealthVerdict.HEALTHY:
            self.verdict = HealthVerdict.DEGRADED

    def _reset(self) -> None:
        self.verdict = HealthVerdict.HEALTHY
        self.failed_checks = self._good_checks = self._good_calls = self._failed_calls = 0
        self._calls.clear()
        self.is_steady = False
        self._detail = ""
