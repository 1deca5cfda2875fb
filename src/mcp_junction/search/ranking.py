"""Ranker: ranks tools by meaning and words together. It holds a vector for each tool.

It runs in a worker process, which has numpy; jobs and answers are in ``vectors.py``. Tools are
numbers, given by the keyword index. What many searches have in common (who may find what, the
skills, the entries of words) it holds as well, and jobs name it. A score has four parts:

- *meaning*: half the cosine of the whole query and the tool, half the best of the query's clauses;
  where there is a second model, half of it is that model's cosine with the whole query;
- *words*: BM25, divided by the highest of this query;
- *server*: the mean cosine of the whole query and the tools of the server;
- *skill*: the best of the tool's skills, each by its text and its tools.

Only tools that the job admits take part in any of them: what is hidden has no influence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy

from mcp_junction.search.held import HeldPostings, VectorSpace
from mcp_junction.search.static_table import DIMENSIONS, StaticTable
from mcp_junction.search.vectors import (
    HIERARCHICAL,
    SEMANTIC,
    DropRows,
    Hold,
    HoldWords,
    Ranked,
    RankedTool,
    RankingJob,
    RankJob,
    SkillGroup,
    VectorRows,
)

if TYPE_CHECKING:
    from mcp_junction.search.held import Mask, Numbers
    from mcp_junction.search.static_table import Matrix

T = TypeVar("T")

TOP_SKILLS: Final = 3
_SERVER: Final = 0.3
_SKILL: Final = 0.05
_MEANING, _WORDS = 0.8, 0.2
"""The weights of the parts, chosen on half of the queries of ``benchmarks/search.py``."""
_LEAST: Final = 0.15
"""The least meaning of a tool that has no word of the query: chance gives as much."""


class _Candidates(NamedTuple):
    """The tools that can be found: their numbers, which ascend, and the mask of them."""

    numbers: Numbers
    mask: Mask


class Ranker:
    """Holds the vectors of tools, and ranks."""

    def __init__(self) -> None:
        self._table = StaticTable.load()
        self._static = VectorSpace(DIMENSIONS)
        self._deep: VectorSpace | None = None
        self._servers = numpy.zeros(0, numpy.int32)
        self._postings = HeldPostings()
        self._masks: dict[int, Mask] = {}
        self._skills: dict[int, list[SkillGroup]] = {}
        self._skill_vectors: dict[str, Matrix] = {}

    def answer(self, job: RankingJob) -> Ranked:
        """Do one job."""
        match job:
            case RankJob():
                return self.rank(job)
            case VectorRows():
                self.put(job)
            case DropRows():
                self.drop(job)
            case Hold():
                self.hold(job)
            case HoldWords():
                self.hold_words(job)
        return self._count()

    def put(self, rows: VectorRows) -> None:
        """Hold the vectors of tools, instead of those that they had."""
        space = self._static
        if rows.is_deep:
            if self._deep is None:
                self._deep = VectorSpace(len(rows.vectors[0]) // 4)
            space = self._deep
        space.put(rows.numbers, rows.vectors)
        if len(self._servers) < len(space.has):
            servers = numpy.zeros(len(space.has), numpy.int32)
            servers[: len(self._servers)] = self._servers
            self._servers = servers
        self._servers[rows.numbers] = rows.servers

    def drop(self, rows: DropRows) -> None:
        """Forget tools."""
        space = self._deep if rows.is_deep else self._static
        if space is not None:
            space.drop(rows.numbers)

    def hold(self, given: Hold) -> None:
        """Hold a mask or skills."""
        for key in given.forget:
            self._masks.pop(key, None)
            self._skills.pop(key, None)
        if given.mask:
            self._masks[given.key] = _read_mask(given.mask)
        if given.skills:
            self._skills[given.key] = given.skills

    def hold_words(self, given: HoldWords) -> None:
        """Hold entries of the keyword index."""
        self._postings.take(given.epoch, given.words)

    def _count(self) -> Ranked:
        return Ranked(len(self._static))

    def rank(self, job: RankJob) -> Ranked:
        """Find the tools that fit a query best, among those admitted."""
        mask = _look_up(job.admitted, self._masks, _read_mask)
        visible = mask if job.visible == b"" else _look_up(job.visible, self._masks, _read_mask)
        skills = _look_up(job.skills, self._skills, list)
        held = self._count()
        has_words = self._postings.has(job.epoch, job.terms)
        if mask is None or visible is None or skills is None or not has_words:
            return msgspec.structs.replace(held, is_lacking=True)
        among = _Candidates(numpy.flatnonzero(mask), mask)
        clauses = [clause for clause in job.clauses if clause != job.query]
        texts = self._table.embed([job.query, *clauses])
        cosines = self._static.cosines(texts, among.numbers)
        best = cosines[1:].max(axis=0) if clauses else cosines[0]
        whole = cosines[0]
        if not job.deep_query:
            _replace(whole, among, job)
        meaning = self._mix_models(job, 0.5 * whole + 0.5 * best, among)
        words = self._score_words(job, visible, among)
        skill, groups = self._score_skills(skills, texts[0], whole, among)
        top = dict(sorted(groups.items(), key=lambda one: -one[1])[:TOP_SKILLS])
        a, b = (1.0, 0.0) if job.strategy == SEMANTIC else (_MEANING, _WORDS)
        fits = (meaning >= _LEAST) | (b * words > 0)
        if job.strategy == HIERARCHICAL and top:
            fits &= _within_skills(skills, top, among)
        values = (meaning, words, self._mean_by_server(whole, among), skill)
        weights = (a, b, _SERVER, _SKILL)
        shares = [weight / (a + b + _SERVER + (_SKILL if skills else 0)) for weight in weights]
        # Rounded: what else is computed beside it must not decide which of two equals is first.
        total = numpy.round(sum(s * part for s, part in zip(shares, values, strict=True)), 6)
        tools = [
            RankedTool(
                int(among.numbers[n]),
                float(total[n]),
                *(float(s * part[n]) for s, part in zip(shares, values, strict=True)),
            )
            for n in _best(total, numpy.flatnonzero(fits), job.limit)
        ]
        return msgspec.structs.replace(held, tools=tools, skills=top)

    def _score_words(self, job: RankJob, visible: Mask, among: _Candidates) -> Matrix:
        """Return the scores of words, of which the best is 1."""
        scores = numpy.zeros(len(among.mask), numpy.float32)
        known = self._postings.score(job.terms, visible)[: len(scores)]
        scores[: len(known)] = known
        words: Matrix = scores[among.numbers]
        return words / max(float(words.max(initial=0)), 1e-9)

    def _mix_models(self, job: RankJob, meaning: Matrix, among: _Candidates) -> Matrix:
        """Mix in the second model; a tool that has no vector by it yet keeps what it has."""
        if not job.deep_query:
            return meaning
        deep, has = numpy.zeros(len(meaning), numpy.float32), numpy.zeros(len(meaning), bool)
        query = numpy.frombuffer(job.deep_query, "<f4")[None, :]
        if self._deep is not None and query.shape[1] == self._deep.dimensions:
            deep = self._deep.cosines(query, among.numbers)[0]
            known = int(numpy.searchsorted(among.numbers, len(self._deep.has)))
            has[:known] = self._deep.has[among.numbers[:known]]
        has[_replace(deep, among, job)] = True
        return numpy.where(has, 0.5 * meaning + 0.5 * deep, meaning)

    def _mean_by_server(self, whole: Matrix, among: _Candidates) -> Matrix:
        """Return for each tool the mean cosine of its server's tools."""
        servers = numpy.zeros(len(whole), numpy.int32)
        known = int(numpy.searchsorted(among.numbers, len(self._servers)))
        servers[:known] = self._servers[among.numbers[:known]]
        sums, counts = numpy.bincount(servers, whole), numpy.bincount(servers)
        return (sums / numpy.maximum(counts, 1)).astype(numpy.float32)[servers]

    def _score_skills(
        self, skills: list[SkillGroup], query: Matrix, whole: Matrix, among: _Candidates
    ) -> tuple[Matrix, dict[str, float]]:
        """Return the best skill's score for each tool, and the score of each skill."""
        cosines = numpy.zeros(len(among.mask), numpy.float32)
        cosines[among.numbers] = whole
        found = numpy.zeros(len(among.mask), numpy.float32)
        groups = {}
        for group in skills:
            members = _members(group, among.mask)
            score = float(query @ self._skill_vector(group.text))
            if len(members):
                score = 0.5 * score + 0.5 * float(cosines[members].mean())
            groups[group.id] = score
            found[members] = numpy.maximum(found[members], score)
        return found[among.numbers], groups

    def _skill_vector(self, text: str) -> Matrix:
        if text not in self._skill_vectors:
            self._skill_vectors[text] = self._table.embed([text])[0]
        return self._skill_vectors[text]


