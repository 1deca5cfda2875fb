"""Backoff: how long to wait before the next attempt to bring a server back.

Full jitter, at most a second apart in the first two minutes, then up to thirty, never giving up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PATIENT_AFTER: Final = 120.0
EAGER_CAP: Final = 1.0
PATIENT_CAP: Final = 30.0
FIRST: Final = 0.1


def delay(attempt: int, down_for: float, random: Callable[[], float]) -> float:
    """Seconds to wait before attempt ``attempt`` (0 is the first), ``down_for`` seconds in."""
    cap = EAGER_CAP if down_for < PATIENT_AFTER else PATIENT_CAP
    return float(random() * min(cap, FIRST * 2.0 ** min(attempt, 16)))
