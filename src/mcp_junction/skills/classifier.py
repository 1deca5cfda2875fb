"""Model: embeds and classifies tools; the skills that they can have, and verdicts on them.

The service uses the Model of ``worker.py``, which runs the LocalModel of ``offline.py`` in another
process. The taxonomy is the initial set of skills; operators may change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Final, Protocol

import msgspec

from mcp_junction.search import static_table
from mcp_junction.skills.features import ToolText


class TaxonomySkill(msgspec.Struct, frozen=True):
    """A skill that tools can have.

    Which tools have it now is no part of it: the verdict on a tool would depend on former ones.
    """

    id: str
    name: str
    description: str


def taxonomy() -> list[TaxonomySkill]:
    """Read the skills that come with the program."""
    file = resources.files("mcp_junction.skills").joinpath("taxonomy.json")
    return msgspec.json.decode(file.read_bytes(), type=list[TaxonomySkill])


MODEL: Final = f"{static_table.MODEL}/tool"
"""The id of the model and of what it embeds: a tool by itself, without its server."""
MOST: Final = 3
PRIMARY: Final = 0.5
"""The confidence that the primary skill has at least."""
_LEAST: Final = 0.1
"""The confidence that a second or third skill has at least."""


class Subject(msgspec.Struct, frozen=True, gc=False):
    """A tool to be classified: its name, its words and its vector."""

    name: str
    text: ToolText
    embedding: bytes


class SkillVerdict(msgspec.Struct, frozen=True, gc=False):
    """One to three skills by their ids, the likeliest first, each with a confidence (0 to 1).

    ``own`` is the same by the tool alone, where the server's other tools count too.
    """

    confidences: dict[str, float]
    own: dict[str, float] = {}

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
    """Classifies tools of one server."""

    async def __call__(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill], pooled: bytes = b""
    ) -> Sequence[SkillVerdict | None]:
        """Return a verdict for each subject; None for one that could not be classified now.

        ``pooled`` is what ``Model.pool`` made of their server.
        """
        ...


class Model(Protocol):
    """Embeds, classifies and averages. Every method may raise ModelUnavailable."""

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text, of length 1 (or 0, for a text without words)."""
        ...

    async def classify(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill], pooled: bytes = b""
    ) -> Sequence[SkillVerdict | None]:
        """Return a verdict for each subject; None for one that could not be classified now."""
        ...

    async def pool(self, server: ToolText, tools: Sequence[ToolText]) -> bytes:
        """Return what a server's title, description and tools add to the verdict on each tool."""
        ...

    async def cluster(self, vectors: Sequence[bytes], servers: Sequence[str]) -> list[list[int]]:
        """Find groups of tools that are alike, by their vectors and servers.

        Returns the numbers of each group's tools, the most typical first.
        """
        ...

    async def average(self, vectors: Sequence[bytes]) -> bytes:
        """Compute the mean of vectors, of which there is at least one."""
        ...
