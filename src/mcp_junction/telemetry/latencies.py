"""Latencies as counts in bins, from which buckets of Prometheus and percentiles are read. Pure.

Bins grow by at most nine percent, so that a percentile is right within five; the bounds of the
buckets are among theirs, so that buckets are exact. Counts are sparse: bin → number of calls.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

BUCKETS: Final = (10.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0)
"""The bounds of Prometheus' buckets, in milliseconds."""
_RATIO: Final = 1.09
_LEAST: Final = 0.001
_MOST: Final = 86_400_000.0


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
    total = sum(bins.values())
    if not total:
        return [None for _ in shares]
    found: list[float | None] = []
    for share in shares:
        left = math.ceil(share * total)
        for place in sorted(bins):
            left -= bins[place]
            if left <= 0:
                found.append(_middle(place))
                break
    return found


def _middle(place: int) -> float:
    """Return the geometric middle of a bin."""
    if place == 0:
        return _LEAST
    if place >= len(BOUNDS):
        return _MOST
    return math.sqrt(BOUNDS[place - 1] * BOUNDS[place])
