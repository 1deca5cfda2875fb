"""Verdicts on tools, from whoever gives them, to the store and to the bus; and SkillSuggestions.

SkillSuggestions suggests skills for tools whose verdicts fit none, and does what a person decides.
Who classifies tools is elsewhere (``background_classifier.py``, ``llm_classifier.py``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final
from uuid import uuid4

import msgspec

from mcp_junction.errors import NotFound
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.context import RegistryContext
from mcp_junction.skills.classifier import MODEL, Model, SkillVerdict, TaxonomySkill
from mcp_junction.skills.features import describe_group, read_tool
from mcp_junction.store.records import OFFLINE, REVIEW, Classified, PendingTool
from mcp_junction.store.skills import PENDING, REJECTED, SuggestionRecord
from mcp_junction.store.store import Store

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
