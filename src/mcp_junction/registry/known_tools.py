"""KnownTools: all tools that servers list or were registered with, as they are in memory.

What a caller may see of them is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_junction.catalog.items import ListItem
from mcp_junction.governance.tool_facts import ToolSettings
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.registry.context import RegistryContext
from mcp_junction.registry.declarations import Declared
from mcp_junction.registry.member import Member
from mcp_junction.registry.tool_rules import (
    HiddenReason,
    ToolRules,
    ToolState,
    explain_version,
)


class KnownTool:
    """A tool that its server lists, with its definition and its state."""

    __slots__ = ("_member", "_rules", "item")

    def __init__(self, member: Member, item: ListItem, rules: ToolRules) -> None:
        self.item = item
        self._member = member
        self._rules = rules

    @property
    def name(self) -> str:
        return self.item.name

    @property
    def server_id(self) -> str:
        return self._member.id

    @property
    def server(self) -> str:
        """The name of its server."""
        return self._member.name

    @property
    def flags(self) -> tuple[str, ...]:
        """What was noticed about it."""
        decision = self._member.decisions.get(self.name)
        return decision.flags if decision is not None else ()

    @property
    def reason(self) -> HiddenReason | None:
        """Why it cannot be called; None when it can."""
        return self._rules.why_hidden(self._member, self.name, self.item.members)

    @property
    def state(self) -> ToolState:
        return self._rules.state_of(self._member, self.name, self.item.members)

    @property
    def _settings(self) -> ToolSettings:
        return self._rules.settings


class UnlistedTool(KnownTool):
    """A tool that its server was registered with, and does not list, or not yet."""

    __slots__ = ("_version",)

    def __init__(self, member: Member, declared: Declared, rules: ToolRules) -> None:
        super().__init__(member, declared.item, rules)
        self._version = declared.version or member.server_version

    @property
    def reason(self) -> HiddenReason | None:
        """Why it cannot be called; None when nothing but its server's connection is missing."""
        if self._settings.is_unverified(self.server_id, self.name):
            return HiddenReason.UNVERIFIED
        setting = self._settings.of(self.server_id, self.name)
        if setting is not None and setting.enabled is False:
            return HiddenReason.DISABLED
        versions = self._settings.versions_of(self.server_id, self.name)
        if explain_version(self._version, versions):
            return HiddenReason.INCOMPATIBLE
        return HiddenReason.NOT_OFFERED if self._member.offering is not None else None

    @property
    def state(self) -> ToolState:
        setting = self._settings.of(self.server_id, self.name)
        annotations = self.item.members.get("annotations")
        risk = self._settings.risk_of(self.server_id, self.name, annotations)
        setting = setting or ToolSetting(self.server_id, self.name)
        return ToolState(self._version, risk, setting, self.reason)


class KnownTools:
    """Finds and lists the tools of all servers."""

    def __init__(self, context: RegistryContext) -> None:
        self._context = context
        self._rules = context.tool_rules

    def of(self, ref: str | None = None) -> Iterator[KnownTool]:
        """Iterate over the tools of one server, or of all. Raises NotFound."""
        members = self._context.members
        return self._each(list(members) if ref is None else [members.get(ref)])

    def _each(self, members: list[Member]) -> Iterator[KnownTool]:
        for member in members:
            for item in member.listed_tools:
                yield KnownTool(member, item, self._rules)
            declared = self._context.declared.of(member.id)
            listed = {item.name for item in member.listed_tools} if declared else set()
            for name, one in declared.items():
                if name not in listed:
                    yield UnlistedTool(member, one, self._rules)

    def find(self, ref: str, name: str) -> KnownTool | None:
        """Find a tool by its server's id or name, and its own name."""
        member = self._context.members.find(ref)
        if member is None:
            return None
        for item in member.listed_tools:
            if item.name == name:
                return KnownTool(member, item, self._rules)
        declared = self._context.declared.of(member.id).get(name)
        return None if declared is None else UnlistedTool(member, declared, self._rules)
