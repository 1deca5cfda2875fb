"""Suggestions: the table of skills that were suggested, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from mcp_junction.errors import AlreadyExists, NotFound
from mcp_junction.store.database import Batch, Query, Script, insert
from mcp_junction.store.table import StoreTable, Table, transaction
from mcp_junction.store.tools import lock_skills


class SuggestionRecord(msgspec.Struct, frozen=True):
    """A skill that is suggested for some tools: ``pending``, ``approved`` or ``rejected``."""

    id: str
    name: str
    description: str
    tool_ids: list[str]
    status: str = "pending"
    skill_id: str | None = None
    created_at: float = 0.0
    decided_at: float | None = None
    decided_by: str | None = None


_TABLE = Table("skill_suggestions", SuggestionRecord, json={"tool_ids"})
PENDING: Final = "pending"
APPROVED: Final = "approved"
REJECTED: Final = "rejected"


class Suggestions(StoreTable):
    """All suggestions."""

    async def all(self) -> list[SuggestionRecord]:
        """Read all suggestions, the oldest first."""
        return await self._read(_TABLE, "ORDER BY created_at, id")

    @transaction()
    def replace_pending(self, given: Sequence[SuggestionRecord]) -> Script[list[SuggestionRecord]]:
        """Make these the pending suggestions, and return those that are new."""
        yield lock_skills()
        rows = _TABLE.records((yield _TABLE.select()))
        decided = {one.id for one in rows if one.status != PENDING}
        known = {one.id: one for one in rows if one.status == PENDING}
        kept = [one for one in given if one.id not in decided]
        yield Query("DELETE FROM skill_suggestions WHERE status = ?", (PENDING,))
        yield Batch(insert(_TABLE.name, _TABLE.columns), [_TABLE.values(one) for one in kept])
        return [one for one in kept if one.id not in known]

    @transaction()
    def decide(
        self, suggestion_id: str, status: str, actor: str, skill_id: str | None = None
    ) -> Script[SuggestionRecord]:
        """Store a decision. Raises NotFound, and AlreadyExists when there is one already."""
        yield lock_skills()
        found = _TABLE.first((yield _TABLE.select("WHERE id = ?", (suggestion_id,))))
        if found is None:
            raise NotFound(f"there is no suggestion {suggestion_id!r}")
        if found.status != PENDING:
            raise AlreadyExists(f"the suggestion was {found.status} already")
        changes = {
            "status": status,
            "skill_id": skill_id,
            "decided_at": time.time(),
            "decided_by": actor,
        }
        clause, args = _TABLE.assignments(changes)
        yield Query(f"UPDATE skill_suggestions SET {clause} WHERE id = ?", (*args, suggestion_id))
        decided: SuggestionRecord = msgspec.structs.replace(found, **changes)
        return decided
