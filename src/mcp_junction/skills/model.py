"""Model: the protocol that embeds, classifies and averages; LocalModel: computes in this process.

The service uses the Model of ``worker.py``, which runs LocalModel in another process: LocalModel
loads numpy and the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mcp_junction.skills.classifier import SkillVerdict, Subject, TaxonomySkill, ZeroShot
from mcp_junction.skills.embedder import WordVectors, mean


class Model(Protocol):
    """Embeds, classifies and averages. Every method may raise ModelUnavailable."""

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text, of length 1 (or 0, for a text without words)."""
        ...

    async def classify(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> Sequence[SkillVerdict | None]:
        """Return a verdict for each subject; None for one that could not be classified now."""
        ...

    async def average(self, vectors: Sequence[bytes]) -> bytes:
        """Compute the mean of vectors, of which there is at least one."""
        ...


class LocalModel:
    """The model in this process. The first use loads its weights."""

    def __init__(self) -> None:
        self.embed = WordVectors()
        self.classify = ZeroShot(self.embed)
        self.average = mean