def _look_up(given: Any, held: Mapping[int, T], read: Callable[[Any], T]) -> T | None:
    """Return what a job has, or names by its key; None when that is not held."""
    return held.get(given) if isinstance(given, int) else read(given)


def _read_mask(mask: bytes) -> Mask:
    return numpy.frombuffer(mask, bool)


def _replace(values: Matrix, among: _Candidates, job: RankJob) -> Numbers:
    """Set the values of what a vector store found; return where these are."""
    near = numpy.frombuffer(job.near_numbers, "<u4").astype(numpy.int64)
    known = near < len(among.mask)
    known[known] = among.mask[near[known]]
    places = numpy.searchsorted(among.numbers, near[known])
    values[places] = numpy.frombuffer(job.near_scores, "<f4")[known]
    return places


def _members(group: SkillGroup, mask: Mask) -> Numbers:
    members = numpy.frombuffer(group.members, "<u4").astype(numpy.int64)
    members = members[members < len(mask)]
    return members[mask[members]]


def _within_skills(skills: list[SkillGroup], top: Mapping[str, float], among: _Candidates) -> Mask:
    """Return which tools have one of the best skills, or none at all."""
    found = numpy.ones(len(among.mask), bool)
    for group in skills:
        found[_members(group, among.mask)] = False
    for group in skills:
        if group.id in top:
            found[_members(group, among.mask)] = True
    return found[among.numbers]


def _best(total: Matrix, among: Numbers, limit: int) -> Numbers:
    """Return the numbers with the highest totals, best first; more than the limit where equal."""
    if len(among) > limit:
        cut = numpy.partition(total[among], len(among) - limit)[len(among) - limit]
        among = among[total[among] >= cut]
    return among[numpy.argsort(-total[among], kind="stable")]
