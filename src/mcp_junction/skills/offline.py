"""LocalModel: the model in this process: vectors, the offline classifier, and clusters of tools.

OfflineClassifier is the TrainedModel for the skills that it was trained for, and zero-shot, by
comparing tools with the descriptions of skills, for those that operators have added or described
anew. It runs in the worker process, which has numpy, and loads weights at the first use.

TrainedModel is two softmax models that ``training/skills.py`` trains, of weighted terms and of the
vector. They are averaged in logarithms; the latter counts twice, since it knows more words. A
tool's own verdict is then mixed with the mean of its server's tools and with the verdict on the
server's own title and description.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from math import log, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from mcp_junction.search import static_table
from mcp_junction.search.minilm import MiniLm
from mcp_junction.search.ranking import Ranker
from mcp_junction.search.static_table import (
    StaticTable,
    mean,
    pack_rows,
    scale_rows,
    stack_vectors,
)
from mcp_junction.skills.classifier import (
    SkillVerdict,
    Subject,
    TaxonomySkill,
    choose_skills,
)
from mcp_junction.skills.features import ToolText

if TYPE_CHECKING:
    from mcp_junction.search.static_table import Matrix

_TEMPERATURE: Final = 0.07
"""Of the softmax. Calibrated on real catalogues (servers' categories, 3,000 tools): the mean
confidence of the likeliest skill is about how often it is right."""
_ALIKE: Final = 0.55
"""How near the vectors of a cluster are to its middle, at least."""
_MOST_CLUSTERED: Final = 3_000


def embed_words(texts: Sequence[str]) -> list[bytes]:
    """Return a vector for each text, of length 1 (or 0, for a text without words).

    By the table that search uses, too; the first use loads it.
    """
    return pack_rows(StaticTable.load().embed(texts))


class ZeroShot:
    """Classifies by the distance between a tool's vector and those of the skills' descriptions."""

    def __init__(self) -> None:
        self._vectors: dict[str, bytes] = {}

    def __call__(self, vectors: Matrix, skills: Sequence[TaxonomySkill]) -> Matrix:
        """Return the share of each skill for each vector; at least one skill."""
        nearness = multiply_rows(vectors, stack_vectors(self._embed_skills(skills)).T)
        odds = numpy.exp((nearness - nearness.max(axis=1, keepdims=True)) / _TEMPERATURE)
        shares: Matrix = odds / odds.sum(axis=1, keepdims=True)
        return shares

    def _embed_skills(self, skills: Sequence[TaxonomySkill]) -> list[bytes]:
        texts = [skill.description for skill in skills]
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        known = self._vectors | (dict(zip(new, embed_words(new), strict=True)) if new else {})
        self._vectors = {text: known[text] for text in texts}
        return [known[text] for text in texts]


class OfflineClassifier:
    """Classifies by the trained model; by zero-shot for skills that this does not know."""

    def __init__(self) -> None:
        self._zero_shot = ZeroShot()

    @cached_property
    def _trained(self) -> TrainedModel:
        return TrainedModel.load()

    def __call__(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill], pooled: bytes = b""
    ) -> list[SkillVerdict | None]:
        if not subjects or not skills:
            return [None] * len(subjects)
        vectors = stack_vectors([one.embedding for one in subjects])
        own = self._trained.judge([one.text for one in subjects], vectors)
        verdicts = self._trained.conclude(own, stack_vectors([pooled])[0] if pooled else None)
        guesses = self._zero_shot(vectors, skills)
        both = zip(
            self._share(skills, numpy.exp(verdicts), guesses),
            self._share(skills, numpy.exp(own), guesses),
            strict=True,
        )
        return [
            SkillVerdict(choose_skills(said).confidences, choose_skills(alone).confidences)
            for said, alone in both
        ]

    def _share(
        self, skills: Sequence[TaxonomySkill], trained: Matrix, guessed: Matrix
    ) -> list[dict[str, float]]:
        """Join the shares of trained skills with guesses for the others.

        The share of a trained skill that was removed goes to no other: its tools fit nothing well.
        """
        known = dict(zip(self._trained.skills, self._trained.descriptions, strict=True))
        column = {skill: n for n, skill in enumerate(self._trained.skills)}
        is_new = [known.get(skill.id) != skill.description for skill in skills]
        left = 1 - guessed[:, is_new].sum(axis=1)
        return [
            {
                skill.id: float(guessed[row, n])
                if is_new[n]
                else float(left[row] * trained[row, column[skill.id]])
                for n, skill in enumerate(skills)
            }
            for row in range(len(trained))
        ]

    def pool(self, server: ToolText, tools: Sequence[ToolText]) -> bytes:
        """Return what a server's title, description and tools add to the verdict on each tool."""
        texts = [server, *tools]
        vectors = stack_vectors(embed_words([text.embedded for text in texts]))
        verdicts = self._trained.judge(texts, vectors)
        rest = verdicts[1:] if tools else verdicts
        return pack_rows(pool(rest.mean(axis=0), verdicts[0])[None, :])[0]


class LocalModel:
    """The model in this process. The first use loads its weights."""

    def __init__(self) -> None:
        self.embed = embed_words
        self.classify = OfflineClassifier()
        self.pool = self.classify.pool
        self.average = mean
        self.cluster = find_clusters
        self._minilms: dict[str, MiniLm] = {}

    def embed_with(self, file: str, texts: Sequence[str]) -> list[bytes]:
        """Embed texts with MiniLM, whose weights are in a file."""
        if file not in self._minilms:
            self._minilms[file] = MiniLm.load(Path(file))
        return pack_rows(self._minilms[file].embed(texts))

    @cached_property
    def ranker(self) -> Ranker:
        """What ranks tools, in a process that was started for it."""
        return Ranker()


def find_clusters(vectors: Sequence[bytes], servers: Sequence[str]) -> list[list[int]]:
    """Find groups of tools by their vectors and their servers, the largest first.

    What a server's tools have in common counts as much as what each says by itself. A tool joins
    the group around the one with the most neighbours; what is left goes on likewise.
    """
    if not vectors:
        return []
    matrix = _add_servers(stack_vectors(vectors[:_MOST_CLUSTERED]), servers)
    is_near = matrix @ matrix.T >= _ALIKE
    left = numpy.ones(len(matrix), bool)
    groups: list[list[int]] = []
    while left.any():
        counts = (is_near & left).sum(axis=1) * left
        seed = int(counts.argmax())
        if counts[seed] < 2:
            break
        (middle,) = scale_rows(matrix[is_near[seed] & left].mean(axis=0)[None, :])
        nearness = (matrix @ middle).round(5)  # equal tools keep their order, however sums round
        members = numpy.flatnonzero(left & (is_near[seed] | (nearness >= _ALIKE)))
        groups.append([int(n) for n in members[numpy.argsort(-nearness[members], kind="stable")]])
        left[members] = False
    return sorted(groups, key=len, reverse=True)


def _add_servers(matrix: Matrix, servers: Sequence[str]) -> Matrix:
    """Add to each vector the mean of its server's, both of length 1."""
    rows: dict[str, list[int]] = {}
    for number, server in enumerate(servers[: len(matrix)]):
        rows.setdefault(server, []).append(number)
    found = matrix.copy()
    for numbers in rows.values():
        found[numbers] += scale_rows(matrix[numbers].mean(axis=0)[None, :])
    return scale_rows(found)


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
        if _read_lines(arrays["table"]) != [static_table.MODEL]:
            raise ValueError(f"{WEIGHTS} was trained with another table; run training/skills.py")

    @classmethod
    def load(cls) -> TrainedModel:
        """Load the weights that are shipped."""
        with resources.files("mcp_junction.skills").joinpath("data", WEIGHTS).open("rb") as file:
            return cls(numpy.load(file, allow_pickle=False))

    def judge(self, texts: Sequence[ToolText], vectors: Matrix) -> Matrix:
        """Return the verdict on each text by itself."""
        by_terms = numpy.stack([self._weigh(text) for text in texts])
        by_vector = multiply_rows(VECTOR_SCALE * vectors, self._of_vector[:-1])
        by_vector += self._of_vector[-1]
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


def multiply_rows(rows: Matrix, weights: Matrix) -> Matrix:
    """Multiply each row by itself with a matrix.

    All at once would round otherwise for another number of rows: the verdict on a tool must not
    tell of others, which its reader may not see.
    """
    return numpy.stack([row @ weights for row in rows])


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
