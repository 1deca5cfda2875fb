"""Verdicts on tools, from whoever gives them, to the store and to the bus. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from mcp_junction.protocol.names import Pair
from mcp_junction.registry.context import RegistryContext
from mcp_junction.skills.classifier import MODEL, SkillVerdict, TaxonomySkill
from mcp_junction.store.records import OFFLINE, Classified, PendingTool
from mcp_junction.store.store import Store


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
