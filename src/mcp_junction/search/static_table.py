"""StaticTable: embeds texts with one vector per piece of a word, without a network or a GPU.

A text's vector is the sum of its pieces' vectors, scaled to length 1; a piece's vector has its
weight (rare pieces count more) in its length. ``training/static_table.py`` trains the table;
``data/LICENSES.md`` says of what. numpy is imported when a table is loaded, which only the worker
processes do. Vectors are stored and sent as little-endian float32.

WordPiece splits texts into the pieces of BERT's uncased vocabulary, in pure Python, as the
reference tokenizer does; but it does not truncate, pad, or mark the ends of a sentence.
"""

from __future__ import annotations

import re
import struct
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

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


UNKNOWN: Final = 100
"""The piece that stands for a word that cannot be split into known pieces."""
_LONGEST: Final = 100
"""Characters of the longest word that is looked at."""
_ASCII: Final = re.compile(r"[a-z0-9]+|[^a-z0-9\s\x00-\x1f\x7f]")
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


@cache
def vocabulary() -> list[str]:
    """Read the pieces; the number of a piece is its place in the list."""
    file = resources.files("mcp_junction.search").joinpath("data", "vocabulary.txt")
    return file.read_text("utf-8").splitlines()


class WordPiece:
    """Turns texts into numbers of pieces."""

    def __init__(self) -> None:
        self._numbers: Mapping[str, int] = {piece: n for n, piece in enumerate(vocabulary())}
        self._split = lru_cache(1 << 15)(self._split_word)

    def __call__(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces, in order."""
        found: list[int] = []
        for word in split_words(text):
            found += self._split(word)
        return found

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Split a word, each time at the end of the longest piece that it begins with."""
        found: list[int] = []
        start = 0
        while start < len(word) <= _LONGEST:
            number, start = self._longest_piece(word, start)
            if number is None:
                return (UNKNOWN,)
            found.append(number)
        return tuple(found) or (UNKNOWN,)

    def _longest_piece(self, word: str, start: int) -> tuple[int | None, int]:
        mark = "##" if start else ""
        for end in range(len(word), start, -1):
            number = self._numbers.get(mark + word[start:end])
            if number is not None:
                return number, end
        return None, start


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words without accents; each mark and ideograph stands alone."""
    text = text.lower()
    if text.isascii():
        return _ASCII.findall(text)
    return "".join(_separate(unicodedata.normalize("NFD", text))).split()


def _separate(text: str) -> Iterator[str]:
    """Yield the characters of a text, with spaces around those that stand alone."""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            yield " "
        elif category == "Mn" or category[0] == "C" or char == "\ufffd":
            continue
        elif _stands_alone(char, category):
            yield f" {char} "
        else:
            yield char


def _stands_alone(char: str, category: str) -> bool:
    if char.isascii():
        return not char.isalnum()
    return category[0] == "P" or any(low <= ord(char) <= high for low, high in _IDEOGRAPHS)
