"""ToolSettingAdministration: changes what operators set for tools, and follows the store.

A change is one act in the audit and one event; it holds in this process before it is answered, and
in others when they see another generation of its topic. What people approved or blocked in other
processes is taken over likewise. Lists of tools are no part of it: each process reads those from
the servers itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from mcp_junction.audit.log import AuditLog
from mcp_junction.errors import InvalidChange, Problem, StoreUnavailable, invalid_at
from mcp_junction.policy.principal import LOCAL_OWNER, Principal
from mcp_junction.policy.tool_settings import (
    ALL_TOOLS,
    MAX_FALLBACKS,
    SETTABLE,
    FallbackTarget,
    ToolSetting,
    find_mapping_error,
)
from mcp_junction.policy.versions import OR, parse_ranges
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.member import Decision, Member, decision_of
from mcp_junction.store.records import ToolRecord
from mcp_junction.store.store import Store
from mcp_junction.store.tool_settings import TOOL_SETTINGS_TOPIC
from mcp_junction.store.tools import DECISIONS_TOPIC

log = logging.getLogger("mcp_junction.registry")

POLL: Final = 0.5
"""Seconds between two looks at the generation of the settings."""
LONGEST_TIMEOUT: Final = 24 * 3600 * 1000
CARRIED_FILE: Final = "tool-settings.signed"
_SHOWN: Final = 20
_UNSET: Final[dict[str, Any]] = {**dict.fromkeys(SETTABLE), "fallbacks": []}


class ToolSettingAdministration:
    """Reads, follows and changes the settings of tools."""

    def __init__(
        self,
        context: RegistryContext,
        on_changed: Callable[[Member, bool], None],
        on_decided: Callable[[Member, ToolRecord], None],
    ) -> None:
        """``on_changed`` is told of each member whose tools have other settings; and whether other
        versions may be compatible. ``on_decided`` takes over the decision of a record; the member's
        decisions are locked."""
        self._context = context
        self._on_decided = on_decided
        self._settings = context.tool_settings
        self._on_changed = on_changed
        self._lock = asyncio.Lock()
        """Held while settings are read or changed: an older reading must not undo a change."""
        self._generation: int | None = None
        self._decided: int | None = None
        """The generation of decisions at the last look."""

    async def begin(self) -> None:
        """Read the settings, and follow what other processes change."""
        await self.refresh()
        self._context.tasks.supervise("tool settings", self._follow)

    async def refresh(self) -> None:
        """Read the settings if they have changed."""
        store = self._context.store
        async with self._lock:
            generations = await store.generations()
            await self._follow_decisions(generations.get(DECISIONS_TOPIC, 0))
            generation = generations.get(TOOL_SETTINGS_TOPIC, 0)
            if generation == self._generation:
                return
            found = await store.tool_settings.all()
            declared = await store.declared_tools.all()
            changed = self._settings.replace_all(found)
            self._generation = generation
        changed |= self._context.known_tools.replace_declared(declared)
        for member in self._context.members:
            if member.id in changed:
                self._on_changed(member, True)

    async def _follow(self) -> None:
        while True:
            await self._context.clock.sleep(POLL)
            try:
                await self.refresh()
            except StoreUnavailable:
                continue  # the next look is soon

    async def _follow_decisions(self, generation: int) -> None:
        """Take over what was decided since the last look; the first look only remembers."""
        if self._decided is not None and generation != self._decided:
            await self._take_over_decisions()
        self._decided = generation

    async def _take_over_decisions(self) -> None:
        tools, members = self._context.store.tools, self._context.members
        differing: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for record in await tools.decided():
            member = members.find(record.server_id)
            if member is not None and _differs(member.decisions.get(record.name), record):
                differing[member.id].append((member.id, record.name))
        for server_id, pairs in differing.items():
            member = members.find(server_id)
            if member is None:
                continue
            async with member.decision_lock:  # what is decided here meanwhile is newer
                for record in await tools.some(pairs):
                    if _differs(member.decisions.get(record.name), record):
                        self._on_decided(member, record)

    async def change(
        self, ref: str, name: str, given: Mapping[str, Any], actor: Principal
    ) -> ToolSetting:
        """Set these fields for a tool, seen or not, and unset those that are None.

        Raises NotFound without such a server, InvalidChange for values that make no sense.
        """
        member = self._context.members.get(ref)
        changes = self._check(member, name, given)
        target, detail = f"{member.name}.{name}", {"changes": changes}
        act = self._context.audit_act(
            actor, "tool.change", member.record, target=target, detail=detail
        )
        async with act, self._lock:
            record = await self._context.store.tool_settings.change(
                member.id, name, changes, actor.id
            )
            self._settings.put(record.setting)
        self._on_changed(member, "versions" in changes)
        self._context.publish(
            "tools.changed", member.record, decided=[name], changed_settings=sorted(changes)
        )
        return record.setting

    # -- checks

    def _check(self, member: Member, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields as they are stored. Raises InvalidChange."""
        problems = [
            invalid_at(f"$.{key}", "is not known here") for key in given.keys() - {*SETTABLE}
        ]
        if not name or "\0" in name or len(name) > 1_000:
            problems.append(invalid_at("tool_name", "must be the name of a tool"))
        if name == ALL_TOOLS and not given.keys() <= {"versions"}:
            words = "must name one tool: for all tools of a server only versions can be set"
            problems.append(invalid_at("tool_name", words))
        changes: dict[str, Any] = {}
        for key in SETTABLE:
            if key in given and given[key] is None:
                changes[key] = _UNSET[key]
            elif key in given:
                changes[key], faults = self._check_value(member, name, key, given[key])
                problems += faults
        if problems:
            raise InvalidChange(problems)
        return changes

    def _check_value(
        self, member: Member, name: str, key: str, value: Any
    ) -> tuple[Any, list[Problem]]:
        if key == "fallbacks":
            return self._check_fallbacks(member, name, value)
        if key == "versions":
            return check_versions(value)
        try:
            msgspec.convert({"server_id": "", "tool_name": "", key: value}, ToolSetting)
        except msgspec.ValidationError as error:
            return value, [invalid_at(f"$.{key}", f"is not right: {str(error).split(' - ')[0]}")]
        if key == "timeout_ms" and not 1 <= value <= LONGEST_TIMEOUT:
            return value, [invalid_at("$.timeout_ms", "must be milliseconds: 1 up to a day")]
        return value, []

    def _check_fallbacks(
        self, member: Member, name: str, value: Any
    ) -> tuple[list[Any], list[Problem]]:
        try:
            targets = msgspec.convert(value, list[FallbackTarget])
        except msgspec.ValidationError as error:
            return [], [invalid_at("$.fallbacks", f"is not right: {error}")]
        problems: list[Problem] = []
        if len(targets) > MAX_FALLBACKS:
            problems.append(invalid_at("$.fallbacks", f"has more than {MAX_FALLBACKS} targets"))
        stored, seen = [], {(member.id, name)}
        for number, target in enumerate(targets):
            path = f"$.fallbacks[{number}]"
            found = self._context.members.find(target.server_id)
            if found is None:
                problems.append(invalid_at(f"{path}.server_id", "there is no such server"))
                continue
            if (found.id, target.tool_name) in seen:
                words = "is the tool itself, or a target that stands there already"
                problems.append(invalid_at(path, words))
            seen.add((found.id, target.tool_name))
            if not target.tool_name or "\0" in target.tool_name:
                problems.append(invalid_at(f"{path}.tool_name", "must be the name of a tool"))
            fault = find_mapping_error(target.arguments or {})
            if fault is not None:
                problems.append(invalid_at(f"{path}.arguments.{fault[0]}".rstrip("."), fault[1]))
            stored.append(msgspec.to_builtins(msgspec.structs.replace(target, server_id=found.id)))
        return stored, problems


