"""Ranker: ranks tools by meaning and words together. It holds a vector for each tool, in a matrix.

It runs in a worker process, which has numpy; jobs and answers are the structs here. Tools are
numbers, given by the keyword index. A score has four parts:

- *meaning*: half the cosine of the whole query and the tool, half the best of the query's clauses;
  where there is a second model, half of it is that model's cosine with the whole query;
- *words*: BM25, divided by the highest of this query;
- *server*: the mean cosine of the whole query and the tools of the server;
- *skill*: the best of the tool's skills, each by its text and its tools.

Only tools that the job admits take part in any of them: what is hidden has no influence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from mcp_junction.search.static_table import DIMENSIONS, StaticTable

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from mcp_junction.search.static_table import Matrix

    Numbers = NDArray[numpy.int64]

HYBRID: Final = "hybrid"
SEMANTIC: Final = "semantic"
HIERARCHICAL: Final = "hierarchical"
TOP_SKILLS: Final = 3
_SERVER: Final = 0.2
_SKILL: Final = 0.05
_MEANING, _WORDS = 0.75, 0.25
_DEEP_MEANING, _DEEP_WORDS = 0.8, 0.2
"""The weights of the parts; the latter two where there is a second model."""
_LEAST: Final = 0.15
"""The least meaning of a tool that has no word of the query: chance gives as much."""
_FIRST_SIZE: Final = 1024


class VectorRows(msgspec.Struct, tag=True, frozen=True, gc=False):
    """Tools to hold: for each its number and its server's number, and its vector by one model."""

    numbers: list[int]
    servers: list[int]
    vectors: list[bytes]
    is_deep: bool = False
    """Whether they were made by the second model."""


class DropRows(msgspec.Struct, tag=True, frozen=True, gc=False):
    """Tools to forget."""

    numbers: list[int]
    is_deep: bool = False


class SkillGroup(msgspec.Struct, frozen=True, gc=False):
    """A skill: its text, and the numbers of the tools that have it, as bytes of uint32."""

    id: str
    text: str
    members: bytes


class RankJob(msgspec.Struct, tag=True, frozen=True, gc=False):
    """A query, and everything about it that the process does not know."""

    query: str
    clauses: list[str]
    limit: int
    admitted: bytes
    """A byte for each number: 1 for those that can be found."""
    word_numbers: bytes = b""
    """The numbers that have words of the query, as uint32, and their scores, as float32."""
    word_scores: bytes = b""
    strategy: str = HYBRID
    skills: list[SkillGroup] = []
    unclassified: bytes = b""
    """A byte for each number without a skill, which a hierarchical search does not leave out."""
    deep_query: bytes = b""
    """The whole query's vector by the second model."""
    near_numbers: bytes = b""
    """What a vector store found nearest to the whole query, with the cosines, by the last model."""
    near_scores: bytes = b""


class RankedTool(msgspec.Struct, frozen=True, gc=False):
    """A tool that was found: its score, and the parts of it."""

    number: int
    score: float
    meaning: float
    words: float
    server: float
    skill: float


class Ranked(msgspec.Struct, tag=True, frozen=True, gc=False):
    """The answer to any of the jobs: the tools found, best first."""

    rows: int
    """How many tools the process holds: fewer than expected when it was started again."""
    deep_rows: int = 0
    tools: list[RankedTool] = []
    skills: dict[str, float] = {}
    """The skills that fit best, with their scores."""


