"""Backoff: the delay before the next attempt to reconnect to a server, or to repeat a call.

To a server: exponential with full jitter; at most one second in the first two minutes, then up to
thirty, and without end. Of a call: 500 ms, 1 s, 2 s …, each ±20 %, at most 30 s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PATIENT_AFTER: Final = 120.0
"""Seconds of an outage after which delays may be long."""
EAGER_CAP: Final = 1.0
PATIENT_CAP: Final = 30.0
FIRST: Final = 0.1
JITTER: Final = 0.2
"""How much of a call's delay is up to chance, either way."""


def delay(attempt: int, down_for: float, random: Callable[[], float]) -> float:
    """Seconds before attempt ``attempt`` (0 is the first), after ``down_for`` seconds of outage."""
    cap = EAGER_CAP if down_for < PATIENT_AFTER else PATIENT_CAP
    return float(random() * min(cap, FIRST * 2.0 ** min(attempt, 16)))


def retry_delay(
    retry: int, base: float, factor: float, cap: float, random: Callable[[], float]
) -> float:
    """Seconds to wait before a call is repeated; ``retry`` 0 is the first repetition.

    The jitter comes before the cap, so no delay is longer than ``cap``. ``random`` returns a number
    from 0 to 1.
    """
    try:
        planned = base * factor**retry
    except OverflowError:
        return cap
    return min(cap, planned * (1.0 - JITTER + 2.0 * JITTER * random()))
