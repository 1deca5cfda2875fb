"""BackgroundClassifier: classifies tools by skills, and computes the vectors of skills."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Final

from mcp_junction.config.settings import OFF
from mcp_junction.errors import ModelUnavailable, StoreError
from mcp_junction.memory import return_free_memory
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.member import Member
from mcp_junction.registry.verdicts import (
    LLMClassifier,
    LLMEndpoint,
    SkillSuggestions,
    classify_as,
    read_skills,
    store_verdicts,
)
from mcp_junction.search.static_table import KIND
from mcp_junction.search.static_table import MODEL as TABLE
from mcp_junction.skills.classifier import (
    MODEL,
    Classifier,
    Model,
    Subject,
)
from mcp_junction.skills.features import ToolText, make_text, read_tool
from mcp_junction.skills.worker import ModelWorker
from mcp_junction.slices import Breaks
from mcp_junction.store.classification import StoredVector
from mcp_junction.store.records import PendingTool, SkillRecord
from mcp_junction.tasks import OnDemandTask, wait_until_set

log = logging.getLogger("mcp_junction.registry")

PAGE: Final = 100
_QUIET: Final = 0.3
"""Seconds without news before work begins: while servers come up there is more to come."""
_LONGEST: Final = 3.0
RETRY: Final = 30.0
_STORE_RETRY: Final = 1.0
_POOLED: Final = 200
"""How many tools of a server have a part in the verdict on each of them."""
_Pools = dict[str, bytes]
"""What each server adds to the verdicts on its tools."""


class BackgroundClassifier:
    """Classifies new and changed tools, in the background, and updates the vectors of skills."""

    def __init__(self, context: RegistryContext) -> None:
        self._context = context
        self.set_model(ModelWorker(context.tasks))
        self.retry = RETRY
        """Seconds until tools that could not be classified are tried again."""
        self.classified = 0
        """The number of classified tools, when they were last counted."""
        self.show_skills: Callable[[Mapping[Pair, str]], None] = lambda _: None
        """Told the name of the likeliest skill of each tool, when those may have changed."""
        self.suggestions = SkillSuggestions(context)
        self.llm: LLMClassifier | None = None
        """Replaces the offline verdicts, where an LLM is set."""
        if context.settings.llm_provider != OFF:
            self.llm = LLMClassifier(context, LLMEndpoint(context.settings), self.wake)
        self._has_changed = False
        self._has_renewed = False
        self._has_begun = False
        self._task = OnDemandTask(context.tasks, "classification", self._work)
        self._news = self._task.news
        self.wait_until_done = self._task.wait_until_done

    def set_model(self, model: Model, classifier: Classifier | None = None) -> None:
        """Use this model for vectors; and for verdicts, unless a classifier is given."""
        self.model = model
        self.classifier: Classifier = classifier or model.classify

    def begin(self) -> None:
        """Start to work. Called when the service listens: until then this would delay it."""
        self._has_begun = True
        self.wake()

    def wake(self) -> None:
        """Look for tools to classify, soon."""
        if self._has_begun:
            self._task.wake()

    # -- the task

    async def _work(self) -> None:
        await self._wait_for_quiet()
        failed = True
        try:
            failed = await self._classify_all()
        except StoreError as error:
            log.warning("tools cannot be classified now: %s", error)
            await asyncio.sleep(_STORE_RETRY)
            self._news.set()
            return
        except ModelUnavailable as error:
            log.warning("the vectors of skills cannot be updated now, and will be later: %s", error)
        except Exception:  # whatever it is, it is tried again
            log.exception("tools cannot be classified")
        if failed:
            await wait_until_set(self._news, self.retry)
            self._news.set()

    async def _wait_for_quiet(self) -> None:
        """Wait for a moment without news, at most ``_LONGEST`` seconds."""
        end = asyncio.get_running_loop().time() + _LONGEST
        while self._news.is_set() and asyncio.get_running_loop().time() < end:
            self._news.clear()
            await wait_until_set(self._news, _QUIET)
        self._news.clear()

    async def _classify_all(self) -> bool:
        """Classify all pending tools; returns whether some could not be classified."""
        store = self._context.store
        after, failed, breaks = ("", ""), False, Breaks()
        pools: _Pools = {}
        if not self._has_renewed:
            await store.vectors.renew(KIND, TABLE)
            await self._embed_lacking()
            self._has_renewed = True
        await self._count()
        members = self._context.members
        while page := await store.classification.pending(after, PAGE, MODEL):
            after = page[-1].tool.server_id, page[-1].tool.id
            present = [one for one in page if one.tool.server_id in members]
            for _, each in groupby(present, lambda one: one.tool.server_id):
                failed |= await self._classify(list(each), pools)
            await breaks.rest()
        await self._update_vectors()
        await self._show_skills()
        await self._count()
        if self._has_changed and not failed:
            self._has_changed = False
            await self.suggestions.find(self.model)
            await return_free_memory()
        if self.llm is not None:
            self.llm.wake()
        return failed

    async def _count(self) -> None:
        counts = await self._context.store.tools.count()
        members = self._context.members
        self.classified = sum(one.classified for id_, one in counts.items() if id_ in members)

    async def _show_skills(self) -> None:
        """Have the catalog name the skills that tools have now."""
        servers = {member.id: member.record.name for member in self._context.members}
        skills = {skill.id: skill.name for skill in await self._context.store.skills.all()}
        found = await self._context.store.classification.first_skills()
        self.show_skills(
            {
                Pair(servers[server], tool): skills[skill]
                for server, tool, skill in found
                if server in servers and skill in skills
            }
        )

    # -- tools

    async def _classify(self, page: Sequence[PendingTool], pools: _Pools) -> bool:
        """Classify these tools of one server; returns whether that failed for some."""
        skills = await read_skills(self._context.store)
        if not skills:
            return False  # adding a skill wakes us
        server_id = page[0].tool.server_id
        try:
            subjects, new = await self._make_subjects(page)
            if server_id not in pools:
                pools[server_id] = await self._pool(server_id)
            found = await self.classifier(subjects, skills, pools[server_id])
        except Exception as error:  # noqa: BLE001 - a model may fail in any way
            log.warning("%d tools could not be classified: %r", len(page), error)
            return True
        rows = [
            (one, classify_as(one, verdict, vector))
            for one, verdict, vector in zip(page, found, new, strict=True)
            if verdict is not None
        ]
        written = await store_verdicts(self._context, rows, skills)
        if written < len(rows):
            self._news.set()  # something has changed meanwhile
        self._report_progress(written)
        return len(rows) < len(page)

    def _report_progress(self, written: int) -> None:
        """Count tools that were classified, and tell how far this has come."""
        self.classified += written
        self._has_changed = True
        total = sum(member.tool_count for member in self._context.members)
        data = {"classified_tools": self.classified, "total_tools": total}
        self._context.bus.publish_transient("classification.progress", data)

    async def _pool(self, server_id: str) -> bytes:
        """Compute what a server adds to the verdicts on its tools."""
        tools = await self._context.store.classification.sample(server_id, _POOLED)
        member = self._context.members.get(server_id)
        texts = [read_tool(name, definition) for name, definition in tools]
        return await self.model.pool(_read_server(member), texts)

    async def _make_subjects(
        self, page: Sequence[PendingTool]
    ) -> tuple[list[Subject], list[bytes | None]]:
        """Make a Subject of each tool; returns them, and the vectors that were new."""
        texts = [read_tool(one.tool.name, one.tool.definition) for one in page]
        lacking = [n for n, one in enumerate(page) if one.embedding is None]
        new = await self.model.embed([texts[n].embedded for n in lacking]) if lacking else []
        made = dict(zip(lacking, new, strict=True))
        subjects = [
            Subject(one.tool.name, texts[n], made[n] if one.embedding is None else one.embedding)
            for n, one in enumerate(page)
        ]
        return subjects, [made.get(n) for n in range(len(page))]

    async def _embed_lacking(self) -> None:
        """Embed classified tools that have no vector: a person's and an LLM's verdicts outlive
        the table that was in use."""
        vectors = self._context.store.vectors
        while page := await vectors.lacking(MODEL, PAGE):
            texts = [read_tool(one.name, one.definition).embedded for one in page]
            made = zip(page, await self.model.embed(texts), strict=True)
            for server_id, each in groupby(made, lambda one: one[0].server_id):
                rows = [StoredVector(one.name, one.hash, vector) for one, vector in each]
                await vectors.put(server_id, MODEL, rows)

    # -- skills

    async def _update_vectors(self) -> None:
        """Recompute the vectors of skills whose tools have changed."""
        skills = self._context.store.skills
        stale = await skills.needing_vector()
        if stale:  # then the model is there, or will be: those of the beginning have none yet
            known = {skill.id for skill in stale}
            stale += [
                skill
                for skill in await skills.all()
                if skill.embedding is None and skill.id not in known
            ]
        for skill in stale:
            vectors = await skills.vectors_of_tools(skill.id, MODEL)
            vector = await self._make_vector(skill, vectors)
            await skills.save_vector(skill, vector, len(vectors))

    async def _make_vector(self, skill: SkillRecord, vectors: list[bytes]) -> bytes:
        if vectors:
            return await self.model.average(vectors)
        return (await self.model.embed([skill.description]))[0]


def _read_server(member: Member) -> ToolText:
    """Read what a server says of itself, and what it was registered with."""
    greeting = member.upstream.greeting
    info = greeting.info if greeting is not None else {}
    title = info.get("title") or info.get("name") or ""
    words = f"{member.record.description} {greeting.instructions if greeting is not None else ''}"
    return make_text(f"{member.record.name} {title}", words)
