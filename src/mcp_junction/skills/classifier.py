"""Model: embeds and classifies tools; ZeroShot compares them with the descriptions of skills.

The service uses the Model of ``worker.py``, which runs LocalModel in another process: LocalModel
loads numpy and the weights. The taxonomy is the initial set of skills; operators may change it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final, Protocol

import msgspec

from mcp_junction.skills.embedder import Embedder, WordVectors, mean, stack_vectors


class TaxonomySkill(msgspec.Struct, frozen=True):
    """A skill that tools can have."""

    id: str
    name: str
    description: str


def taxonomy() -> list[TaxonomySkill]:
    """Read the skills that come with the program."""
    file = resources.files("mcp_junction.skills").joinpath("taxonomy.json")
    return msgspec.json.decode(file.read_bytes(), type=list[TaxonomySkill])


_READ: Final = 200
"""Characters of a description that count."""
_NAME: Final = 300
_SPLIT: Final = re.compile(r"[_\-./:\s]+|(?<=[a-z0-9])(?=[A-Z])")


class _ToolText(msgspec.Struct):
    title: Any = None
    description: Any = None


_decode = msgspec.json.Decoder(_ToolText).decode


def tool_text(name: str, definition: bytes) -> str:
    """Return the text that is embedded for a tool: its name, as words, title and description."""
    try:
        tool = _decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        tool = _ToolText()
    texts = [part for part in (tool.title, tool.description) if isinstance(part, str)]
    words = " ".join(part for part in _SPLIT.split(name[:_NAME]) if part)
    return f"{words}. {' '.join(texts)[:_READ]}".encode(errors="replace").decode()


MOST: Final = 3
PRIMARY: Final = 0.5
"""The confidence that the primary skill has at least."""
_LEAST: Final = 0.1
"""The confidence that a second or third skill has at least."""
_TEMPERATURE: Final = 0.07
"""Of the softmax. Calibrated on real catalogues (servers' categories, 3,000 tools): the mean
confidence of the likeliest skill is about how often it is right."""


class Subject(msgspec.Struct, frozen=True, gc=False):
    """A tool to be classified: its name, its words and its vector."""

    name: str
    text: str
    embedding: bytes


class SkillVerdict(msgspec.Struct, frozen=True, gc=False):
    """One to three skills by their ids, the likeliest first, each with a confidence (0 to 1)."""

    confidences: dict[str, float]

    @property
    def primary(self) -> str | None:
        """The likeliest skill, if it is likely enough."""
        skill, confidence = next(iter(self.confidences.items()))
        return skill if confidence >= PRIMARY else None


def choose_skills(confidences: dict[str, float]) -> SkillVerdict:
    """Choose the most likely skill, and up to two more that are likely enough."""
    ranked = sorted(confidences.items(), key=lambda item: (-item[1], item[0]))
    chosen = [ranked[0], *(item for item in ranked[1:MOST] if item[1] >= _LEAST)]
    return SkillVerdict({skill: round(confidence, 4) for skill, confidence in chosen})


class Classifier(Protocol):
    """Classifies tools."""

    async def __call__(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> Sequence[SkillVerdict | None]:
        """Return a verdict for each subject; None for one that could not be classified now."""
        ...


class ZeroShot:
    """Classifies by the distance between a tool's vector and those of the skills' descriptions."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, bytes] = {}

    def __call__(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> list[SkillVerdict | None]:
        if not subjects or not skills:
            return [None] * len(subjects)
        import numpy

        described = stack_vectors(self._embed_skills(skills))
        nearness = stack_vectors([one.embedding for one in subjects]) @ described.T
        odds = numpy.exp((nearness - nearness.max(axis=1, keepdims=True)) / _TEMPERATURE)
        shares = odds / odds.sum(axis=1, keepdims=True)
        ids = [skill.id for skill in skills]
        return [choose_skills(dict(zip(ids, map(float, row), strict=True))) for row in shares]

    def _embed_skills(self, skills: Sequence[TaxonomySkill]) -> list[bytes]:
        texts = [skill.description for skill in skills]
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        known = self._vectors | (dict(zip(new, self._embedder(new), strict=True)) if new else {})
        self._vectors = {text: known[text] for text in texts}
        return [known[text] for text in texts]


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
