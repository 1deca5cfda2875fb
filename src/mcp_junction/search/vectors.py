"""What search by meaning is made of: VectorCache, EmbeddingModel, RankingProcess, VectorStore.

These are protocols, and the jobs and answers of the process that ranks. ``semantic.py`` puts them
together; the stores and models are elsewhere. What ranks (``ranking.py``) is never loaded in the
service.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from mcp_junction.protocol.names import Pair

HYBRID: Final = "hybrid"
SEMANTIC: Final = "semantic"
HIERARCHICAL: Final = "hierarchical"


# -- the jobs of the process that ranks, and its answer


class TermEntries(msgspec.Struct, frozen=True, gc=False):
    """Entries of a term, as bytes of uint32, that come after the first ``start`` of them."""

    term: str
    start: int
    entries: bytes


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


class Hold(msgspec.Struct, tag=True, frozen=True, gc=False):
    """A mask or skills to hold under a key, for jobs that name it; and keys to forget."""

    key: int
    mask: bytes = b""
    skills: list[SkillGroup] = []
    forget: list[int] = []


class HoldWords(msgspec.Struct, tag=True, frozen=True, gc=False):
    """Entries of the keyword index to hold, for one epoch of it."""

    epoch: int
    words: list[TermEntries]


class RankJob(msgspec.Struct, tag=True, frozen=True, gc=False):
    """A query, and everything about it that the process does not know."""

    query: str
    clauses: list[str]
    limit: int
    admitted: bytes | int
    """A byte for each number: 1 for those that can be found. Or the key of such a mask."""
    visible: bytes | int = b""
    """The same for the tools among which words are counted; empty for those admitted."""
    epoch: int = 0
    terms: dict[str, int] = {}
    """How many entries each term of the query has, in this epoch of the keyword index."""
    strategy: str = HYBRID
    skills: list[SkillGroup] | int = []
    """The skills with their tools, or the key of those."""
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
    tools: list[RankedTool] = []
    skills: dict[str, float] = {}
    """The skills that fit best, with their scores."""
    is_lacking: bool = False
    """Whether the process lacks what the job names, and ranked nothing."""


RankingJob = VectorRows | DropRows | Hold | HoldWords | RankJob
"""What the process that ranks is asked; each is answered with Ranked."""


# -- its surroundings


class KeptVector(NamedTuple):
    """A vector, and the hash of the text that it was made of."""

    hash: str
    vector: bytes


class VectorCache(Protocol):
    """Keeps the vectors of tools by model. Every method may raise StoreError."""

    async def load(self, server: str, model: str) -> Mapping[str, KeptVector]:
        """Return the vectors of a server's tools, by name."""
        ...

    async def save(self, server: str, model: str, vectors: Mapping[str, KeptVector]) -> None:
        """Keep vectors of a server's tools, instead of those they had by this model."""
        ...

    def forget(self, pair: Pair, model: str) -> None:
        """Let go of what is in memory of a tool that has left."""


class EmbeddingModel(Protocol):
    """Turns texts into vectors. Both methods may raise ModelUnavailable."""

    @property
    def id(self) -> str:
        """Names the model: its vectors are never compared with those of another."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector of length 1 for each text, as little-endian float32."""
        ...

    async def embed_query(self, text: str) -> bytes:
        """Return the vector of a query."""
        ...


class RankingProcess(Protocol):
    """The process that holds vectors and ranks. Every method may raise ModelUnavailable."""

    async def embed(self, texts: Sequence[str]) -> list[bytes]: ...

    async def rank(self, job: RankingJob) -> Ranked: ...


Embed = Callable[[Sequence[str]], Awaitable[list[bytes]]]


class VectorRow(NamedTuple):
    """A tool with its vector, for a vector store."""

    pair: Pair
    vector: bytes


class VectorStore(Protocol):
    """A database of vectors. Every method may raise VectorStoreError."""

    async def put(self, model: str, rows: Sequence[VectorRow]) -> None:
        """Store vectors by a model, instead of those that the tools had."""
        ...

    async def remove(self, pairs: Sequence[Pair]) -> None:
        """Remove tools, if they are there."""
        ...

    async def retire_others(self, model: str, pairs: Sequence[Pair]) -> None:
        """Remove what other models made of these tools: this one has taken over."""
        ...

    async def settle(self) -> None:
        """Prepare for searches: all tools are there."""
        ...

    async def nearest(
        self, model: str, query: bytes, limit: int, within: Sequence[Pair] | None
    ) -> list[tuple[Pair, float]]:
        """Return the nearest tools with their cosines, best first, among those given, or all.

        A store may pass on a search among too many tools, and return nothing.
        """
        ...
