"""Tally: what is counted of the calls of one tool; CallTallies: of all tools, bounded.

Calls are counted in the tallies of the current minute, and nowhere else. When the minute is over
they are taken out, to be stored, and added to the totals that Prometheus reads. The busiest pairs
of server and tool have totals of their own, all others share one; a pair that gets its own begins
at zero, so that no total ever becomes smaller. It reads no clock and no call.

Latencies are counts in bins, from which buckets of Prometheus and percentiles are read. Bins grow
by at most nine percent, so that a percentile is right within five; the bounds of the buckets are
among theirs, so that buckets are exact. Counts are sparse: bin → number of calls.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

LABELLED: Final = 150
"""Pairs of server and tool that have totals of their own."""
COUNTED: Final = 5_000
"""Pairs that are counted one by one in a minute."""
OTHER: Final = ("", "other")
"""The pair of all that is not counted one by one. No server has an empty id."""
_FADING: Final = 0.9
"""What is left of a pair's busyness after a minute."""
_CLEARLY: Final = 2.0
"""How much busier a pair must be to take the place of another."""

ToolKey = tuple[str, str]
"""The id of a server, and its own name for a tool."""

BUCKETS: Final = (10.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0)
"""The bounds of Prometheus' buckets, in milliseconds."""
_RATIO: Final = 1.09
_LEAST: Final = 0.001
_MOST: Final = 86_400_000.0


# -- latencies


def _make_bounds() -> tuple[float, ...]:
    bounds = [_LEAST]
    for low, high in pairwise((_LEAST, *BUCKETS, _MOST)):
        steps = math.ceil(math.log(high / low) / math.log(_RATIO))
        bounds += [low * (high / low) ** (step / steps) for step in range(1, steps)]
        bounds.append(high)
    return tuple(bounds)


BOUNDS: Final = _make_bounds()
"""The upper bound of each bin, in milliseconds; a last bin has what is beyond."""
_ENDS: Final = tuple(BOUNDS.index(bound) for bound in BUCKETS)

Bins = Mapping[int, int]


def count_in_bins(values: list[float], bounds: Sequence[float]) -> dict[int, int]:
    """Count many values at once, which is faster than one by one: bin → how many are in it.

    Sorts them. A bin has what is above the bound before its own, and not above its own.
    """
    values.sort()
    counts: dict[int, int] = {}
    done, total = 0, len(values)
    while done < total:
        place = bisect_left(bounds, values[done])
        end = total if place == len(bounds) else bisect_right(values, bounds[place], done)
        counts[place] = end - done
        done = end
    return counts


def add_bins(into: dict[int, int], more: Bins) -> None:
    """Add counts to others."""
    for number, count in more.items():
        into[number] = into.get(number, 0) + count


def count_in_buckets(bins: Bins) -> list[int]:
    """Return the calls within each bucket's bound, and at last all calls."""
    counts = [sum(n for place, n in bins.items() if place <= end) for end in _ENDS]
    return [*counts, sum(bins.values())]


def percentiles(bins: Bins, shares: Iterable[float]) -> list[float | None]:
    """Return the latency that each share (0.5, 0.95 …) of calls does not exceed; None for none."""
    places = sorted(bins)
    reached = list(accumulate(bins[place] for place in places))
    if not reached:
        return [None for _ in shares]
    wanted = (math.ceil(share * reached[-1]) for share in shares)
    return [_middle(places[bisect_left(reached, count)]) for count in wanted]


def _middle(place: int) -> float:
    """Return the geometric middle of a bin."""
    if place == 0:
        return _LEAST
    if place >= len(BOUNDS):
        return _MOST
    return math.sqrt(BOUNDS[place - 1] * BOUNDS[place])


# -- tallies


