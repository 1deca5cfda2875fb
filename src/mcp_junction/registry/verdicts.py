"""Verdicts on tools, to the store and to the bus; SkillSuggestions; and LLMClassifier.

SkillSuggestions suggests skills for tools whose verdicts fit none, and does what a person decides.
The first verdict on a tool is given offline (``background_classifier.py``). It stands until that
of LLMClassifier replaces it, where an LLM is set, and for good where that fails: a broken endpoint
only means that tools keep the skills they have. What is left to do for it is in the store: tools
whose verdict is not this model's. Failures wait longer each time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final
from uuid import uuid4

import msgspec

from mcp_junction.config.settings import Settings
from mcp_junction.errors import AddressRefused, ModelUnavailable, NotFound, StoreError
from mcp_junction.policy.outgoing import Permissions
from mcp_junction.protocol.names import Pair
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.registry.context import RegistryContext
from mcp_junction.skills.classifier import MODEL, Model, SkillVerdict, Subject, TaxonomySkill
from mcp_junction.skills.features import describe_group, read_tool
from mcp_junction.skills.llm import (
    PROVIDERS,
    Messages,
    check_answer,
    describe_batch,
    describe_repair,
)
from mcp_junction.store.records import OFFLINE, REVIEW, Classified, PendingTool
from mcp_junction.store.skills import PENDING, REJECTED, SuggestionRecord
from mcp_junction.store.store import Store
from mcp_junction.tasks import OnDemandTask
from mcp_junction.upstream.http.dialer import Dialer
from mcp_junction.upstream.http.fetch import fetch

log = logging.getLogger("mcp_junction.registry")

UNSURE: Final = 0.2
"""A tool whose likeliest skill is less likely than this fits none."""
SMALLEST: Final = 8
"""How many such tools have to be alike."""
_MOST_READ: Final = 3_000
_MOST_PENDING: Final = 20
_SAME: Final = 0.5
"""The share of its tools that a group has in common with a suggestion that is there already."""
_APPROVED: Final = 0.9
"""The confidence in a skill that a person approved for a tool."""
_NAMED_AFTER: Final = 200
"""Tools of a group whose words give it its name: all would hold up the loop."""


async def read_skills(store: Store) -> list[TaxonomySkill]:
    """Read all skills, as classifiers are given them."""
    skills = await store.skills.all()
    return [TaxonomySkill(s.id, s.name, s.description) for s in skills]


def classify_as(
    one: PendingTool, verdict: SkillVerdict, vector: bytes | None = None, by: str = OFFLINE
) -> Classified:
    """Make the record of a verdict on a tool; without one by the tool alone, the old one stays."""
    own = verdict.own or one.tool.own_skill_confidences
    return Classified(
        one.tool.id, one.tool.hash, verdict.confidences, verdict.primary, vector, own, by
    )


async def store_verdicts(
    context: RegistryContext,
    rows: Sequence[tuple[PendingTool, Classified]],
    skills: Sequence[TaxonomySkill] | None = None,
) -> int:
    """Store verdicts and tell of them; returns how many hold, as nothing has changed meanwhile.

    ``skills`` are those that there was to choose from, unless a person chose.
    """
    count, by = 0, None if skills is None else {one.id: one.description for one in skills}
    for server_id, each in groupby(rows, lambda row: row[0].tool.server_id):
        given = [(one.tool.name, classified) for one, classified in each]
        stored = [classified for _, classified in given]
        written = await context.store.classification.put(server_id, stored, MODEL, by)
        count += len(written)
        member = context.members.find(server_id)
        if member is not None and written:
            told = [_describe(name, one) for name, one in given if one.tool_id in written]
            context.publish("tool.classified", member.record, tools=told)
            context.on_classified([Pair(member.record.name, one["name"]) for one in told])
    return count


def _describe(name: str, given: Classified) -> dict[str, Any]:
    ids = list(given.confidences)
    return {"name": name, "skill_ids": ids, "primary_skill_id": given.primary}


class SkillSuggestions:
    """Finds, shows and decides suggestions. Approving makes the skill (``RegistrySkills``)."""

    def __init__(self, context: RegistryContext) -> None:
        self._context = context
        self._table = context.store.suggestions

    async def all(self) -> list[SuggestionRecord]:
        """Return all suggestions, the oldest first."""
        return await self._table.all()

    async def get(self, suggestion_id: str) -> SuggestionRecord:
        """Return one suggestion. Raises NotFound."""
        for one in await self._table.all():
            if one.id == suggestion_id:
                return one
        raise NotFound("there is no such suggestion")

    async def tools(self, suggestion: SuggestionRecord) -> list[PendingTool]:
        """Return the tools behind a suggestion that are still there."""
        return await self._context.store.classification.by_ids(suggestion.tool_ids)

    # -- finding

    async def find(self, model: Model) -> None:
        """Look for groups of tools that fit no skill. Raises ModelUnavailable."""
        store = self._context.store
        read = await store.classification.unsure(MODEL, _MOST_READ)
        known = await self._table.all()
        pending = [one for one in known if one.status == PENDING]
        tools = [one for one in read if _best(one) < UNSURE]
        if len(tools) < SMALLEST and not pending:
            return
        vectors = [one.embedding or b"" for one in tools]
        groups = await model.cluster(vectors, [one.tool.server_id for one in tools])
        large = [[tools[n] for n in group] for group in groups if len(group) >= SMALLEST]
        taken = {skill.name for skill in await store.skills.all()}
        wanted: list[SuggestionRecord] = []
        for group in large[:_MOST_PENDING]:
            made = _suggest(group, known, taken)
            if made is not None:
                wanted.append(made)
                taken.add(made.name)
        for new in await self._table.replace_pending(wanted):
            data = {"id": new.id, "name": new.name, "tools": len(new.tool_ids)}
            self._context.bus.publish("skill.suggested", data)

    # -- deciding

    async def classify_approved(self, suggestion: SuggestionRecord, skill_id: str) -> None:
        """Give the tools behind a suggestion the skill that was made of it."""
        rows = [(one, _approve(one, skill_id)) for one in await self.tools(suggestion)]
        await store_verdicts(self._context, rows)


def _best(one: PendingTool) -> float:
    return max(one.tool.skill_confidences.values(), default=0.0)


def _suggest(
    group: Sequence[PendingTool], known: Sequence[SuggestionRecord], taken: set[str]
) -> SuggestionRecord | None:
    """Make a suggestion, or go on with the pending one for these tools; None if it was rejected."""
    ids = [one.tool.id for one in group]
    texts = [read_tool(one.tool.name, one.tool.definition) for one in group[:_NAMED_AFTER]]
    name, description = describe_group(texts, taken)
    for before in known:
        common = len(set(ids) & set(before.tool_ids))
        if before.status == PENDING and common >= _SAME * len(before.tool_ids):
            if before.name in taken:
                return None  # its tools are two groups now, and the larger one has it
            return msgspec.structs.replace(before, tool_ids=ids)
        if before.status == REJECTED and common >= _SAME * len(ids):
            return None
    return SuggestionRecord(str(uuid4()), name, description, ids, created_at=time.time())


def _approve(one: PendingTool, skill_id: str) -> Classified:
    """Make the skill the first of a tool, before those that it has."""
    others = [(id_, share) for id_, share in one.tool.skill_confidences.items() if id_ != skill_id]
    confidences = {skill_id: _APPROVED, **dict(others[:2])}
    own = one.tool.own_skill_confidences
    return Classified(one.tool.id, one.tool.hash, confidences, skill_id, None, own, REVIEW)


# -- verdicts of an LLM

BATCH: Final = 10
AT_ONCE: Final = 5
BATCH_SECONDS: Final = 20.0
_PAGE: Final = BATCH * AT_ONCE
_FIRST_PAUSE: Final = 30.0
_LONGEST_PAUSE: Final = 3600.0


class LLMEndpoint:
    """Asks one model at one endpoint. Nothing that it sends or is told is logged."""

    def __init__(self, settings: Settings) -> None:
        self._provider = PROVIDERS[settings.llm_provider]()
        self._url = (settings.llm_base_url or self._provider.base_url).rstrip("/")
        self._url += self._provider.path
        self._key = settings.llm_api_key
        if self._key:
            KNOWN.learn_value(self._key)
        self.model = settings.llm_model
        # As for servers of the config file; but a key goes over plain http to this machine only.
        self._dialer = Dialer(Permissions(allow_private=True, allow_http=not self._key))
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def classify(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> list[SkillVerdict | None]:
        """Classify one batch; an invalid answer is asked for once more. Raises ModelUnavailable.

        None for a tool that was not classified in either.
        """
        async with self._turns:
            try:
                async with asyncio.timeout(BATCH_SECONDS):
                    return await self._classify(subjects, skills)
            except TimeoutError:
                raise ModelUnavailable(f"it took more than {BATCH_SECONDS:.0f} s") from None

    async def _classify(
        self, subjects: Sequence[Subject], skills: Sequence[TaxonomySkill]
    ) -> list[SkillVerdict | None]:
        question = describe_batch(subjects, skills)
        text = await self._ask([("user", question)])
        found = check_answer(text, len(subjects), skills)
        if found.problems:
            repair = describe_repair(found.problems)
            messages = [("user", question), ("assistant", text or "{}"), ("user", repair)]
            again = check_answer(await self._ask(messages), len(subjects), skills)
            found.verdicts.update(again.verdicts)
        return [found.verdicts.get(number) for number in range(len(subjects))]

    async def _ask(self, messages: Messages) -> str:
        """Send one request. Raises ModelUnavailable, which quotes nothing that came back."""
        headers = {"content-type": "application/json", **self._provider.headers(self._key)}
        body = msgspec.json.encode(self._provider.body(self.model, messages))
        try:
            answer = await fetch(
                self._url,
                self._dialer,
                method="POST",
                headers=headers,
                body=body,
                timeout=BATCH_SECONDS,
            )
        except AddressRefused as error:
            raise ModelUnavailable(f"the LLM cannot be asked: {error}") from None
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"the LLM cannot be asked: {type(error).__name__}") from None
        if answer.status != 200:
            raise ModelUnavailable(f"the LLM answered with the status {answer.status}")
        try:
            return self._provider.read(msgspec.json.decode(answer.body))
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError):
            return ""  # which is no valid answer


class LLMClassifier:
    """Replaces offline verdicts by those of an LLM."""

    def __init__(
        self,
        context: RegistryContext,
        endpoint: LLMEndpoint,
        on_stored: Callable[[], None],
        pause: float = _FIRST_PAUSE,
    ) -> None:
        """``on_stored`` is called when verdicts were stored: vectors of skills are to follow."""
        self._context = context
        self._endpoint = endpoint
        self._on_stored = on_stored
        self._by = f"llm:{endpoint.model}"
        self._first_pause = self._pause = pause
        self._task = OnDemandTask(context.tasks, "llm classification", self._work)
        self.wake = self._task.wake
        """Looks for tools to classify, soon."""
        self.wait_until_done = self._task.wait_until_done

    async def _work(self) -> None:
        self._task.news.clear()
        try:
            has_failed = await self._classify_all()
        except StoreError as error:
            log.warning("the LLM cannot classify tools now: %s", error)
            has_failed = True
        if has_failed:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            await asyncio.sleep(self._pause)
            self._task.news.set()
        else:
            self._pause = self._first_pause

    async def _classify_all(self) -> bool:
        """Classify all tools whose verdict is another's; returns whether that failed for some."""
        store, after, has_failed = self._context.store, ("", ""), False
        while page := await store.classification.of_others(self._by, after, _PAGE):
            after = page[-1].tool.server_id, page[-1].tool.id
            skills = await read_skills(store)
            batches = [page[n : n + BATCH] for n in range(0, len(page), BATCH)]
            done = await asyncio.gather(*(self._classify(batch, skills) for batch in batches))
            if not any(done):
                return True  # it is away: the other tools would only be tried in vain
            has_failed |= not all(done)
        return has_failed

    async def _classify(
        self, batch: Sequence[PendingTool], skills: Sequence[TaxonomySkill]
    ) -> bool:
        """Classify some tools; returns whether all of them were."""
        subjects = [
            Subject(one.tool.name, read_tool(one.tool.name, one.tool.definition), b"")
            for one in batch
        ]
        try:
            verdicts = await self._endpoint.classify(subjects, skills)
        except ModelUnavailable as error:
            log.warning("%d tools keep their offline skills for now: %s", len(batch), error)
            return False
        rows = [
            (one, classify_as(one, verdict, by=self._by))
            for one, verdict in zip(batch, verdicts, strict=True)
            if verdict is not None
        ]
        if await store_verdicts(self._context, rows, skills):
            self._on_stored()
        return len(rows) == len(batch)
