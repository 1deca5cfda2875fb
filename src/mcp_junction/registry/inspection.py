"""Inspection: every list of tools is looked at before anybody sees it.

A definition is compared with its pin; under ``strict`` one that differs, and one with something
suspicious about it, is kept back until a person approves it. What imitates another server's tool,
or hides something, is flagged under every pin but ``off``: at once under ``strict``, moments later
otherwise, since that takes all tools of all servers together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from mcp_junction.catalog import pins, suspicion
from mcp_junction.catalog.catalog import Offering
from mcp_junction.catalog.kinds import TOOLS
from mcp_junction.catalog.pins import DefinitionChange
from mcp_junction.catalog.suspicion import ExaminedTool, Flag
from mcp_junction.errors import StoreUnavailable
from mcp_junction.policy.pinning import STRICT, is_quarantined, is_quarantined_by_flags
from mcp_junction.protocol.names import Pair
from mcp_junction.registry.member import Decision, Member
from mcp_junction.registry.tool_storage import Prepared, ToolStorage, prepare
from mcp_junction.slices import pace
from mcp_junction.store.records import ToolRecord
from mcp_junction.store.store import Store
from mcp_junction.tasks import TaskScope
from mcp_junction.upstream.server import Upstream

log = logging.getLogger("mcp_junction.registry")

OFF: Final = "off"
CHANGED: Final = "definition_changed"
_PAUSE: Final = 0.2
_RETRY: Final = 1.0
_FEW: Final = 20
_FLAGS: Final = 8

Flags = dict[str, tuple[str, ...]]


class Inspection:
    """Looks at lists, decides what of them is shown, and has them stored."""

    def __init__(
        self,
        store: Store,
        shelving: ToolStorage,
        tasks: TaskScope,
        member_of: Callable[[Upstream], Member | None],
        members: Callable[[], Iterable[Member]],
        flagged: Callable[[Member, Flags, list[str]], None],
    ) -> None:
        self._store = store
        self._shelving = shelving
        self._tasks = tasks
        self._member_of = member_of
        self._members = members
        self._flagged = flagged
        self._looking: asyncio.Task[None] | None = None
        self._again = False

    async def review(self, offering: Offering) -> Offering:
        """What may be shown of what a server offers."""
        member = self._member_of(offering.upstream)
        if member is None:
            return offering
        if member.offering != offering:
            lists = await asyncio.to_thread(prepare, offering)
            flags: Flags = {}
            if member.record.pin == STRICT:
                everything = self._with(member, offering)
                flags = (await asyncio.to_thread(_examined, everything)).get(member.id, {})
            self._judge(member, lists, flags)
            member.offering = offering
            self._shelving.put(member, lists, flags)
            self.look()
        return shown(member, offering)

    def _judge(self, member: Member, lists: Prepared, flags: Flags) -> None:
        """Compare each tool with its pin. The store comes to the same end, by the same rule."""
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

    def _with(self, member: Member, offering: Offering) -> list[Offering]:
        """What all servers offer, in their order, with these lists of one of them."""
        every = [offering if m is member else m.offering for m in self._members()]
        return [known for known in every if known is not None]

    # -- flags

    def look(self) -> None:
        """Look at all tools together, soon; if that is being done, once more after it."""
        self._again = True
        if self._looking is None or self._looking.done():
            self._looking = self._tasks.supervise("tool flags", self._look, is_vital=False)

    async def settled(self, limit: float | None = None) -> None:
        """Wait until nothing is left to look at, at most ``limit`` seconds."""
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=limit)

    async def _look(self) -> None:
        while self._again:
            await asyncio.sleep(_PAUSE)
            self._again = False
            try:
                await self._look_once()
            except Exception:
                self._again = True  # the task is run again, and then has this to do
                raise

    async def _look_once(self) -> None:
        members = [m for m in self._members() if m.offering is not None]
        for member in members:
            await self._shelving.settled(member)
        offerings = [m.offering for m in members if m.offering is not None]
        found = await asyncio.to_thread(_examined, offerings, pace)
        for member in members:
            async with member.deciding:  # or an approval that is being written would be undone
                await self._mark(member, found.get(member.id, {}))

    async def _mark(self, member: Member, found: Flags) -> None:
        marks: dict[str, tuple[tuple[str, ...], bool]] = {}
        held: list[str] = []
        for name, decision in member.decisions.items():
            flags = () if member.record.pin == OFF else found.get(name, ())
            if decision.hash != decision.pinned:
                flags = (CHANGED, *flags)
            if flags == decision.flags:
                continue
            strict = member.record.pin == STRICT
            is_held = is_quarantined_by_flags(flags, decision.known_flags, strict=strict)
            if is_held and not decision.quarantined:
                decision.quarantined = True
                held.append(name)
            decision.flags = flags
            marks[name] = (flags, decision.quarantined)
        if not marks:
            return
        try:
            await self._store.tools.mark(member.id, marks)
        except StoreUnavailable as error:
            log.warning("server %r: its flags cannot be stored: %s", member.name, error)
            for name in marks:
                member.decisions[name].flags = ()  # so that it is tried again
            self._again = True
            await asyncio.sleep(_RETRY)
        self._flagged(member, {name: flags for name, (flags, _) in marks.items() if flags}, held)


def shown(member: Member, offering: Offering) -> Offering:
    """An offering without what is kept back."""
    decisions = member.decisions
    tools = tuple(
        tool
        for tool in offering.tools
        if (known := decisions.get(tool.name)) is None or known.is_open
    )
    if len(tools) == len(offering.tools):
        return offering
    return msgspec.structs.replace(offering, tools=tools)


def differences(before: ToolRecord, after: ToolRecord) -> list[str]:
    """What is different in a tool, in words."""
    texts = _text(before.definition), _text(after.definition)
    return [str(change) for change in pins.diff(*texts)][:_FEW]


def changes_of(tool: ToolRecord) -> tuple[DefinitionChange, ...]:
    """What is different in a tool from what is pinned."""
    if tool.pinned_definition is None:
        return ()
    return pins.diff(_text(tool.pinned_definition), _text(tool.definition))


def _text(definition: bytes) -> bytes:
    """The canonical text of a definition as it is stored."""
    return pins.define(msgspec.json.decode(definition, type=dict[str, msgspec.Raw])).text


def _examined(
    offerings: list[Offering],
    iterate: Callable[[Iterable[ExaminedTool]], Iterable[ExaminedTool]] = iter,
) -> dict[str, Flags]:
    """What is to be looked at, by the server's id and the tool."""
    ids = {offering.upstream.key: offering.upstream.definition.id for offering in offerings}
    tools = (
        ExaminedTool(Pair(offering.upstream.key, offer.name), pins.define(offer.members))
        for offering in offerings
        for offer in offering.tools
    )
    found: dict[str, Flags] = {}
    for pair, flags in suspicion.examine(tools, iterate=iterate).items():
        if flags:
            words = tuple(dict.fromkeys(_words(flag) for flag in flags))
            found.setdefault(ids[pair.server], {})[pair.name] = words[:_FLAGS]
    return found


def _words(flag: Flag) -> str:
    parts: list[Any] = [flag.reason.value, flag.other or flag.detail]
    return ": ".join(part for part in parts if part)
