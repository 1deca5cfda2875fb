"""Backoff: the delay before the next attempt to reconnect to a server.

Exponential with full jitter; at most one second in the first two minutes, then up to thirty, and
without end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PATIENT_AFTER: Final = 120.0
"""Seconds of an outage after which delays may be long."""
EAGER_CAP: Final = 1.0
PATIENT_CAP: Final = 30.0
FIRST: Final = 0.1


def delay(attempt: int, down_for: float, random: Callable[[], float]) -> float:
    """Seconds before attempt ``attempt`` (0 is the first), after ``down_for`` seconds of outage."""
    cap = EAGER_CAP if down_for < PATIENT_AFTER else PATIENT_CAP
    return float(random() * min(cap, FIRST * 2.0 ** min(attempt, 16)))
