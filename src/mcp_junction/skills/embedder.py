"""Embedder: texts to vectors, and how vectors are stored (little-endian float32).

WordVectors reads them from the ``wordllama`` wheel, whose own module is not imported: it would
load a client for downloads and set up logging. numpy is imported only by what computes, which runs
in the worker process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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


_PACKAGE: Final = "wordllama"
_TOKENIZER: Final = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_WEIGHTS: Final = Path("weights", "l2_supercat_256.safetensors")
_TABLE: Final = "embedding.weight"


class Embedder(Protocol):
    """Makes vectors. Called in the worker process: it may take its time."""

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text, of length 1 (or 0, for a text without words)."""
        ...


class WordVectors:
    """The mean of the vectors of a text's tokens. The first use loads them, once a process."""

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        import numpy

        tokenizer, table = _loaded()
        found = numpy.zeros((len(texts), table.shape[1]), numpy.float32)
        for row, text in enumerate(texts):
            # One by one: a batch would be spread over all processors, which are not ours alone.
            tokens = tokenizer.encode(text, add_special_tokens=False).ids
            if tokens:
                found[row] = table[tokens].astype(numpy.float32).mean(axis=0)
        lengths = numpy.linalg.norm(found, axis=1, keepdims=True)
        lengths[lengths == 0] = 1
        return packed((found / lengths).astype(numpy.float32))


@cache
def _loaded() -> tuple[Tokenizer, Matrix]:
    from tokenizers import Tokenizer

    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {_PACKAGE} is not installed")
    folder = Path(spec.origin).parent
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, _mapped(folder / _WEIGHTS)


def _mapped(file: Path) -> Matrix:
    """The table of a safetensors file, left where it is: only what is looked up takes memory.

    The file is the size of a JSON text, that text, and the numbers where it says they are.
    """
    import numpy

    with file.open("rb") as data:
        size = int.from_bytes(data.read(8), "little")
        table = msgspec.json.decode(data.read(size), type=dict[str, _Tensor])[_TABLE]
    if table.dtype != "F16":
        raise ValueError(f"{file.name}: {table.dtype} instead of F16")
    begin = 8 + size + table.data_offsets[0]
    return numpy.memmap(file, numpy.float16, "r", begin, table.shape)


class _Tensor(msgspec.Struct):
    """Of what a table consists, and where in the file it lies."""

    dtype: str
    shape: tuple[int, int]
    data_offsets: tuple[int, int]
