"""HeldPostings and VectorSpace: what the process that ranks holds of tools, with numpy.

HeldPostings has the entries of the keyword index (``index.py``) for the terms that were searched
for. It scores by the same rule as the index, which the service searches alone where there is no
such process, but looks at all entries. VectorSpace has the vectors of one model, as rows of int8
that are each multiplied by a number: a quarter of the memory of float32, and faster, since fewer
bytes have to be read. A cosine is off by less than a hundredth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Any, Final

import numpy

from mcp_junction.search.index import NUMBER_SHIFT, STEPS, WEIGHT_MASK
from mcp_junction.search.vectors import TermEntries

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mcp_junction.search.static_table import Matrix

    Mask = NDArray[numpy.bool_]
    Numbers = NDArray[numpy.int64]

_LEAST_SHARE: Final = 1e-4
"""Of a score: a term that gives less, since nearly all tools have it, is left out."""
_NOTHING: Final = numpy.zeros(0, numpy.uint32)


class HeldPostings:
    """The entries of some terms, for one epoch of the index."""

    def __init__(self) -> None:
        self.epoch = -1
        self._held: dict[str, NDArray[numpy.uint32]] = {}

    def take(self, epoch: int, words: Iterable[TermEntries]) -> None:
        """Hold entries, after those that are held of their term."""
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

    def score(self, counts: Mapping[str, int], visible: Mask) -> Matrix:
        """Score each number by the first entries of terms, of tools that are visible."""
        size, total = len(visible), int(numpy.count_nonzero(visible))
        rarities, numbers, weights = [], [], []
        for term, count in counts.items():
            entries = self._held[term][:count] if count else _NOTHING
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


_FIRST_SIZE: Final = 1024
_BLOCK: Final = 512
"""Rows that are made float32 at a time: as many as stay in the processor's cache."""
_MOST: Final = 127


class VectorSpace:
    """The vectors of one model, by the numbers of tools."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self._rows = numpy.zeros((_FIRST_SIZE, dimensions), numpy.int8)
        self._scales = numpy.zeros(_FIRST_SIZE, numpy.float32)
        """What each row is multiplied by: 0 where there is none."""
        self.has = numpy.zeros(_FIRST_SIZE, bool)

    def __len__(self) -> int:
        return int(self.has.sum())

    def put(self, numbers: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Set rows. Raises ValueError when a vector has other dimensions."""
        if any(len(vector) != 4 * self.dimensions for vector in vectors):
            raise ValueError(f"a vector does not have {self.dimensions} dimensions")
        given = numpy.frombuffer(b"".join(vectors), "<f4").reshape(-1, self.dimensions)
        size = max(numbers) + 1
        if size > len(self.has):
            size = max(size, len(self.has) * 5 // 4)
            self._rows, self._scales, self.has = (
                _grown(one, size) for one in (self._rows, self._scales, self.has)
            )
        scales = numpy.abs(given).max(axis=1) / _MOST
        self._rows[numbers] = numpy.rint(given / numpy.maximum(scales, 1e-30)[:, None])
        self._scales[numbers] = scales
        self.has[numbers] = True

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget rows, if they are there."""
        known = [number for number in numbers if number < len(self.has)]
        self.has[known], self._scales[known] = False, 0

    def cosines(self, queries: Matrix, numbers: Numbers) -> Matrix:
        """Return a row for each query with the cosines of these tools, whose numbers ascend.

        Tools without a vector have 0.
        """
        found = numpy.zeros((len(numbers), len(queries)), numpy.float32)
        known = numbers[: int(numpy.searchsorted(numbers, len(self.has)))]
        if not len(known):
            return found.T
        block = numpy.empty((_BLOCK, self.dimensions), numpy.float32)
        has_all = int(known[-1] - known[0]) + 1 == len(known)
        for start in range(0, len(known), _BLOCK):
            some = known[start : start + _BLOCK]
            rows = self._rows[some[0] : some[-1] + 1] if has_all else self._rows[some]
            floats = block[: len(some)]
            numpy.copyto(floats, rows)
            numpy.matmul(floats, queries.T, out=found[start : start + len(some)])
        found[: len(known)] *= self._scales[known][:, None]
        return found.T


def _grown(values: NDArray[Any], size: int) -> NDArray[Any]:
    """Return a larger array; what is not set yet takes no memory."""
    found = numpy.zeros((size, *values.shape[1:]), values.dtype)
    found[: len(values)] = values
    return found
