"""Classifier: which skills a tool has; ZeroShot decides by the descriptions of skills alone.

The taxonomy is what we begin with; an operator may change all of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final, Protocol

import msgspec

from mcp_junction.skills.embedder import Embedder, stacked


class TaxonomySkill(msgspec.Struct, frozen=True):
    """Something that tools can be good for."""

    id: str
    name: str
    description: str


def taxonomy() -> list[TaxonomySkill]:
    """The skills that come with the program."""
    file = resources.files("mcp_junction.skills").joinpath("taxonomy.json")
    return msgspec.json.decode(file.read_bytes(), type=list[TaxonomySkill])


_READ: Final = 200
"""Characters of a description: what comes later says no more."""
_NAME: Final = 300
_SPLIT: Final = re.compile(r"[_\-./:\s]+|(?<=[a-z0-9])(?=[A-Z])")


class _ToolText(msgspec.Struct):
    title: Any = None
    description: Any = None


_decode = msgspec.json.Decoder(_ToolText).decode


def text_of(name: str, definition: bytes) -> str:
    """A tool's name, as words, and the beginning of what its server says of it."""
    try:
        told = _decode(definition)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        told = _ToolText()
    said = [part for part in (told.title, told.description) if isinstance(part, str)]
    words = " ".join(part for part in _SPLIT.split(name[:_NAME]) if part)
    return f"{words}. {' '.join(said)[:_READ]}".encode(errors="replace").decode()


MOST: Final = 3
PRIMARY: Final = 0.5
"""The confidence from which on the likeliest skill is the primary one."""
_LEAST: Final = 0.1
"""The confidence below which a second or third skill is not worth naming."""
_WARMTH: Final = 0.07
"""How much nearer a skill has to be to be much likelier: on real catalogues (servers' categories,
3,000 tools) the mean confidence of the likeliest skill is then about how often it is right."""


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


def verdict(confidences: dict[str, float]) -> SkillVerdict:
    """A verdict from what is thought of all skills: the best, and up to two more that count."""
    ranked = sorted(confidences.items(), key=lambda item: (-item[1], item[0]))
    chosen = [ranked[0], *(item for item in ranked[1:MOST] if item[1] >= _LEAST)]
    return SkillVerdict({skill: round(confidence, 4) for skill, confidence in chosen})


class Classifier(Protocol):
    """Says what tools are good for."""

    async def __call__(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> Sequence[SkillVerdict | None]:
        """A verdict for each subject; None for one that could not be classified now."""
        ...


class ZeroShot:
    """The nearer a tool's vector is to a description's, the likelier the skill."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, bytes] = {}

    def __call__(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> list[SkillVerdict | None]:
        if not subjects or not skills:
            return [None] * len(subjects)
        import numpy

        described = stacked(self._described(skills))
        nearness = stacked([one.embedding for one in subjects]) @ described.T
        odds = numpy.exp((nearness - nearness.max(axis=1, keepdims=True)) / _WARMTH)
        shares = odds / odds.sum(axis=1, keepdims=True)
        ids = [skill.id for skill in skills]
        return [verdict(dict(zip(ids, map(float, row), strict=True))) for row in shares]

    def _described(self, skills: Sequence[TaxonomySkill]) -> list[bytes]:
        texts = [skill.description for skill in skills]
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        known = (
            self._known | dict(zip(new, self._embedder(new), strict=True)) if new else self._known
        )
        self._known = {text: known[text] for text in texts}
        return [known[text] for text in texts]
