"""DecisionSync: takes over what people decided about tools in other processes on the same store.

It follows one topic of the store: that of approvals and blocks. Lists of tools are no part of it:
each process reads those from the servers itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from mcp_junction.registry.member import Decision, Member, Members, decision_of
from mcp_junction.store.records import ToolRecord
from mcp_junction.store.tools import DECISIONS_TOPIC, Tools


class DecisionSync:
    """Compares the decisions of this process with those in the store."""

    def __init__(
        self, store: Tools, members: Members, apply: Callable[[Member, ToolRecord], None]
    ) -> None:
        """``apply`` takes over the decision of a record; the member's decisions are locked."""
        self._store = store
        self._members = members
        self._apply = apply
        self._generation: int | None = None

    async def follow(self, generations: Mapping[str, int]) -> None:
        """Take over what was decided since the last look; the first look only remembers.

        Raises StoreUnavailable.
        """
        generation = generations.get(DECISIONS_TOPIC, 0)
        if self._generation is not None and generation != self._generation:
            await self._take_over()
        self._generation = generation

    async def _take_over(self) -> None:
        differing: defaultdict[str, list[str]] = defaultdict(list)
        for record in await self._store.decided():
            member = self._members.find(record.server_id)
            if member is not None and _differs(member.decisions.get(record.name), record):
                differing[member.id].append(record.name)
        for server_id, names in differing.items():
            member = self._members.find(server_id)
            if member is None:
                continue
            async with member.decision_lock:  # what is decided here meanwhile is newer
                for record in await self._store.some([(server_id, name) for name in names]):
                    if _differs(member.decisions.get(record.name), record):
                        self._apply(member, record)


def _differs(known: Decision | None, record: ToolRecord) -> bool:
    """Whether the store has another decision than we have about a tool that we know."""
    if known is None:
        return False
    stored = decision_of(record)
    return (known.pinned, known.approved, known.blocked) != (
        stored.pinned,
        stored.approved,
        stored.blocked,
    )
