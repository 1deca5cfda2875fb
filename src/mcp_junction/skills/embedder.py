"""Embedder: turns texts into vectors, which are stored as little-endian float32.

WordVectors uses the table that search uses (``search/static_table.py``). numpy is imported only by
functions that run in a worker process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

from mcp_junction.search import static_table
from mcp_junction.search.static_table import StaticTable

if TYPE_CHECKING:
    from mcp_junction.search.static_table import Matrix

MODEL: Final = f"{static_table.MODEL}/tool"
"""The id of the model and of what it embeds: a tool by itself, without its server."""


def pack_rows(matrix: Matrix) -> list[bytes]:
    """Convert the rows of a matrix to stored vectors."""
    return [row.astype("<f4").tobytes() for row in matrix]


def stack_vectors(vectors: Sequence[bytes]) -> Matrix:
    """Make a matrix of stored vectors. Raises ValueError when their lengths differ."""
    import numpy

    return numpy.stack([numpy.frombuffer(one, "<f4") for one in vectors]).astype(numpy.float32)


def mean(vectors: Sequence[bytes]) -> bytes:
    """Compute the mean of vectors, of which there is at least one."""
    import numpy

    return pack_rows(stack_vectors(vectors).mean(axis=0, dtype=numpy.float64)[None, :])[0]


def to_floats(vector: bytes) -> list[float]:
    """Convert a stored vector to numbers, without numpy."""
    import struct

    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


class Embedder(Protocol):
    """Turns texts into vectors. Called in the worker process: it may be slow."""

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text, of length 1 (or 0, for a text without words)."""
        ...


class WordVectors:
    """Embeds texts with the static table, which the first use loads."""

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        return pack_rows(_load().embed(texts))


@cache
def _load() -> StaticTable:
    return StaticTable.load()
