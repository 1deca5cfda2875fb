"""RegistryTools: the stored tools of all servers, and what operators decide about them.

``policy/pinning.py`` says when a tool is quarantined; ``inspection.py`` compares lists with pins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from mcp_junction.catalog.items import ServerLists
from mcp_junction.errors import DefinitionChanged, NotFound, Phase, ServerError
from mcp_junction.policy.pinning import STRICT, is_quarantined
from mcp_junction.policy.principal import Principal
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.context import MOST_NAMES, RegistryContext
from mcp_junction.registry.inspection import Flags, Inspection, describe_changes, drop_hidden_tools
from mcp_junction.registry.known_tools import ToolState, ToolStorage, to_item
from mcp_junction.registry.member import Decision, Member, decision_of, is_remark
from mcp_junction.registry.tool_settings import ToolSettingAdministration
from mcp_junction.store.records import ToolChanges, ToolRecord
from mcp_junction.store.tools import was_destructive
from mcp_junction.upstream.events import ServerChange, ServerChanged
from mcp_junction.upstream.upstream import Upstream

log = logging.getLogger("mcp_junction.registry")

_MOST_DIFFS: Final = 20
_WAIT: Final = 2.0
"""Seconds that a request waits for lists that are being inspected or stored."""


class RegistryTools:
    """Reads and changes the tools of all servers. It is the Review of the catalog."""

    def __init__(self, context: RegistryContext, on_stored: Callable[[], None]) -> None:
        """``on_stored`` is called when tools in the store have changed."""
        self._context = context
        self._store = context.store.tools
        self._members = context.members
        self._on_stored = on_stored
        self._storage = ToolStorage(context.store, context.tasks, self._apply_stored)
        self.inspection = Inspection(context, self._storage, self._apply_flags)
        self.known = context.known_tools
        self.settings = ToolSettingAdministration(
            context, self._apply_settings, self._apply_decision
        )
        self._refreshing: dict[str, ToolChanges] = {}
        self.synced_at: float | None = None

    # -- for the catalog

    async def review(self, offering: ServerLists) -> ServerLists:
        """Inspect a server's new lists, and return what of them may be shown."""
        if not self._context.is_open:
            return offering
        found = await self.inspection.review(offering)
        self.synced_at = time.time()
        return found

    def shown(self, server: Upstream) -> ServerLists | None:
        """Return what may be shown of the lists that were last read of a server."""
        member = self._members.find(server.definition.id)
        if member is None:
            return None
        if member.offering is None:
            return self._show_declared(member)
        return drop_hidden_tools(member, member.offering, self._context.tool_rules)

    def _show_declared(self, member: Member) -> ServerLists | None:
        """Return the declared tools of a server that was never connected: calls wait for it."""
        if not self.known.declared(member.id):
            return None
        tools = (one.item for one in self.known.of(member.id) if one.reason is None)
        return ServerLists(member.upstream, tools=tuple(tools))

    def show(self, member: Member) -> None:
        """Have the catalog show what clients may see of a member's tools now."""
        member.upstream.emit(ServerChange.TOOLS)

    def follow(self, event: ServerChanged) -> None:
        """Compare all tools again when a server is renamed or gone."""
        if event.change in (ServerChange.RENAMED, ServerChange.REMOVED):
            self.inspection.schedule()

    # -- reading

    async def all(self, ref: str | None = None) -> list[ToolRecord]:
        """Return the tools of one server or of all, connected or not."""
        if ref is None:
            return [tool for tool in await self._store.all() if tool.server_id in self._members]
        member = self._members.get(ref)
        await self.wait_until_stored(member)  # what was just found is among them
        return await self._store.all(member.id)

    async def named(self, pairs: Iterable[Pair]) -> dict[Pair, ToolRecord]:
        """Return the records of these tools, as far as they are stored."""
        known = [(self._members.named(server), name) for server, name in pairs]
        members = {member.id: member for member, _ in known if member is not None}
        ids = [(member.id, name) for member, name in known if member is not None]
        found = await self._store.some(ids)
        if len(found) < len(ids):  # what was just discovered is being written
            for member in members.values():
                await self.wait_until_stored(member)
            found = await self._store.some(ids)
        return {Pair(members[tool.server_id].name, tool.name): tool for tool in found}

    async def get(self, ref: str, name: str) -> ToolRecord:
        """Return one tool of a server by its own name. Raises NotFound."""
        member = self._members.get(ref)
        await self.wait_until_stored(member)
        found = await self._store.get(member.id, name)
        if found.gone_at is not None:
            raise NotFound(f"there is no tool {name!r}")
        return found

    async def reviewable(self) -> list[ToolRecord]:
        """Return the tools to review: quarantined, flagged, or not in their pinned form."""
        await self.inspection.wait_until_done(_WAIT)
        return [one for one in await self._store.reviewable() if one.server_id in self._members]

    async def find(self, ref: str) -> list[tuple[Member, ToolRecord]]:
        """Find the tools with an id or a namespaced name, each with its server.

        More than one where names run together: `a` has `b.c`, and `a.b` has `c`.
        """
        await self.inspection.wait_until_done(_WAIT)
        found = await self._store.by_id(ref) if ref.isprintable() else None
        if found is not None and found.server_id in self._members:
            return [(self._members.get(found.server_id), found)]
        meant = [member for member in self._members if ref.startswith(f"{member.name}.")]
        for member in meant:
            await self.wait_until_stored(member)
        names = {(member.id, ref[len(member.name) + 1 :]): member for member in meant}
        tools = await self._store.some(list(names))
        return [(names[tool.server_id, tool.name], tool) for tool in tools]

    def state_of(self, record: ToolRecord) -> ToolState:
        """Describe a stored tool: its version, risk and setting, and whether it can be called."""
        member = self._members.get(record.server_id)
        item = to_item(record.name, record.definition)
        return self._context.tool_rules.state_of(member, item)

    async def wait_until_stored(self, member: Member) -> None:
        """Wait a short time until the newest lists of a server are in the store."""
        await self._storage.wait_until_stored(member, _WAIT)

    # -- changing

    async def refresh(
        self, ref: str, actor: Principal, reread: Callable[[Upstream], Awaitable[None]]
    ) -> ToolChanges:
        """Have a server's lists read again. Raises ServerError when it is not connected."""
        member = self._members.get(ref)
        upstream = member.upstream
        if upstream.link is None:
            raise ServerError(member.name, Phase.RUNTIME, "it is not connected")
        act = self._context.audit_act(actor, "tools.refresh", member.record)
        async with act, member.refresh_lock:
            unchanged = len(member.offering.tools) if member.offering is not None else 0
            self._refreshing[member.id] = ToolChanges(unchanged=unchanged)
            try:
                await reread(upstream)
                await self._storage.wait_until_stored(member)
            finally:
                changes = self._refreshing.pop(member.id)
            return changes

    async def approve(self, ref: str, name: str, digest: str, actor: Principal) -> ToolRecord:
        """Pin the definition with this hash, and let the tool be called.

        Raises NotFound, and DefinitionChanged when it has changed since it was looked at.
        """
        return await self._decide(ref, name, digest, actor, "approve", self._store.approve)

    async def block(self, ref: str, name: str, digest: str, actor: Principal) -> ToolRecord:
        """Keep a tool out until it is approved. Raises as ``approve`` does."""
        return await self._decide(ref, name, digest, actor, "block", self._store.block)

    async def _decide(
        self,
        ref: str,
        name: str,
        digest: str,
        actor: Principal,
        verb: str,
        write: Callable[[str, str, str], Awaitable[ToolRecord]],
    ) -> ToolRecord:
        """Store a decision about the definition with this hash, and apply it."""
        member = self._members.get(ref)
        given = {"target": f"{member.name}.{name}", "detail": {"hash": digest}}
        async with self._context.audit_act(actor, f"tool.{verb}", member.record, **given):
            await self.wait_until_stored(member)
            await self.inspection.wait_until_done(_WAIT)  # it is approved with its flags
            async with member.decision_lock:
                known = member.decisions.get(name)
                if known is not None and member.offering is not None and known.hash != digest:
                    await self.get(member.id, name)  # it may have left
                    raise DefinitionChanged(known.hash)
                record = await write(member.id, name, digest)
                self._apply_decision(member, record)
        self.inspection.schedule()
        decided = {"approve": "approved", "block": "blocked"}[verb]
        self._context.publish("tools.changed", member.record, **{decided: [name]})
        return record

    async def quarantine_unapproved(self, member: Member) -> None:
        """Quarantine tools that were only flagged: the server's pin has become strict."""
        async with member.decision_lock:
            names = [name for name, known in member.decisions.items() if known.needs_approval]
            for name in names:
                member.decisions[name].quarantined = True
            marks = {name: (member.decisions[name].flags, True) for name in names}
            if marks:
                await self._store.mark(member.id, marks)
                self.show(member)

    def _apply_settings(self, member: Member, has_versions: bool) -> None:
        """Show what may be shown by a member's new tool settings."""
        self.show(member)
        if has_versions:
            self.inspection.schedule()  # what is incompatible is flagged

    def restore_decisions(
        self, server_id: str, stored: Collection[ToolRecord]
    ) -> dict[str, Decision]:
        """Make the Decisions about a server's stored tools, and remember which ones destroy."""
        destructive = (tool.name for tool in stored if was_destructive(tool))
        self._context.tool_settings.note_destructive(server_id, destructive)
        return {tool.name: decision_of(tool) for tool in stored}

    def _apply_decision(self, member: Member, record: ToolRecord) -> None:
        """Apply a stored decision; a newer definition is judged by the rule of quarantine."""
        known, decided = member.decisions.get(record.name), decision_of(record)
        if known is not None and known.hash != record.hash:
            strict = member.record.pin == STRICT
            decided.quarantined = is_quarantined(decided.state, known.hash, strict=strict)
            decided.hash = known.hash
        elif not was_destructive(record):
            self._context.tool_settings.forget_destructive(member.id, record.name)
        member.decisions[record.name] = decided
        self.show(member)

    # -- results of storing and of inspection

    def _apply_stored(self, member: Member, changes: ToolChanges) -> None:
        if member.id in self._refreshing:
            self._refreshing[member.id] = changes
        if not changes:
            return
        self._on_stored()
        for record in changes.added:
            member.decisions.setdefault(record.name, decision_of(record))
        changed = [new for _, new in changes.changed]
        self._adopt_quarantine(member, changed)
        destructive = (new.name for new in changed if new.was_destructive)
        self._context.tool_settings.note_destructive(member.id, destructive)
        self._context.publish_tools(member.record, [record.name for record in changes.added])
        self._context.tasks.spawn(self._publish_changes(member, changes))

    def _adopt_quarantine(self, member: Member, stored: list[ToolRecord]) -> None:
        """Quarantine what the store has quarantined: it may know a pin that we have not read."""
        has_new = False
        for record in stored:
            known = member.decisions.get(record.name)
            if known is not None and known.hash == record.hash and record.quarantined:
                has_new |= not known.quarantined
                adopted = decision_of(record)
                # Flags may have been stored since the record was read: the inspection knows them.
                adopted.flags, adopted.schema_fault = known.flags, known.schema_fault
                member.decisions[record.name] = adopted
        if has_new:
            self.show(member)

    async def _publish_changes(self, member: Member, changes: ToolChanges) -> None:
        differing = [(old, new) for old, new in changes.changed if old.hash != new.hash]
        diffs = await asyncio.to_thread(_diffs, differing[:_MOST_DIFFS])
        released = [new.name for old, new in differing if old.quarantined and not new.quarantined]
        self._context.publish(
            "tools.changed",
            member.record,
            added=[record.name for record in changes.added][:MOST_NAMES],
            changed=[new.name for _, new in changes.changed][:MOST_NAMES],
            removed=[record.name for record in changes.removed][:MOST_NAMES],
            counts=[len(changes.added), len(changes.changed), len(changes.removed)],
            diffs=diffs,
            quarantined=[new.name for _, new in differing if new.quarantined][:MOST_NAMES],
            released=released[:MOST_NAMES],
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

    def _apply_flags(self, member: Member, flags: Flags, quarantined: list[str]) -> None:
        if quarantined:
            self.show(member)
        if flags:
            _warn_of_remarks(member, flags)
            few = {name: list(words) for name, words in list(flags.items())[:MOST_NAMES]}
            self._context.publish(
                "tools.flagged", member.record, flags=few, quarantined=quarantined
            )


def _warn_of_remarks(member: Member, flags: Flags) -> None:
    """Log what is wrong with a server's tools, though not suspicious; not more than a few."""
    words = [(name, flag) for name, some in flags.items() for flag in some if is_remark(flag)]
    for name, flag in words[:_MOST_DIFFS]:
        log.warning("server %r, tool %r: %s", member.name, name, flag)
    if len(words) > _MOST_DIFFS:
        log.warning("server %r: %d more like this", member.name, len(words) - _MOST_DIFFS)


def _diffs(changed: list[tuple[ToolRecord, ToolRecord]]) -> dict[str, list[str]]:
    return {new.name: describe_changes(old, new) for old, new in changed}
