"""Search by meaning in the service: vectors kept in the store, and the skills of tools.

StoredVectors is the cache of ``search/semantic.py``; SkillMemberships says which tools have which
skills, as of a moment ago.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from mcp_junction.app import Junction
from mcp_junction.calls.tool_search import SkillTools
from mcp_junction.catalog.own_tools import OWN_SERVER
from mcp_junction.config.settings import AUTO
from mcp_junction.errors import StoreError, UsageError, VectorStoreError
from mcp_junction.memory import return_free_memory
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.embedding_models import choose_model
from mcp_junction.registry.registry import Registry
from mcp_junction.search.qdrant import QdrantVectors
from mcp_junction.search.semantic import SemanticIndex
from mcp_junction.search.vectors import KeptVector, VectorStore
from mcp_junction.skills.worker import ModelWorker, WorkerProcess
from mcp_junction.slices import Slices
from mcp_junction.store.classification import StoredVector
from mcp_junction.store.records import ToolRecord
from mcp_junction.store.store import Store
from mcp_junction.store.tools import SKILLS_TOPIC, TOOLS_TOPIC
from mcp_junction.tasks import TaskScope

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
