"""ToolDecisions: what operators decide about single tools, and what clients see as a result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from mcp_junction.catalog.catalog import Offering
from mcp_junction.errors import DefinitionChanged, NotFound, Phase, ServerError
from mcp_junction.policy.pinning import STRICT, is_quarantined
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.inspection import Flags, Inspection, differences, shown
from mcp_junction.registry.member import Decision, Member
from mcp_junction.registry.tool_storage import ToolStorage
from mcp_junction.store.records import ToolChanges, ToolRecord
from mcp_junction.upstream.events import ServerChange, ServerChanged
from mcp_junction.upstream.server import Upstream

_NAMES: Final = 200
_DIFFS: Final = 20


_WRITTEN: Final = 2.0


class ToolDecisions:
    """Tools, one by one."""

    def __init__(self, context: RegistryContext, stored: Callable[[], None]) -> None:
        self._context = context
        self._told = stored
        """Told when the tools in the store are others."""
        self._shelving = ToolStorage(context.store, context.tasks, self._stored)
        self.inspection = Inspection(
            context.store,
            self._shelving,
            context.tasks,
            lambda upstream: context.members.find(upstream.definition.id),
            lambda: context.members,
            self._flagged,
        )
        self._last: dict[str, ToolChanges] = {}
        self.synced_at: float | None = None

    async def review(self, offering: Offering) -> Offering:
        """What may be shown of what a server offers now."""
        if not self._context.is_open:
            return offering
        found = await self.inspection.review(offering)
        self.synced_at = time.time()
        return found

    def shown(self, server: Upstream) -> Offering | None:
        """What may be shown of what a server offered when it was last read."""
        member = self._context.members.find(server.definition.id)
        if member is None or member.offering is None:
            return None
        return shown(member, member.offering)

    def follow(self, event: ServerChanged) -> None:
        """Compare all tools again when a server is renamed or gone."""
        if event.change in (ServerChange.RENAMED, ServerChange.REMOVED):
            self.inspection.look()

    # -- reading

    async def all(self, member: Member | None = None) -> list[ToolRecord]:
        """The tools of one server or of all, in the order their servers list them."""
        if member is not None:
            await self.wait_until_stored(member)  # what was just found is among them
            return await self._context.store.tools.all(member.id)
        roster = self._context.members
        return [tool for tool in await self._context.store.tools.all() if tool.server_id in roster]

    async def some(self, pairs: Iterable[Pair]) -> dict[Pair, ToolRecord]:
        """These tools by their server's name and their own, as far as they are stored."""
        known = [(self._context.members.named(server), name) for server, name in pairs]
        members = {member.id: member for member, _ in known if member is not None}
        ids = [(member.id, name) for member, name in known if member is not None]
        found = await self._context.store.tools.some(ids)
        if len(found) < len(ids):  # what was just discovered is being written
            for member in members.values():
                await self.wait_until_stored(member)
            found = await self._context.store.tools.some(ids)
        return {Pair(members[tool.server_id].name, tool.name): tool for tool in found}

    async def get(self, member: Member, name: str) -> ToolRecord:
        """Raises NotFound."""
        await self.wait_until_stored(member)
        found = await self._context.store.tools.get(member.id, name)
        if found.gone_at is not None:
            raise NotFound(f"there is no tool {name!r}")
        return found

    async def wait_until_stored(self, member: Member) -> None:
        """Wait a short time until the newest lists of a server are in the store."""
        await self._shelving.settled(member, _WRITTEN)

    # -- changing

    async def refresh(
        self, member: Member, actor: Principal, reread: Callable[[Upstream], Awaitable[None]]
    ) -> ToolChanges:
        """Read a server's lists again. Raises ServerError when it is not connected."""
        upstream = member.upstream
        if upstream.link is None:
            raise ServerError(member.name, Phase.RUNTIME, "it is not connected")
        async with self._context.act(actor, "tools.refresh", member.record), member.refreshing:
            unchanged = len(member.offering.tools) if member.offering is not None else 0
            self._last[member.id] = ToolChanges(unchanged=unchanged)
            try:
                await reread(upstream)
                await self._shelving.settled(member)
            finally:
                changes = self._last.pop(member.id)
            return changes

    async def change(
        self, member: Member, name: str, changes: Mapping[str, Any], actor: Principal
    ) -> ToolRecord:
        """Change what was decided about a tool. Raises NotFound, ValueError."""
        given = {"target": f"{member.name}.{name}", "detail": {"changes": dict(changes)}}
        async with self._context.act(actor, "tool.change", member.record, **given), member.deciding:
            record = await self._context.store.tools.change(member.id, name, changes)
            self._apply_decision(member, record)
        self._context.tell("tools.changed", member.record, decided=[name])
        return record

    async def approve(self, member: Member, name: str, digest: str, actor: Principal) -> ToolRecord:
        """Pin the definition that was looked at. Raises NotFound, DefinitionChanged."""
        write = self._context.store.tools.approve
        record = await self._decide(member, name, digest, actor, "tool.approve", write)
        self._context.tell("tools.changed", member.record, approved=[name])
        return record

    async def block(self, member: Member, name: str, digest: str, actor: Principal) -> ToolRecord:
        """Keep a tool out until it is approved. Raises NotFound, DefinitionChanged."""
        write = self._context.store.tools.block
        record = await self._decide(member, name, digest, actor, "tool.block", write)
        self._context.tell("tools.changed", member.record, blocked=[name])
        return record

    async def _decide(
        self,
        member: Member,
        name: str,
        digest: str,
        actor: Principal,
        action: str,
        write: Callable[[str, str, str], Awaitable[ToolRecord]],
    ) -> ToolRecord:
        """Store a decision about the definition with this hash, and apply it."""
        given = {"target": f"{member.name}.{name}", "detail": {"hash": digest}}
        async with self._context.act(actor, action, member.record, **given):
            await self.wait_until_stored(member)
            await self.inspection.settled(_WRITTEN)  # what is approved is approved with its flags
            async with member.deciding:
                known = member.decisions.get(name)
                if known is not None and member.offering is not None and known.hash != digest:
                    await self.get(member, name)  # it may have left
                    raise DefinitionChanged(known.hash)
                record = await write(member.id, name, digest)
                self._apply_decision(member, record)
        self.inspection.look()
        return record

    async def strict_from_now(self, member: Member) -> None:
        """Its pin has become strict: what was only flagged until now is kept back."""
        async with member.deciding:
            names = [name for name, known in member.decisions.items() if _needs_approval(known)]
            for name in names:
                member.decisions[name].quarantined = True
            marks = {name: (member.decisions[name].flags, True) for name in names}
            if marks:
                await self._context.store.tools.mark(member.id, marks)
                self.show(member)

    def _apply_decision(self, member: Member, record: ToolRecord) -> None:
        """Apply a stored decision; a newer definition is judged by the rule of quarantine."""
        known, decided = member.decisions.get(record.name), decision_of(record)
        if known is not None and known.hash != record.hash:
            strict = member.record.pin == STRICT
            decided.quarantined = is_quarantined(decided.state, known.hash, strict=strict)
            decided.hash = known.hash
        member.decisions[record.name] = decided
        self.show(member)

    def show(self, member: Member) -> None:
        """Show clients what they may see of a member's tools now."""
        member.upstream.emit(ServerChange.TOOLS)

    # -- what is told

    def _stored(self, member: Member, changes: ToolChanges) -> None:
        if member.id in self._last:
            self._last[member.id] = changes
        if not changes:
            return
        self._told()
        for record in changes.added:
            member.decisions.setdefault(record.name, decision_of(record))
        self._adopt_quarantine(member, [new for _, new in changes.changed])
        added = [record.name for record in changes.added]
        for start in range(0, len(added), _NAMES):
            names = added[start : start + _NAMES]
            self._context.tell("tool.registered", member.record, tools=names)
        self._context.tasks.spawn(self._tell_changes(member, changes))

    def _adopt_quarantine(self, member: Member, stored: list[ToolRecord]) -> None:
        """Quarantine what the store has quarantined: it may know a pin that we have not read."""
        strayed = False
        for record in stored:
            known = member.decisions.get(record.name)
            if known is not None and known.hash == record.hash and record.quarantined:
                strayed |= not known.quarantined
                member.decisions[record.name] = decision_of(record)
        if strayed:
            self.show(member)

    async def _tell_changes(self, member: Member, changes: ToolChanges) -> None:
        differing = [(old, new) for old, new in changes.changed if old.hash != new.hash]
        diffs = await asyncio.to_thread(_diffs, differing[:_DIFFS])
        self._context.tell(
            "tools.changed",
            member.record,
            added=[record.name for record in changes.added][:_NAMES],
            changed=[new.name for _, new in changes.changed][:_NAMES],
            removed=[record.name for record in changes.removed][:_NAMES],
            counts=[len(changes.added), len(changes.changed), len(changes.removed)],
            diffs=diffs,
            quarantined=[new.name for _, new in differing if new.quarantined][:_NAMES],
            released=[
                new.name for old, new in differing if old.quarantined and not new.quarantined
            ][:_NAMES],
        )
        audit = self._context.audit
        for name, lines in diffs.items():
            audit.record(
                audit.entry(
                    "pin",
                    "junction",
                    "tool.changed",
                    server_id=member.id,
                    target=f"{member.name}.{name}",
                    detail={"diff": lines, "pin": member.record.pin},
                )
            )

    def _flagged(self, member: Member, flags: Flags, held: list[str]) -> None:
        if held:
            self.show(member)
        if flags:
            few = dict(list(flags.items())[:_NAMES])
            told = {name: list(words) for name, words in few.items()}
            self._context.tell("tools.flagged", member.record, flags=told, quarantined=held)


def _needs_approval(known: Decision) -> bool:
    """Whether a tool is open that a strict pin would quarantine."""
    if known.hash != known.pinned:
        return known.is_open
    return known.is_open and not set(known.flags) <= set(known.approved or ())


def decision_of(record: ToolRecord) -> Decision:
    """What holds for a tool, from its record."""
    return Decision(
        record.pinned_hash,
        record.hash,
        record.quarantined,
        record.enabled,
        tuple(record.flags),
        None if record.approved_flags is None else tuple(record.approved_flags),
        record.blocked,
    )


def _diffs(changed: list[tuple[ToolRecord, ToolRecord]]) -> dict[str, list[str]]:
    return {new.name: differences(old, new) for old, new in changed}
