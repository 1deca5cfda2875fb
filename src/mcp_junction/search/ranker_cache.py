"""RankRequest: a search to rank. RankerCache: what the process that ranks holds for searches.

Who may find what, the skills with their tools, and the entries of the query's words are the same
for many searches: the process is given each once, and jobs name it. The process may be lost at any
time; it then says that it lacks something, and everything is given again.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from itertools import count
from typing import Final, NamedTuple

from mcp_junction.search.index import KeywordIndex
from mcp_junction.search.vectors import (
    Hold,
    HoldWords,
    RankingProcess,
    RankJob,
    SkillGroup,
    TermEntries,
)
from mcp_junction.search.words import split_clauses

MOST_HELD: Final = 64
"""Masks and lists of skills that the process holds."""
_keys = count(1)


class KeyedMask(NamedTuple):
    """A byte for each number of a tool, which never changes, and the key of it."""

    key: int
    mask: bytes

    @classmethod
    def make(cls, mask: bytes) -> KeyedMask:
        return cls(next(_keys), mask)


class KeyedSkills(NamedTuple):
    """Skills with their tools, which never change, and the key of them."""

    key: int
    groups: list[SkillGroup]

    @classmethod
    def make(cls, groups: list[SkillGroup]) -> KeyedSkills:
        return cls(next(_keys), groups)


class RankRequest(NamedTuple):
    """What to rank, among what, and by what beside vectors."""

    query: str
    limit: int
    strategy: str
    words: KeywordIndex
    admitted: KeyedMask
    """The tools that can be found."""
    visible: KeyedMask
    """The tools among which words are counted."""
    skills: KeyedSkills | None = None
    is_limited: bool = False
    """Whether tools are hidden from the caller, or left out by the query."""


class RankerCache:
    """What the process that ranks holds, as far as we know."""

    def __init__(self, process: RankingProcess) -> None:
        self._process = process
        self._keys: OrderedDict[int, None] = OrderedDict()
        self._epoch = -1
        self._words: dict[str, int] = {}
        """How many entries of each term."""

    def forget(self) -> None:
        """Give everything again: the process was lost."""
        self._keys.clear()
        self._words.clear()

    async def prepare(self, request: RankRequest) -> RankJob:
        """Give the process what it lacks for a search, and make the job.

        Raises ModelUnavailable.
        """
        index, skills = request.words, request.skills
        entries, epoch = index.entries(request.query), index.epoch
        counts = {term: len(found) for term, found in entries.items()}
        await self._hold_words(epoch, entries)
        for mask in (request.admitted, request.visible):
            if mask.mask:
                await self._hold(Hold(mask.key, mask.mask))
        if skills is not None and skills.groups:
            await self._hold(Hold(skills.key, skills=skills.groups))
        return RankJob(
            request.query,
            split_clauses(request.query),
            request.limit,
            request.admitted.key if request.admitted.mask else b"",
            request.visible.key if request.visible.mask else b"",
            epoch,
            counts,
            request.strategy,
            skills.key if skills is not None and skills.groups else [],
        )

    async def _hold_words(self, epoch: int, entries: Mapping[str, array[int]]) -> None:
        if epoch != self._epoch:
            self._epoch, self._words = epoch, {}
        known = self._words
        fresh = [
            TermEntries(term, known.get(term, 0), found[known.get(term, 0) :].tobytes())
            for term, found in entries.items()
            if len(found) > known.get(term, 0)
        ]
        if fresh:
            counts = {term: len(found) for term, found in entries.items()}
            await self._process.rank(HoldWords(epoch, fresh))
            if epoch == self._epoch:  # else it was given others meanwhile
                for term, held in counts.items():
                    known[term] = max(held, known.get(term, 0))

    async def _hold(self, given: Hold) -> None:
        if given.key in self._keys:
            self._keys.move_to_end(given.key)
            return
        oldest = list(self._keys)[: max(0, len(self._keys) + 1 - MOST_HELD)]
        for key in oldest:
            del self._keys[key]
        await self._process.rank(Hold(given.key, given.mask, given.skills, oldest))
        self._keys[given.key] = None
