"""Inspection: compares every list of tools with its pins, and flags suspicious tools.

A definition is compared with its pin; under ``strict`` one that differs, and one with something
suspicious about it, is quarantined until a person approves it. What imitates another server's tool,
or hides something, is flagged under every pin but ``off``: at once under ``strict``, moments later
otherwise, since that takes all tools of all servers together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.catalog import pins, suspicion
from mcp_junction.catalog.discovery import MAX_ITEMS, warn_once
from mcp_junction.catalog.items import TOOLS, ListItem, ServerLists
from mcp_junction.catalog.pins import DefinitionChange
from mcp_junction.catalog.suspicion import ExaminedTool, Flag
from mcp_junction.errors import StoreUnavailable
from mcp_junction.policy.pinning import STRICT, is_quarantined, is_quarantined_by_flags
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.known_tools import PreparedLists, ToolRules, ToolStorage, prepare_lists
from mcp_junction.registry.member import INCOMPATIBLE, INVALID_SCHEMA, Decision, Member
from mcp_junction.slices import pace
from mcp_junction.store.records import ToolRecord
from mcp_junction.tasks import OnDemandTask
from mcp_junction.upstream.events import ServerChange

log = logging.getLogger("mcp_junction.registry")

OFF: Final = "off"
CHANGED: Final = "definition_changed"
_PAUSE: Final = 0.2
_RETRY: Final = 1.0
_FEW: Final = 20
_FLAGS: Final = 8
_MOST_SCHEMAS: Final = 50_000
MOST_REMEMBERED: Final = 2 * MAX_ITEMS
"""Tools of one server that are remembered with their pins, those that are gone included."""
_LONGEST_FAULT: Final = 300
_TOO_MANY: Final = (
    f"it has listed more than {MOST_REMEMBERED} different tools, and new ones are left out; remove"
    " the server and register it again to have the old ones forgotten"
)

Flags = dict[str, tuple[str, ...]]
Iterate = Callable[[Iterable[ListItem]], Iterable[ListItem]]


class Inspection:
    """Inspects lists before anybody sees them, decides what of them is shown, and stores them."""

    def __init__(
        self,
        context: RegistryContext,
        storage: ToolStorage,
        on_flagged: Callable[[Member, Flags, list[str]], None],
    ) -> None:
        """``on_flagged`` is told a member's new flags, and the tools quarantined for them."""
        self._context = context
        self._storage = storage
        self._on_flagged = on_flagged
        self._schemas = SchemaFaults()
        self._examination = OnDemandTask(context.tasks, "tool flags", self._examine)
        self.schedule = self._examination.wake
        """Examines all tools together, soon; if that is being done, once more after it."""
        self.wait_until_done = self._examination.wait_until_done

    async def review(self, offering: ServerLists) -> ServerLists:
        """Inspect a server's new lists, and return what of them may be shown."""
        member = self._context.members.find(offering.upstream.definition.id)
        if member is None:
            return offering
        offering = self._admit_known(member, offering)
        if member.offering != offering:
            lists = await asyncio.to_thread(prepare_lists, offering)
            flags: Flags = {}
            if member.record.pin == STRICT:
                everything = self._lists_with(member, offering)
                flags = (await asyncio.to_thread(_find_flags, everything)).get(member.id, {})
            faults: dict[str, str] = {}
            if self._context.tool_rules.strict_schemas:
                faults = await asyncio.to_thread(self._schemas.find, offering.tools)
            self._compare_with_pins(member, lists, flags)
            self._note_schemas(member, faults)
            destructive = (row.name for row in lists[TOOLS.name] if row.is_destructive)
            self._context.tool_settings.note_destructive(member.id, destructive)
            member.offering = offering
            self._storage.store_soon(member, lists, flags)
            self.schedule()
        return drop_hidden_tools(member, offering, self._context.tool_rules)

    def _admit_known(self, member: Member, offering: ServerLists) -> ServerLists:
        """Leave out new tools of a server that has had too many.

        Each is remembered when it is gone, or a changed one would pass as new when it comes back: a
        server that lists others each time would fill the memory and the store.
        """
        known, condition = member.decisions, offering.upstream.condition
        condition.left_out, before = "", condition.left_out
        room = max(0, MOST_REMEMBERED - len(known))
        new = [tool.name for tool in offering.tools if tool.name not in known]
        excess = set(new[room:])
        if excess:
            condition.left_out = _TOO_MANY
            warn_once(offering.upstream, "server %r: %s", offering.upstream.key, _TOO_MANY)
        if condition.left_out != before:
            offering.upstream.apply_condition()
        if not excess:
            return offering
        tools = tuple(tool for tool in offering.tools if tool.name not in excess)
        return msgspec.structs.replace(offering, tools=tools)

    def _compare_with_pins(self, member: Member, lists: PreparedLists, flags: Flags) -> None:
        """Compare each tool with its pin. The store does the same, by the same rule."""
        strict = member.record.pin == STRICT
        decisions = member.decisions
        for definition in lists[TOOLS.name]:
            name, digest = definition.name, definition.hash
            known = decisions.get(name)
            state = None if known is None else known.state
            quarantined = is_quarantined(state, digest, strict=strict, suspect=name in flags)
            if known is None:
                decisions[name] = Decision(digest, digest, quarantined)
            else:
                known.hash, known.quarantined = digest, quarantined

    def _note_schemas(self, member: Member, faults: Mapping[str, str]) -> bool:
        """Note which tools have invalid schemas; return whether others have than before."""
        has_changed = False
        for name, decision in member.decisions.items():
            fault = faults.get(name, "")
            has_changed |= bool(fault) is not bool(decision.schema_fault)
            decision.schema_fault = fault
        return has_changed

    def _lists_with(self, member: Member, offering: ServerLists) -> list[ServerLists]:
        """Return the lists of all servers, in their order, with new ones for one of them."""
        every = [offering if m is member else m.offering for m in self._context.members]
        return [known for known in every if known is not None]

    # -- flags

    async def _examine(self) -> None:
        await asyncio.sleep(_PAUSE)
        self._examination.news.clear()
        members = [m for m in self._context.members if m.offering is not None]
        for member in members:
            await self._storage.wait_until_stored(member)
        offerings = [m.offering for m in members if m.offering is not None]
        found = await asyncio.to_thread(_find_flags, offerings, pace)
        faults = await asyncio.to_thread(self._find_schema_faults, offerings)
        for member, offering in zip(members, offerings, strict=True):
            async with member.decision_lock:  # or an approval that is being written would be undone
                is_current = member.offering is offering  # else it is examined again
                has_changed = is_current and self._note_schemas(member, faults[member.id])
                await self._store_flags(member, found.get(member.id, {}))
            if has_changed and self._context.tool_rules.strict_schemas:
                member.upstream.emit(ServerChange.TOOLS)

    def _find_schema_faults(self, offerings: list[ServerLists]) -> dict[str, dict[str, str]]:
        return {
            one.upstream.definition.id: self._schemas.find(one.tools, pace) for one in offerings
        }

    def _find_remarks(self, member: Member) -> dict[str, tuple[str, ...]]:
        """Find what is wrong with tools, though nothing is suspicious about it."""
        found: dict[str, tuple[str, ...]] = {
            name: (f"{INVALID_SCHEMA}: {decision.schema_fault}",)
            for name, decision in member.decisions.items()
            if decision.schema_fault
        }
        rules = self._context.tool_rules
        if any(one.versions is not None for one in rules.settings.of_server(member.id)):
            for item in member.listed_tools:
                why = rules.explain_incompatible(member, item)
                if why:
                    found[item.name] = (*found.get(item.name, ()), f"{INCOMPATIBLE}: {why}")
        return found

    async def _store_flags(self, member: Member, found: Flags) -> None:
        marks: dict[str, tuple[tuple[str, ...], bool]] = {}
        quarantined: list[str] = []
        strict, remarks = member.record.pin == STRICT, self._find_remarks(member)
        for name, decision in member.decisions.items():
            suspicious = () if member.record.pin == OFF else found.get(name, ())
            if decision.hash != decision.pinned:
                suspicious = (CHANGED, *suspicious)
            flags = (*suspicious, *remarks.get(name, ()))
            if flags == decision.flags:
                continue
            is_suspect = is_quarantined_by_flags(suspicious, decision.known_flags, strict=strict)
            if is_suspect and not decision.quarantined:
                decision.quarantined = True
                quarantined.append(name)
            decision.flags = flags
            marks[name] = (flags, decision.quarantined)
        if not marks:
            return
        try:
            await self._context.store.tools.mark(member.id, marks)
        except StoreUnavailable as error:
            log.warning("server %r: its flags cannot be stored: %s", member.name, error)
            for name in marks:
                member.decisions[name].flags = ()  # so that it is tried again
            self._examination.news.set()
            await asyncio.sleep(_RETRY)
        flagged = {name: flags for name, (flags, _) in marks.items() if flags}
        self._on_flagged(member, flagged, quarantined)


