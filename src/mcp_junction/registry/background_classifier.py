"""BackgroundClassifier: classifies tools by skills, and computes the vectors of skills."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from mcp_junction.errors import ModelUnavailable, StoreError
from mcp_junction.registry.context import RegistryContext
from mcp_junction.skills.classifier import (
    Classifier,
    Model,
    SkillVerdict,
    Subject,
    TaxonomySkill,
    tool_text,
)
from mcp_junction.skills.worker import ModelWorker
from mcp_junction.slices import Breaks
from mcp_junction.store.records import Classified, PendingTool, SkillRecord

log = logging.getLogger("mcp_junction.registry")

PAGE: Final = 100
_QUIET: Final = 0.3
"""Seconds without news before work begins: while servers come up there is more to come."""
_LONGEST: Final = 3.0
RETRY: Final = 30.0
_STORE_RETRY: Final = 1.0


class BackgroundClassifier:
    """Classifies new and changed tools, in the background, and updates the vectors of skills."""

    def __init__(
        self,
        context: RegistryContext,
        model: Model | None = None,
        classifier: Classifier | None = None,
        retry: float = RETRY,
    ) -> None:
        self._context = context
        self.set_model(model or ModelWorker(context.tasks), classifier)
        self.retry = retry
        """Seconds until tools that could not be classified are tried again."""
        self.classified = 0
        """The number of classified tools, when they were last counted."""
        self._has_begun = False
        self._news = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

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
        self._news.set()
        if self._has_begun and (self._working is None or self._working.done()):
            tasks = self._context.tasks
            self._working = tasks.supervise("classification", self._work, is_vital=False)

    async def wait_until_done(self) -> None:
        """Wait until nothing is left to do."""
        if self._working is not None:
            await asyncio.wait({self._working})

    # -- the task

    async def _work(self) -> None:
        while self._news.is_set():
            await self._wait_for_quiet()
            try:
                failed = await self._classify_all()
            except StoreError as error:
                log.warning("tools cannot be classified now: %s", error)
                await asyncio.sleep(_STORE_RETRY)
                self._news.set()
                continue
            except ModelUnavailable as error:
                log.warning(
                    "the vectors of skills cannot be updated now, and will be later: %s", error
                )
                failed = True
            except Exception:  # whatever it is, it is tried again
                log.exception("tools cannot be classified")
                failed = True
            if failed:
                await self._wait_for_news(self.retry)
                self._news.set()

    async def _wait_for_quiet(self) -> None:
        """Wait for a moment without news, at most ``_LONGEST`` seconds."""
        end = asyncio.get_running_loop().time() + _LONGEST
        while self._news.is_set() and asyncio.get_running_loop().time() < end:
            self._news.clear()
            await self._wait_for_news(_QUIET)
        self._news.clear()

    async def _wait_for_news(self, limit: float) -> None:
        try:
            await asyncio.wait_for(self._news.wait(), limit)
        except TimeoutError:
            pass

    async def _classify_all(self) -> bool:
        """Classify all pending tools; returns whether some could not be classified."""
        store = self._context.store
        after, failed, breaks = ("", ""), False, Breaks()
        members = self._context.members
        while page := await store.classification.pending(after, PAGE):
            after = page[-1].tool.server_id, page[-1].tool.id
            present = [one for one in page if one.tool.server_id in members]
            failed |= bool(present) and await self._classify(present)
            await breaks.rest()
        await self._update_vectors()
        counts = await store.tools.count()
        self.classified = sum(one.classified for id_, one in counts.items() if id_ in members)
        return failed

    # -- tools

    async def _classify(self, page: Sequence[PendingTool]) -> bool:
        """Classify these tools; returns whether that failed for some."""
        skills = [
            TaxonomySkill(s.id, s.name, s.description)
            for s in await self._context.store.skills.all()
        ]
        if not skills:
            return False  # adding a skill wakes us
        try:
            subjects, new = await self._make_subjects(page)
            found = await self.classifier(subjects, skills)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way
            log.warning("%d tools could not be classified: %r", len(page), error)
            return True
        failed = False
        rows = zip(page, found, new, strict=True)
        for server_id, each in groupby(rows, lambda row: row[0].tool.server_id):
            failed |= await self._store_verdicts(server_id, list(each))
        return failed

    async def _make_subjects(
        self, page: Sequence[PendingTool]
    ) -> tuple[list[Subject], list[bytes | None]]:
        """Make a Subject of each tool; returns them, and the vectors that were new."""
        texts = [tool_text(one.tool.name, one.tool.definition) for one in page]
        lacking = [n for n, one in enumerate(page) if one.embedding is None]
        vectors = await self.model.embed([texts[n] for n in lacking]) if lacking else []
        made = dict(zip(lacking, vectors, strict=True))
        subjects = [
            Subject(one.tool.name, texts[n], made[n] if one.embedding is None else one.embedding)
            for n, one in enumerate(page)
        ]
        return subjects, [made.get(n) for n in range(len(page))]

    async def _store_verdicts(
        self, server_id: str, rows: list[tuple[PendingTool, SkillVerdict | None, bytes | None]]
    ) -> bool:
        given = [
            Classified(one.tool.id, one.tool.hash, verdict.confidences, verdict.primary, vector)
            for one, verdict, vector in rows
            if verdict is not None
        ]
        written = await self._context.store.classification.put(server_id, given)
        if len(written) < len(given):
            self._news.set()  # something has changed meanwhile
        member = self._context.members.find(server_id)
        if member is not None and written:
            names = {one.tool.id: one.tool.name for one, _, _ in rows}
            described = [
                _describe(names[one.tool_id], one) for one in given if one.tool_id in written
            ]
            self._context.publish("tool.classified", member.record, tools=described)
        return len(given) < len(rows)

    # -- skills

    async def _update_vectors(self) -> None:
        """Recompute the vectors of skills whose tools have changed."""
        skills = self._context.store.skills
        behind = await skills.behind()
        if behind:  # then the model is there, or will be: those of the beginning have none yet
            known = {skill.id for skill in behind}
            behind += [
                skill
                for skill in await skills.all()
                if skill.embedding is None and skill.id not in known
            ]
        for skill in behind:
            vectors = await skills.vectors(skill.id)
            vector = await self._make_vector(skill, vectors)
            await skills.embed(skill, vector, len(vectors))

    async def _make_vector(self, skill: SkillRecord, vectors: list[bytes]) -> bytes:
        if vectors:
            return await self.model.average(vectors)
        return (await self.model.embed([skill.description]))[0]


def _describe(name: str, given: Classified) -> dict[str, Any]:
    ids = list(given.confidences)
    return {"name": name, "skill_ids": ids, "primary_skill_id": given.primary}
