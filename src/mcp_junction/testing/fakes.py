"""FakeClock, MemorySink and InProcessModel.

Fakes of a server and its links are in ``link.py``.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from mcp_junction.calls.events import CallEnded
from mcp_junction.errors import ModelUnavailable
from mcp_junction.search.vectors import Ranked, RankingJob
from mcp_junction.skills.classifier import SkillVerdict, Subject, TaxonomySkill
from mcp_junction.skills.features import ToolText
from mcp_junction.skills.worker_main import answer
from mcp_junction.upstream.events import ServerChanged

T = TypeVar("T")

_TURNS: Final = 10
"""Turns of the event loop that woken tasks get before time goes on."""


class FakeClock:
    """A Clock. ``advance`` wakes sleepers one by one, in the order in which they are due."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """How many tasks sleep."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Let time pass. A woken task may sleep again, and is woken again if due by then."""
        until = self._now + seconds
        await _run_others()
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                self._now = due
                woken.set_result(None)
                await _run_others()
        self._now = until


async def _run_others() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class MemorySink:
    """A Sink that keeps all events."""

    def __init__(self) -> None:
        self.events: list[CallEnded | ServerChanged] = []

    def __call__(self, event: CallEnded | ServerChanged) -> None:
        self.events.append(event)

    @property
    def calls(self) -> list[CallEnded]:
        return [event for event in self.events if isinstance(event, CallEnded)]

    @property
    def changes(self) -> list[ServerChanged]:
        return [event for event in self.events if isinstance(event, ServerChanged)]


class InProcessModel:
    """A Model that computes in a thread, one job at a time."""

    def __init__(self) -> None:
        from mcp_junction.skills.offline import (
            LocalModel,  # with numpy, which most tests do without
        )

        self._model = LocalModel()
        self._one_at_a_time = asyncio.Lock()

    async def _run(self, compute: Callable[..., T], *given: Any) -> T:
        async with self._one_at_a_time:
            return await asyncio.to_thread(compute, *given)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text."""
        return await self._run(self._model.embed, texts)

    async def classify(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill], pooled: bytes = b""
    ) -> list[SkillVerdict | None]:
        """Return a verdict for each subject."""
        return await self._run(self._model.classify, subjects, skills, pooled)

    async def pool(self, server: ToolText, tools: Sequence[ToolText]) -> bytes:
        """Return what a server adds to the verdict on each of its tools."""
        return await self._run(self._model.pool, server, tools)

    async def cluster(self, vectors: Sequence[bytes], servers: Sequence[str]) -> list[list[int]]:
        """Find groups of tools that are alike."""
        return await self._run(self._model.cluster, vectors, servers)

    async def average(self, vectors: Sequence[bytes]) -> bytes:
        """Compute the mean of vectors."""
        return await self._run(self._model.average, vectors)

    async def rank(self, job: RankingJob) -> Ranked:
        """Hold or drop vectors, or rank by them."""
        found = await self._run(answer, job, self._model)
        if not isinstance(found, Ranked):
            raise ModelUnavailable(repr(found))
        return found
