"""StaticTable: embeds texts with one vector per piece of a word, without a network or a GPU.

A text's vector is the sum of its pieces' vectors, scaled to length 1; a piece's vector has its
weight (rare pieces count more) in its length. ``training/static_table.py`` trains the table;
``data/LICENSES.md`` says of what. numpy is imported when a table is loaded, which only the worker
processes do. Vectors are stored and sent as little-endian float32.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcp_junction.search.wordpiece import WordPiece

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Matrix = NDArray[numpy.float32]

KIND: Final = "static-"
"""The beginning of the ids of all tables."""
MODEL: Final = f"{KIND}256-8f3b4d15"
"""The id of the table: the last part is the beginning of its SHA-256. Stored beside each vector."""
DIMENSIONS: Final = 256
ROWS_FILE: Final = "static_rows.npy"
SCALES_FILE: Final = "static_scales.npy"


class StaticTable:
    """The table: a row of int8 for each piece, and the number that each row is multiplied by."""

    def __init__(self, rows: NDArray[numpy.int8], scales: NDArray[numpy.float16]) -> None:
        import numpy

        self.rows = rows
        self.scales = scales
        self._factors = numpy.asarray(scales, numpy.float32)
        self._split = WordPiece()

    @classmethod
    @cache
    def load(cls) -> StaticTable:
        """Load the table that is shipped, once; its rows stay in their file, which is mapped."""
        import numpy

        folder = Path(str(resources.files("mcp_junction.search").joinpath("data")))
        return cls(
            numpy.load(folder / ROWS_FILE, mmap_mode="r", allow_pickle=False),
            numpy.load(folder / SCALES_FILE, allow_pickle=False),
        )

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return a vector for each text, of length 1 (or 0, for a text without known words)."""
        import numpy

        found = numpy.zeros((len(texts), self.rows.shape[1]), numpy.float32)
        for number, text in enumerate(texts):
            pieces = self._split(text)
            if pieces:
                found[number] = self._factors[pieces] @ self.rows[pieces].astype(numpy.float32)
        return scale_rows(found)


def scale_rows(matrix: Matrix) -> Matrix:
    """Scale the rows of a matrix to length 1; rows of zeros stay."""
    import numpy

    lengths = numpy.linalg.norm(matrix, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    return numpy.asarray(matrix / lengths, numpy.float32)


# -- vectors as bytes


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
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
