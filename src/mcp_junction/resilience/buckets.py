"""TokenBucket and CallWindow: how often something may be done, and how long to wait otherwise.

A bucket is for rates: it refills steadily, and a burst may empty it. A window is for quotas like
100 calls an hour: within any such hour no more than 100 pass. It is counted in sixtieths of its
length, so it may hold a call up for one of these longer than it must. Windows of a minute or more
are stored, and survive a restart. Which limits there are, and whose, the caller knows.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, NamedTuple

KEPT_FROM: Final = 60.0
"""Seconds from which on a window is stored."""
_SLOTS: Final = 60
_ENOUGH: Final = 1.0 - 1e-9
_MOST_BUCKETS: Final = 10_000


class TokenBucket:
    """Allows ``rate`` a second, and up to ``burst`` at once."""

    __slots__ = ("_at", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = max(1.0, burst)
        self._level = self.burst
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until one more is allowed; 0 when it is now."""
        if now != self._at:
            self._refill(now)
        return 0.0 if self._level >= _ENOUGH else (1.0 - self._level) / self.rate

    def take(self, now: float) -> None:
        """Count one more, which ``wait`` allowed just now."""
        self._level -= 1.0

    def is_full(self, now: float) -> bool:
        """Whether it is as good as new."""
        self._refill(now)
        return self._level >= self.burst

    def _refill(self, now: float) -> None:
        if now > self._at:
            level = self._level + (now - self._at) * self.rate
            self._level = level if level < self.burst else self.burst
        self._at = now


class WindowState(NamedTuple):
    """What is stored of a window: how many calls each slot has."""

    per: float
    slots: Mapping[int, int]


class CallWindow:
    """Allows ``calls`` within any ``per`` seconds."""

    __slots__ = ("_slot", "_slots", "_total", "calls", "per")

    def __init__(self, calls: int, per: float, state: WindowState | None = None) -> None:
        self.calls = calls
        self.per = per
        self._slot = per / _SLOTS
        self._slots: dict[int, int] = {}
        """How many calls each slot of time has, in order."""
        if state is not None and state.per == per:
            self._slots = dict(sorted(state.slots.items()))
        self._total = sum(self._slots.values())

    @property
    def is_kept(self) -> bool:
        """Whether it survives a restart."""
        return self.per >= KEPT_FROM

    @property
    def state(self) -> WindowState:
        return WindowState(self.per, dict(self._slots))

    def wait(self, now: float) -> float:
        self._expire(now)
        excess = self._total - self.calls + 1
        if excess <= 0:
            return 0.0
        for slot, count in self._slots.items():
            excess -= count
            if excess <= 0:
                return max((slot + 1) * self._slot + self.per - now, 1e-3)
        return self.per

    def take(self, now: float) -> None:
        slot = self._expire(now)
        self._slots[slot] = self._slots.get(slot, 0) + 1
        self._total += 1

    def _expire(self, now: float) -> int:
        """Drop the slots that have left the window; return the slot of ``now``."""
        current = math.floor(now / self._slot)
        if self._slots:
            latest = next(reversed(self._slots))
            if latest > current:  # the clock was put back: what was counted stays as recent
                self._slots = {s - latest + current: count for s, count in self._slots.items()}
            while self._slots:
                oldest = next(iter(self._slots))
                if (oldest + 1) * self._slot + self.per > now:
                    break
                self._total -= self._slots.pop(oldest)
        return current


class Limited(NamedTuple):
    """Which limit does not allow a call, and for how many seconds."""

    name: str
    wait: float


def take_from_each(buckets: Sequence[TokenBucket], now: float) -> bool:
    """Count a call against all of these, or against none; whether all of them allow it.

    What ``wait`` and ``take`` do, without their calls: most calls of most services come here.
    """
    for bucket in buckets:
        level, elapsed = bucket._level, now - bucket._at
        if elapsed > 0.0:  # else the clock was put back, or stands
            level += elapsed * bucket.rate
            if level > bucket.burst:
                level = bucket.burst
        bucket._at = now
        if level < _ENOUGH:
            bucket._level = level
            for before in buckets[: buckets.index(bucket)]:
                before._level += 1.0
            return False
        bucket._level = level - 1.0
    return True


class Buckets:
    """Buckets of one rate, one for each key: an agent, a server or a tool."""

    def __init__(self, rate: float, burst: float, limit: int = _MOST_BUCKETS) -> None:
        self.rate = rate
        self.burst = burst
        self._limit = limit
        self._buckets: dict[Hashable, TokenBucket] = {}
        self.sweeps = 0
        """Another number after buckets were dropped: those that somebody keeps may be others."""

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, key: Hashable, now: float) -> TokenBucket:
        """Return the bucket of a key."""
        found = self._buckets.get(key)
        if found is None:
            if len(self._buckets) >= self._limit:
                self._sweep(now)
            found = self._buckets[key] = TokenBucket(self.rate, self.burst, now)
        return found

    def _sweep(self, now: float) -> None:
        """Drop the full ones, which are as good as new; the oldest too when few are full."""
        self.sweeps += 1
        self._buckets = {k: b for k, b in self._buckets.items() if not b.is_full(now)}
        while len(self._buckets) > self._limit * 3 // 4:
            del self._buckets[next(iter(self._buckets))]
