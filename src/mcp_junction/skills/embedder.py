"""Embedder: turns texts into vectors, which are stored as little-endian float32.

WordVectors reads word vectors from the ``wordllama`` wheel, whose own module is not imported: it
would load a client for downloads and set up logging. numpy is imported only by functions that run
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
    import numpy
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Matrix = NDArray[numpy.float32]


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


_PACKAGE: Final = "wordllama"
_TOKENIZER: Final = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_WEIGHTS: Final = Path("weights", "l2_supercat_256.safetensors")
_TABLE: Final = "embedding.weight"


class Embedder(Protocol):
    """Turns texts into vectors. Called in the worker process: it may be slow."""

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text, of length 1 (or 0, for a text without words)."""
        ...


class WordVectors:
    """Embeds a text as the mean of its tokens' vectors, which the first use loads."""

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        import numpy

        tokenizer, table = _load()
        found = numpy.zeros((len(texts), table.shape[1]), numpy.float32)
        for row, text in enumerate(texts):
            # One by one: a batch would be spread over all processors, which are not ours alone.
            tokens = tokenizer.encode(text, add_special_tokens=False).ids
            if tokens:
                found[row] = table[tokens].astype(numpy.float32).mean(axis=0)
        lengths = numpy.linalg.norm(found, axis=1, keepdims=True)
        lengths[lengths == 0] = 1
        return pack_rows((found / lengths).astype(numpy.float32))


@cache
def _load() -> tuple[Tokenizer, Matrix]:
    from tokenizers import Tokenizer

    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {_PACKAGE} is not installed")
    folder = Path(spec.origin).parent
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, _map_table(folder / _WEIGHTS)


def _map_table(file: Path) -> Matrix:
    """Map the table of a safetensors file into memory.

    The file has the length of a JSON text, that text, and the numbers where the text says.
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
    """The type, shape and place of a table in a safetensors file."""

    dtype: str
    shape: tuple[int, int]
    data_offsets: tuple[int, int]
