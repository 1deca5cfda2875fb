"""InProcessModel: the model of skills without its process, for tests of what uses it.

It computes in a thread of the caller's own process, so numpy is loaded there. The service has a
ModelWorker instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mcp_junction.skills.classifier import Subject, Verdict
from mcp_junction.skills.model import LocalModel
from mcp_junction.skills.taxonomy import Skill


class InProcessModel:
    """A Model that computes in a thread."""

    def __init__(self) -> None:
        self._model = LocalModel()
        self._one_at_a_time = asyncio.Lock()

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._model.embed, texts)

    async def classify(
        self, subjects: Sequence[Subject], skills: Sequence[Skill]
    ) -> list[Verdict | None]:
        """A verdict for each subject."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._model.classify, subjects, skills)

    async def average(self, vectors: Sequence[bytes]) -> bytes:
        """The mean of vectors."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._model.average, vectors)
