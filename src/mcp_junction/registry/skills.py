"""RegistrySkills: lists and changes skills; a change has tools classified again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from uuid import uuid4

from mcp_junction.errors import AlreadyExists, NotFound, VersionConflict
from mcp_junction.policy.principal import Principal
from mcp_junction.registry.background_classifier import BackgroundClassifier
from mcp_junction.registry.context import RegistryContext
from mcp_junction.skills.classifier import taxonomy
from mcp_junction.store.records import SkillRecord
from mcp_junction.store.skills import APPROVED, PENDING, REJECTED, TAXONOMY
from mcp_junction.upstream.events import ServerChange, ServerChanged

_APART: Final = re.compile(r"[^a-z0-9]+")
_ID: Final = 60
_RESERVED: Final = "suggestions"
"""The path of suggestions, which no skill may have."""


class RegistrySkills:
    """Reads and changes skills, and owns the classifier of tools."""

    def __init__(self, context: RegistryContext) -> None:
        self._context = context
        self._skills = context.store.skills
        self.classifier = BackgroundClassifier(context)

    def follow(self, event: ServerChanged) -> None:
        """Look again at the tools of skills when a server was removed or renamed."""
        if event.change in (ServerChange.REMOVED, ServerChange.RENAMED):
            self.classifier.wake()

    async def load(self) -> None:
        """Store the built-in skills, at the first start."""
        if TAXONOMY not in await self._context.store.generations():
            await self._skills.seed([SkillRecord(s.id, s.name, s.description) for s in taxonomy()])

    # -- reading

    async def all(self) -> list[SkillRecord]:
        """Return all skills, by name."""
        return await self._skills.all()

    async def get(self, ref: str) -> SkillRecord:
        """Return a skill by id, or else by name. Raises NotFound."""
        if not ref.isprintable():  # there is none such, and not every store can be asked
            raise NotFound("there is no such skill")
        return await self._skills.get(ref)

    async def holding(self, refs: Iterable[str], *, is_own: bool = False) -> set[tuple[str, str]]:
        """Find the tools with any of these skills, by server id and name. Raises NotFound.

        ``is_own`` counts the skills that tools have by themselves.
        """
        ids = [(await self.get(ref)).id for ref in refs]
        table = self._context.store.classification
        if not is_own:
            return await table.holding(ids)
        return {
            (server, name) for skill, server, name in await table.own_memberships() if skill in ids
        }

    # -- changing

    async def add(self, name: str, description: str, actor: Principal) -> SkillRecord:
        """Add a skill; all tools are classified again. Raises AlreadyExists."""
        taken = {skill.id for skill in await self._skills.all()}
        skill = SkillRecord(_make_id(name, taken), name, description)
        async with self._act(actor, "skill.create", skill):
            skill = await self._skills.add(skill)
            await self._context.store.classification.forget_all()
        self.classifier.wake()
        return skill

    async def change(
        self, ref: str, changes: Mapping[str, str], actor: Principal, if_match: int | None = None
    ) -> SkillRecord:
        """Change the name or description. Raises NotFound, AlreadyExists, VersionConflict."""
        skill = await self.get(ref)
        changed = {name: text for name, text in changes.items() if getattr(skill, name) != text}
        if not changed:
            if if_match not in (None, skill.version):
                raise VersionConflict("the skill", skill.version)
            return skill
        async with self._act(actor, "skill.change", skill, detail={"changed": sorted(changed)}):
            skill = await self._skills.change(skill.id, changed, version=if_match)
            if "description" in changed:
                await self._context.store.classification.forget_all()
        self.classifier.wake()
        return skill

    async def remove(self, ref: str, actor: Principal, if_match: int | None = None) -> None:
        """Remove a skill; its tools are classified again. Raises NotFound, VersionConflict."""
        skill = await self.get(ref)
        async with self._act(actor, "skill.remove", skill):
            await self._skills.remove(skill.id, version=if_match)
        self.classifier.wake()

    async def classify(self, server: str, actor: Principal) -> int:
        """Have all tools of a server classified again, soon; how many. Raises NotFound."""
        member = self._context.members.get(server)
        async with self._context.audit_act(actor, "tools.classify", member.record):
            count = await self._context.store.classification.forget(member.id)
        self.classifier.wake()
        return count

    # -- suggestions

    async def approve(self, suggestion_id: str, actor: Principal) -> SkillRecord:
        """Make a skill of a suggestion and give it to the tools behind it.

        Raises NotFound, and AlreadyExists when it was decided or its name is taken.
        """
        suggestions = self.classifier.suggestions
        found = await suggestions.get(suggestion_id)
        if found.status != PENDING:
            raise AlreadyExists(f"the suggestion was {found.status} already")
        skill = await self.add(found.name, found.description, actor)
        table = self._context.store.suggestions
        await table.decide(found.id, APPROVED, actor.id, skill.id)
        await suggestions.classify_approved(found, skill.id)
        self.classifier.wake()
        return skill

    async def reject(self, suggestion_id: str, actor: Principal) -> None:
        """Reject a suggestion; it does not come again for the same tools.

        Raises NotFound, and AlreadyExists when it was decided.
        """
        found = await self.classifier.suggestions.get(suggestion_id)
        given = {"target": found.id, "detail": {"name": found.name}}
        audit = self._context.audit
        async with audit.act(actor.id, actor.role.value, "skill.reject", **given):
            await self._context.store.suggestions.decide(found.id, REJECTED, actor.id)

    def _act(
        self, actor: Principal, action: str, skill: SkillRecord, **more: Any
    ) -> AbstractAsyncContextManager[None]:
        given = {"target": skill.id, **more}
        return self._context.audit.act(actor.id, actor.role.value, action, **given)


def _make_id(name: str, taken: Collection[str]) -> str:
    """Make an id from a name; a UUID where that has no letters, or is taken or reserved."""
    plain = _APART.sub("-", name.lower()).strip("-")[:_ID]
    return plain if plain and plain not in {*taken, _RESERVED} else str(uuid4())
