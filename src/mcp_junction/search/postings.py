"""Entries of the keyword index: how one is written, and HeldPostings, which scores with numpy.

The service has the index (``index.py``), and searches it alone where there is no process that
ranks. That process holds the entries of the terms that were searched for, and scores by the same
rule, but looks at all entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from mcp_junction.search.static_table import Matrix

NUMBER_SHIFT: Final = 10
"""An entry is a tool's number, shifted by so many bits, and the weight of the term there."""
WEIGHT_MASK: Final = (1 << NUMBER_SHIFT) - 1
STEPS: Final = 1000
"""The highest weight."""
_LEAST_SHARE: Final = 1e-4
"""Of a score: a term that gives less, since nearly all tools have it, is left out."""


class TermEntries(msgspec.Struct, frozen=True, gc=False):
    """Entries of a term, as bytes of uint32, that come after the first ``start`` of them."""

    term: str
    start: int
    entries: bytes


class HeldPostings:
    """The entries of some terms, for one epoch of the index."""

    def __init__(self) -> None:
        self.epoch = -1
        self._held: dict[str, NDArray[numpy.uint32]] = {}

    def take(self, epoch: int, words: Iterable[TermEntries]) -> None:
        """Hold entries, after those that are held of their term."""
        import numpy

        if epoch != self.epoch:
            self.epoch, self._held = epoch, {}
        for one in words:
            found = numpy.frombuffer(one.entries, "<u4")
            if one.start:
                held = self._held.get(one.term, found[:0])
                found = numpy.concatenate([held[: one.start], found])
            self._held[one.term] = found

    def has(self, epoch: int, counts: Mapping[str, int]) -> bool:
        """Whether so many entries of each term are held."""
        wanted = {term: count for term, count in counts.items() if count}
        if not wanted:
            return True
        held = self._held
        return epoch == self.epoch and all(
            term in held and len(held[term]) >= count for term, count in wanted.items()
        )

    def score(self, counts: Mapping[str, int], visible: NDArray[numpy.bool_]) -> Matrix:
        """Score each number by the first entries of terms, of tools that are visible."""
        import numpy

        size, total = len(visible), int(numpy.count_nonzero(visible))
        rarities, numbers, weights = [], [], []
        for term, count in counts.items():
            entries = self._held[term][:count] if count else _nothing()
            if count and int(entries.max()) >> NUMBER_SHIFT >= size:  # of tools that came later
                entries = entries[entries >> NUMBER_SHIFT < size]
            found = entries >> NUMBER_SHIFT
            seen = visible[found]
            having = int(numpy.count_nonzero(seen))
            rarities.append(log(1 + (total - having + 0.5) / (having + 0.5)))
            numbers.append(found)
            weights.append((entries & WEIGHT_MASK) * seen)
        if not numbers:
            return numpy.zeros(size, numpy.float32)
        whole = sum(rarities) * STEPS
        parts = zip(numbers, weights, rarities, strict=True)
        telling = [one for one in parts if one[2] * STEPS > _LEAST_SHARE * whole]
        shares = [one * (rare / whole) for _, one, rare in telling]
        places = numpy.concatenate([found for found, *_ in telling])
        return numpy.bincount(places, numpy.concatenate(shares), size).astype(numpy.float32)


def _nothing() -> NDArray[numpy.uint32]:
    import numpy

    return numpy.zeros(0, numpy.uint32)
