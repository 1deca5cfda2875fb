"""Vectors: how they are kept (little-endian float32), and what is computed with them.

numpy is imported by what computes, and that runs in the worker process (``worker_main.py``):
``numbers`` is all that the service itself may call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Matrix = NDArray[numpy.float32]


def packed(matrix: Matrix) -> list[bytes]:
    """Each row as it is kept."""
    return [row.astype("<f4").tobytes() for row in matrix]


def stacked(vectors: Sequence[bytes]) -> Matrix:
    """Vectors as the rows of a matrix. Raises ValueError when they are not of one length."""
    import numpy

    return numpy.stack([numpy.frombuffer(one, "<f4") for one in vectors]).astype(numpy.float32)


def mean(vectors: Sequence[bytes]) -> bytes:
    """The mean of vectors, of which there is at least one."""
    import numpy

    return packed(stacked(vectors).mean(axis=0, dtype=numpy.float64)[None, :])[0]


def numbers(vector: bytes) -> list[float]:
    """A vector as numbers, without numpy."""
    import struct

    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