def _differs(known: Decision | None, record: ToolRecord) -> bool:
    """Whether the store has another decision than we have about a tool that we know."""
    stored = decision_of(record)
    return known is not None and (known.pinned, known.approved, known.blocked) != (
        stored.pinned,
        stored.approved,
        stored.blocked,
    )


def check_versions(value: Any) -> tuple[str, list[Problem]]:
    """Check a range, or a list of ranges of which one has to hold."""
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        return "", [invalid_at("$.versions", "must be a version range like >=1.2,<2, or several")]
    joined = f" {OR} ".join(text.strip() for text in texts)
    try:
        parse_ranges(joined)
    except ValueError as error:
        return "", [invalid_at("$.versions", str(error))]
    return joined, []


async def carry_over_tool_settings(store: Store, audit: AuditLog, folder: Path) -> int:
    """Sign the tool settings that an older version stored, once; return how many there were."""
    names = await store.tool_settings.unsigned()
    marker = folder / CARRIED_FILE
    if names and marker.exists():
        log.error(
            "%d settings of tools are not signed and are ignored: those of this data directory"
            " were signed before. If the store was restored from a backup of an older version,"
            " delete %s and start again",
            len(names),
            marker,
        )
        return 0
    count = 0
    if names is not None:
        me, detail = LOCAL_OWNER, {"settings": len(names), "tools": names[:_SHOWN]}
        if names:
            async with audit.act(me.id, me.role, "tool_settings.sign", detail=detail):
                count = await store.tool_settings.carry_over(me.id)
            log.warning("%d settings of tools that an older version had stored were signed", count)
        else:
            await store.tool_settings.carry_over(me.id)
    if not marker.exists():
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        marker.touch(mode=0o600)
    return count