class VectorSpace:
    """The vectors of one model, in the rows of a matrix that grows."""

    def __init__(self, dimensions: int) -> None:
        import numpy

        self.matrix: Matrix = numpy.zeros((_FIRST_SIZE, dimensions), numpy.float32)
        self.has = numpy.zeros(_FIRST_SIZE, bool)

    def __len__(self) -> int:
        return int(self.has.sum())

    def put(self, numbers: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Set rows. Raises ValueError when a vector has other dimensions."""
        import numpy

        rows = numpy.stack([numpy.frombuffer(one, "<f4") for one in vectors])
        if rows.shape[1] != self.matrix.shape[1]:
            raise ValueError(f"{rows.shape[1]} dimensions instead of {self.matrix.shape[1]}")
        size = max(numbers) + 1
        if size > len(self.has):
            size = max(size, 2 * len(self.has))
            self.matrix.resize((size, self.matrix.shape[1]), refcheck=False)
            self.has.resize(size, refcheck=False)
        self.matrix[numbers] = rows
        self.has[numbers] = True

    def drop(self, numbers: Sequence[int]) -> None:
        self.has[[number for number in numbers if number < len(self.has)]] = False

    def cosines(self, queries: Matrix, size: int) -> Matrix:
        """Return a row for each query; tools without a vector are as far as can be."""
        import numpy

        found = numpy.zeros((len(queries), size), numpy.float32)
        known = min(size, len(self.has))
        found[:, :known] = (self.matrix[:known] @ queries.T).T  # this way round is a third faster
        found[:, :known] *= self.has[:known]  # faster than to index by what it has not
        return found


class Ranker:
    """Holds the vectors of tools, and ranks."""

    def __init__(self) -> None:
        import numpy

        self._table = StaticTable.load()
        self._static = VectorSpace(DIMENSIONS)
        self._deep: VectorSpace | None = None
        self._servers = numpy.zeros(_FIRST_SIZE, numpy.int64)
        self._skill_vectors: dict[str, Matrix] = {}

    def put(self, rows: VectorRows) -> Ranked:
        """Hold the vectors of tools, instead of those that they had."""
        space = self._static
        if rows.is_deep:
            if self._deep is None:
                self._deep = VectorSpace(len(rows.vectors[0]) // 4)
            space = self._deep
        space.put(rows.numbers, rows.vectors)
        if len(self._servers) < len(space.has):
            self._servers.resize(len(space.has), refcheck=False)
        self._servers[rows.numbers] = rows.servers
        return self._count()

    def drop(self, rows: DropRows) -> Ranked:
        """Forget tools."""
        space = self._deep if rows.is_deep else self._static
        if space is not None:
            space.drop(rows.numbers)
        return self._count()

    def _count(self) -> Ranked:
        return Ranked(len(self._static), len(self._deep) if self._deep is not None else 0)

    def rank(self, job: RankJob) -> Ranked:
        """Find the tools that fit a query best, among those admitted."""
        import numpy

        admitted = numpy.frombuffer(job.admitted, bool).copy()
        size = len(admitted)
        texts = self._table.embed([job.query, *(job.clauses or [job.query])])
        cosines = self._static.cosines(texts, size)
        whole = cosines[0]
        if not job.deep_query:
            _replace(whole, job.near_numbers, job.near_scores)
        meaning = self._mix_models(job, 0.5 * whole + 0.5 * cosines[1:].max(axis=0))
        words = numpy.zeros(size, numpy.float32)
        _replace(words, job.word_numbers, job.word_scores)
        words[~admitted] = 0
        words /= max(float(words.max(initial=0)), 1e-9)
        server = self._mean_by_server(whole, admitted)
        skill, groups = self._score_skills(job, texts[0], whole, admitted)
        a, b = (_DEEP_MEANING, _DEEP_WORDS) if job.deep_query else (_MEANING, _WORDS)
        if job.strategy == SEMANTIC:
            a, b = 1.0, 0.0
        top = dict(sorted(groups.items(), key=lambda one: -one[1])[:TOP_SKILLS])
        if job.strategy == HIERARCHICAL and top:
            admitted &= self._within_skills(job, top, size)
        whole_weight = a + b + _SERVER + (_SKILL if job.skills else 0)
        weights = (a, b, _SERVER, _SKILL)
        values = (meaning, words, server, skill)
        parts = [w / whole_weight * part for w, part in zip(weights, values, strict=True)]
        total = parts[0] + parts[1] + parts[2] + parts[3]
        fits = (meaning >= _LEAST) | (b * words > 0)
        best = _best(total, numpy.flatnonzero(admitted & fits), job.limit)
        tools = [
            RankedTool(int(n), float(total[n]), *(float(part[n]) for part in parts)) for n in best
        ]
        held = self._count()
        return Ranked(held.rows, held.deep_rows, tools, top)

    def _mix_models(self, job: RankJob, meaning: Matrix) -> Matrix:
        """Mix in the second model; a tool that has no vector by it yet keeps what it has."""
        import numpy

        size = len(meaning)
        query = numpy.frombuffer(job.deep_query, "<f4")[None, :]
        deep, has = numpy.zeros(size, numpy.float32), numpy.zeros(size, bool)
        if self._deep is not None and query.shape[1] == self._deep.matrix.shape[1]:
            deep = self._deep.cosines(query, size)[0]
            known = min(size, len(self._deep.has))
            has[:known] = self._deep.has[:known]
        if job.deep_query:
            _replace(deep, job.near_numbers, job.near_scores)
            near = numpy.frombuffer(job.near_numbers, "<u4")
            has[near[near < size]] = True
        return numpy.where(has, 0.5 * meaning + 0.5 * deep, meaning)

    def _mean_by_server(self, whole: Matrix, admitted: NDArray[numpy.bool_]) -> Matrix:
        """Return for each tool the mean cosine of its server's tools."""
        import numpy

        servers = numpy.zeros(len(whole), numpy.int64)
        known = min(len(whole), len(self._servers))
        servers[:known] = self._servers[:known]
        sums = numpy.bincount(servers, whole * admitted)
        counts = numpy.bincount(servers, admitted)
        return (sums / numpy.maximum(counts, 1)).astype(numpy.float32)[servers]

    def _score_skills(
        self, job: RankJob, query: Matrix, whole: Matrix, admitted: NDArray[numpy.bool_]
    ) -> tuple[Matrix, dict[str, float]]:
        """Return the best skill's score for each tool, and the score of each skill."""
        import numpy

        found = numpy.zeros(len(whole), numpy.float32)
        groups = {}
        for group in job.skills:
            members = _members(group, admitted)
            score = float(query @ self._skill_vector(group.text))
            if len(members):
                score = 0.5 * score + 0.5 * float(whole[members].mean())
            groups[group.id] = score
            found[members] = numpy.maximum(found[members], score)
        return found, groups

    def _skill_vector(self, text: str) -> Matrix:
        if text not in self._skill_vectors:
            self._skill_vectors[text] = self._table.embed([text])[0]
        return self._skill_vectors[text]

    def _within_skills(
        self, job: RankJob, top: dict[str, float], size: int
    ) -> NDArray[numpy.bool_]:
        """Return which tools have one of the best skills, or none at all."""
        import numpy

        found = numpy.zeros(size, bool)
        unclassified = numpy.frombuffer(job.unclassified, bool)[:size]
        found[: len(unclassified)] = unclassified
        for group in job.skills:
            if group.id in top:
                members = numpy.frombuffer(group.members, "<u4")
                found[members[members < size]] = True
        return found


def _replace(values: Matrix, numbers: bytes, scores: bytes) -> None:
    """Set the values of some numbers; what is beyond the end is left out."""
    import numpy

    places = numpy.frombuffer(numbers, "<u4")
    known = places < len(values)
    values[places[known]] = numpy.frombuffer(scores, "<f4")[known]


def _members(group: SkillGroup, admitted: NDArray[numpy.bool_]) -> Numbers:
    import numpy

    members = numpy.frombuffer(group.members, "<u4").astype(numpy.int64)
    members = members[members < len(admitted)]
    return members[admitted[members]]


def _best(total: Matrix, among: Numbers, limit: int) -> Numbers:
    """Return the numbers with the highest totals, best first; more than the limit where equal."""
    import numpy

    if len(among) > limit:
        cut = numpy.partition(total[among], len(among) - limit)[len(among) - limit]
        among = among[total[among] >= cut]
    return among[numpy.argsort(-total[among], kind="stable")]
