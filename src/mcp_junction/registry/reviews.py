"""ToolReviews: finds the tools that a person has to review, and takes the decisions.

What a decision changes is ``desk.py``; when a tool is kept back is ``policy/pinning.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mcp_junction.policy.principal import Principal
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.member import Member
from mcp_junction.registry.tool_decisions import ToolDecisions
from mcp_junction.store.records import ServerRecord, ToolRecord

_PATIENCE: Final = 2.0


class ToolReviews:
    """Finds tools to decide about, and takes the decisions."""

    def __init__(
        self, context: RegistryContext, desk: ToolDecisions, live: Callable[[Member], ServerRecord]
    ) -> None:
        self._context = context
        self._desk = desk
        self._live = live

    async def all(self) -> list[ToolRecord]:
        """Tools that are quarantined, flagged, or not in their pinned form."""
        await self._desk.inspection.settled(_PATIENCE)
        found = await self._context.store.tools.reviewable()
        return [tool for tool in found if tool.server_id in self._context.members]

    async def find(self, ref: str) -> list[tuple[ServerRecord, ToolRecord]]:
        """Find the tools with an id or a namespaced name, each with its server.

        More than one where names run together: `a` has `b.c`, and `a.b` has `c`.
        """
        await self._desk.inspection.settled(_PATIENCE)
        store, roster = self._context.store.tools, self._context.members
        found = await store.by_id(ref) if ref.isprintable() else None
        if found is not None and found.server_id in roster:
            return [(self._live(roster.get(found.server_id)), found)]
        meant = [member for member in roster if ref.startswith(f"{member.name}.")]
        for member in meant:
            await self._desk.wait_until_stored(member)
        names = {(member.id, ref[len(member.name) + 1 :]): member for member in meant}
        tools = await store.some(list(names))
        return [(self._live(names[tool.server_id, tool.name]), tool) for tool in tools]

    async def approve(self, server: str, name: str, digest: str, actor: Principal) -> ToolRecord:
        """Pin the definition with this hash, and let the tool be called.

        Raises NotFound, and DefinitionChanged when it has changed since it was looked at.
        """
        return await self._desk.approve(self._context.members.get(server), name, digest, actor)

    async def block(self, server: str, name: str, digest: str, actor: Principal) -> ToolRecord:
        """Keep a tool out until it is approved. Raises as ``approve`` does."""
        return await self._desk.block(self._context.members.get(server), name, digest, actor)