class Tally:
    """What was counted. Latencies are collected, and put into bins many at a time."""

    __slots__ = ("_bins", "_total_ms", "errors", "fallbacks", "retries", "times")

    def __init__(self) -> None:
        self.times: list[float] = []
        """Latencies in milliseconds that are in no bin yet: one for each call."""
        self.errors: dict[str, int] = {}
        """Failed calls by the type of error."""
        self.retries = 0
        self.fallbacks = 0
        self._bins: dict[int, int] = {}
        self._total_ms = 0.0

    def settle(self) -> None:
        """Put the latencies that were collected into their bins."""
        times, self.times = self.times, []
        self._total_ms += sum(times)
        add_bins(self._bins, count_in_bins(times, BOUNDS))

    @property
    def bins(self) -> dict[int, int]:
        """Calls by the bin of their latency."""
        if self.times:
            self.settle()
        return self._bins

    @property
    def total_ms(self) -> float:
        if self.times:
            self.settle()
        return self._total_ms

    @property
    def calls(self) -> int:
        return sum(self.bins.values())

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @classmethod
    def restore(
        cls,
        bins: Mapping[int, int],
        total_ms: float,
        errors: Mapping[str, int],
        retries: int,
        fallbacks: int,
    ) -> Tally:
        """Make one of what was stored."""
        made = cls()
        made._bins, made._total_ms, made.errors = dict(bins), total_ms, dict(errors)
        made.retries, made.fallbacks = retries, fallbacks
        return made

    def count_error(self, error: str) -> None:
        self.errors[error] = self.errors.get(error, 0) + 1

    def add(self, other: Tally) -> Tally:
        """Add what another one counted."""
        add_bins(self.bins, other.bins)
        for error, count in other.errors.items():
            self.errors[error] = self.errors.get(error, 0) + count
        self.retries += other.retries
        self.fallbacks += other.fallbacks
        self._total_ms += other.total_ms
        return self


def add_tallies(into: dict[ToolKey, Tally], more: Mapping[ToolKey, Tally]) -> None:
    """Add tallies to others, pair by pair."""
    for key, tally in more.items():
        into.setdefault(key, Tally()).add(tally)


def keep_busiest(tallies: Mapping[ToolKey, Tally], most: int) -> dict[ToolKey, Tally]:
    """Return the busiest tallies, and what is left as that of ``OTHER``."""
    if len(tallies) <= most:
        return dict(tallies)
    named = {key: tally for key, tally in tallies.items() if key != OTHER}
    order = sorted(named, key=lambda key: -named[key].calls)
    kept = {key: named[key] for key in order[:most]}
    rest = Tally()
    for tally in (*(named[key] for key in order[most:]), tallies.get(OTHER)):
        if tally is not None:
            rest.add(tally)
    return {**kept, OTHER: rest}


class CallTallies:
    """What was counted of all tools."""

    def __init__(self, labelled: int = LABELLED, counted: int = COUNTED) -> None:
        self._max_labelled = labelled
        self._max_counted = counted
        self.current: dict[ToolKey, Tally] = {}
        """What was counted in the current minute."""
        self._totals: dict[ToolKey, Tally] = {}
        self._other = Tally()
        self._busyness: dict[ToolKey, float] = {}

    def open(self, key: ToolKey) -> Tally:
        """Return the tally of a pair for the current minute."""
        tally = self.current.get(key)
        if tally is None:
            if len(self.current) >= self._max_counted:
                key = OTHER
            if key != OTHER and key not in self._totals and len(self._totals) < self._max_labelled:
                self._totals[key] = Tally()
            tally = self.current.setdefault(key, Tally())
        return tally

    def take_minute(self) -> dict[ToolKey, Tally]:
        """Return what was counted since the last time, and begin anew."""
        taken, self.current = self.current, {}
        for key, tally in taken.items():
            self._totals.get(key, self._other).add(tally)
        self._rank(taken)
        return taken

    def totals(self) -> dict[ToolKey, Tally]:
        """Return what was counted since the beginning, of the busiest pairs and of all others."""
        found = {key: Tally().add(tally) for key, tally in self._totals.items()}
        other = Tally().add(self._other)
        for key, tally in self.current.items():
            found.get(key, other).add(tally)
        if other.bins:
            found[OTHER] = other
        return found

    def _rank(self, minute: Mapping[ToolKey, Tally]) -> None:
        """Give totals of their own to pairs that are clearly busier than some that have them."""
        busy = self._busyness
        for key in list(busy):
            busy[key] *= _FADING
            if busy[key] < 0.5 and key not in self._totals:
                del busy[key]
        for key, tally in minute.items():
            if key != OTHER:
                busy[key] = busy.get(key, 0.0) + tally.calls
        if len(self._totals) < self._max_labelled:
            return
        for key in self._waiting():
            idlest = min(self._totals, key=lambda one: busy.get(one, 0.0))
            if busy[key] <= _CLEARLY * busy.get(idlest, 0.0):
                break
            del self._totals[idlest]
            self._totals[key] = Tally()

    def _waiting(self) -> Iterable[ToolKey]:
        """Return the busiest pairs without totals of their own, the busiest first."""
        without = (key for key in self._busyness if key not in self._totals)
        return sorted(without, key=lambda key: -self._busyness[key])[: self._max_labelled]
