"""Model: what is computed with vectors, as the service calls it; and LocalModel, which computes.

The service has it computed by ``worker.py``, in another process. LocalModel is what that process
runs; it is not for the service, because numpy and the weights come with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mcp_junction.skills.classifier import SkillVerdict, Subject, TaxonomySkill, ZeroShot
from mcp_junction.skills.embedder import WordVectors, mean


class Model(Protocol):
    """Embeds, classifies and averages. Every method raises ModelUnavailable when it cannot now."""

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text, of length 1 (or 0, for a text without words)."""
        ...

    async def classify(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> Sequence[SkillVerdict | None]:
        """A verdict for each subject; None for one that could not be classified now."""
        ...

    async def average(self, vectors: Sequence[bytes]) -> bytes:
        """The mean of vectors, of which there is at least one."""
        ...


class LocalModel:
    """The model in this process. The first use loads its weights."""

    def __init__(self) -> None:
        self.embed = WordVectors()
        self.classify = ZeroShot(self.embed)

    def average(self, vectors: Sequence[bytes]) -> bytes:
        """The mean of vectors, of which there is at least one."""
        return mean(vectors)
