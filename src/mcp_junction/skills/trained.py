"""TrainedModel: the linear models that ``training/skills.py`` trains, and how verdicts are pooled.

Two softmax models, of weighted terms and of the vector, are averaged in logarithms; the latter
counts twice, since it knows more words. A tool's own verdict is then mixed with the mean of its
server's tools and with the verdict on the server's own title and description. It runs in the worker
process, which has numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import resources
from math import log, sqrt
from typing import TYPE_CHECKING, Any, Final

import numpy

from mcp_junction.search.static_table import MODEL as TABLE

if TYPE_CHECKING:
    from mcp_junction.search.static_table import Matrix
    from mcp_junction.skills.features import ToolText

WEIGHTS: Final = "trained.npz"
OF_TERMS: Final = 1 / 3
"""The share of the model of terms in a text's verdict, beside that of the vector."""
OWN: Final = 0.2
"""The share of a tool's own verdict, beside the mean of its server's tools."""
TOOLS: Final = 0.6
"""The share of the tools' verdicts, beside that on the server's title and description."""
_PLAIN: Final = 0.8
_PLAIN_FACTOR: Final = 3.6
"""A tool whose own verdict is as sure as this counts so many times as much: servers with tools of
all kinds have those, too."""
TERMS_SCALE: Final = 3.0
VECTOR_SCALE: Final = 8.0
"""How long the two inputs are made, beside the constant 1."""


class TrainedModel:
    """The weights, and what is computed with them. All verdicts are logarithms of shares."""

    def __init__(self, arrays: Any) -> None:
        self.skills: list[str] = _read_lines(arrays["skills"])
        """The ids of the skills that it knows, in the order of its columns."""
        self.descriptions: list[str] = _read_lines(arrays["descriptions"])
        """What those skills were described by: one that is described anew is another."""
        self.temperature = float(arrays["temperature"])
        self._terms = {term: n for n, term in enumerate(_read_lines(arrays["terms"]), 1)}
        self._rarity = arrays["rarity"].astype(numpy.float32)
        self._of_terms = arrays["of_terms"] * arrays["of_terms_scale"].astype(numpy.float32)
        self._of_vector = arrays["of_vector"] * arrays["of_vector_scale"].astype(numpy.float32)
        if _read_lines(arrays["table"]) != [TABLE]:
            raise ValueError(f"{WEIGHTS} was trained with another table; run training/skills.py")

    @classmethod
    def load(cls) -> TrainedModel:
        """Load the weights that are shipped."""
        with resources.files("mcp_junction.skills").joinpath("data", WEIGHTS).open("rb") as file:
            return cls(numpy.load(file, allow_pickle=False))

    def judge(self, texts: Sequence[ToolText], vectors: Matrix) -> Matrix:
        """Return the verdict on each text by itself."""
        by_terms = numpy.stack([self._weigh(text) for text in texts])
        by_vector = VECTOR_SCALE * vectors @ self._of_vector[:-1] + self._of_vector[-1]
        return average(normalize(by_terms), normalize(by_vector))

    def _weigh(self, text: ToolText) -> Matrix:
        """Return the sum of the weights of a text's terms."""
        found = weigh_terms(text, self._terms, self._rarity)
        total: Matrix = self._of_terms[0].copy()
        for term, weight in found.items():
            total += weight * self._of_terms[term]
        return total

    def conclude(self, own: Matrix, pooled: Matrix | None) -> Matrix:
        """Return the verdicts on tools of a server, calibrated; of no server: on themselves."""
        if pooled is None:
            return own
        return normalize(mix(own, pooled) / self.temperature)


def average(by_terms: Matrix, by_vector: Matrix) -> Matrix:
    """Return the verdicts of both models together."""
    return normalize(OF_TERMS * by_terms + (1 - OF_TERMS) * by_vector)


def pool(tools: Matrix, server: Matrix) -> Matrix:
    """Return what a server adds to its tools' verdicts: their mean, and that on its own text."""
    pooled: Matrix = TOOLS * (1 - OWN) * tools + (1 - TOOLS) * server
    return pooled


def mix(own: Matrix, pooled: Matrix) -> Matrix:
    """Mix tools' own verdicts with what their server adds."""
    is_plain = numpy.exp(own).max(axis=1, keepdims=True) >= _PLAIN
    share = numpy.where(is_plain, _PLAIN_FACTOR, 1.0) * TOOLS * OWN
    return numpy.asarray(share * own + pooled, numpy.float32)


def weigh_terms(text: ToolText, known: dict[str, int], rarity: Any) -> dict[int, float]:
    """Return the known terms of a text by number, each with its weight."""
    counts = Counter(known[term] for term in text.terms() if term in known)
    raw = {term: (1 + log(count)) * float(rarity[term]) for term, count in counts.items()}
    length = sqrt(sum(weight * weight for weight in raw.values())) or 1.0
    return {term: TERMS_SCALE * weight / length for term, weight in raw.items()}


def normalize(scores: Matrix) -> Matrix:
    """Turn rows of scores into logarithms of shares."""
    scores = numpy.asarray(scores, numpy.float32)
    scores = scores - scores.max(axis=1, keepdims=True)
    total: Matrix = scores - numpy.log(numpy.exp(scores).sum(axis=1, keepdims=True))
    return total


def _read_lines(array: Any) -> list[str]:
    """Read lines of text that are stored as an array of bytes."""
    return bytes(array).decode().split("\n")