def drop_hidden_tools(member: Member, offering: ServerLists, rules: ToolRules) -> ServerLists:
    """Return a member's lists without the tools that may not be shown."""
    tools = tuple(tool for tool in offering.tools if rules.why_hidden(member, tool) is None)
    if len(tools) == len(offering.tools):
        return offering
    return msgspec.structs.replace(offering, tools=tools)


def describe_changes(before: ToolRecord, after: ToolRecord) -> list[str]:
    """Describe the differences between two versions of a tool, one per line."""
    texts = _canonical_text(before.definition), _canonical_text(after.definition)
    return [str(change) for change in pins.diff(*texts)][:_FEW]


def changes_of(tool: ToolRecord) -> tuple[DefinitionChange, ...]:
    """Find the differences between a tool's definition and the pinned one."""
    if tool.pinned_definition is None:
        return ()
    return pins.diff(_canonical_text(tool.pinned_definition), _canonical_text(tool.definition))


def _canonical_text(definition: bytes) -> bytes:
    """Return the canonical text of a stored definition."""
    return pins.define(msgspec.json.decode(definition, type=dict[str, msgspec.Raw])).text


def _find_flags(
    offerings: list[ServerLists],
    iterate: Callable[[Iterable[ExaminedTool]], Iterable[ExaminedTool]] = iter,
) -> dict[str, Flags]:
    """Find suspicious tools: their flags, by the server's id and the tool's name."""
    ids = {offering.upstream.key: offering.upstream.definition.id for offering in offerings}
    tools = (
        ExaminedTool(Pair(offering.upstream.key, offer.name), pins.define(offer.members))
        for offering in offerings
        for offer in offering.tools
    )
    found: dict[str, Flags] = {}
    for pair, flags in suspicion.examine(tools, iterate).items():
        if flags:
            words = tuple(dict.fromkeys(_format_flag(flag) for flag in flags))
            found.setdefault(ids[pair.server], {})[pair.name] = words[:_FLAGS]
    return found


def _format_flag(flag: Flag) -> str:
    parts: list[Any] = [flag.reason.value, flag.other or flag.detail]
    return ": ".join(part for part in parts if part)


class SchemaFaults:
    """Finds the faults of schemas, and remembers them by the schema's hash.

    Checking thousands takes seconds: call it in a thread. Whether such a tool is hidden,
    ``known_tools.py`` says.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def find(self, tools: Iterable[ListItem], iterate: Iterate = iter) -> dict[str, str]:
        """Return the first fault of each tool whose schema is invalid, by the tool's name."""
        found: dict[str, str] = {}
        for tool in iterate(tools):
            schema = tool.members.get("inputSchema")
            fault = self._check(schema) if schema is not None else ""
            if fault:
                found[tool.name] = fault
        return found

    def _check(self, schema: Raw) -> str:
        # Imported where it is used: the validator takes a while to load.
        from mcp_junction.governance.schemas import check_schema

        digest = sha256(schema).digest()
        known = self._known.get(digest)
        if known is None:
            problems = check_schema(schema)
            known = " ".join(problems[0]).strip()[:_LONGEST_FAULT] if problems else ""
            if len(self._known) >= _MOST_SCHEMAS:
                self._known.clear()
            self._known[digest] = known
        return known
