"""ToolRules: whether a tool may be listed and called, or else why not; and ToolState.

A tool is hidden while it is quarantined, disabled by the operator, of a version that is not
compatible, or, under ``strict_schemas``, while its schema is invalid; and while the operator's
setting is not validly signed. Who may call what is shown is another question (``policy/``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.governance.tool_facts import ToolSettings
from mcp_junction.policy.risk import Risk
from mcp_junction.policy.tool_settings import ToolSetting
from mcp_junction.policy.versions import is_compatible, parse_ranges
from mcp_junction.registry.member import INCOMPATIBLE, INVALID_SCHEMA, Member


class HiddenReason(StrEnum):
    """Why a tool cannot be called."""

    QUARANTINED = "quarantined"
    DISABLED = "disabled"
    UNVERIFIED = "setting_unverified"
    INCOMPATIBLE = INCOMPATIBLE
    INVALID_SCHEMA = INVALID_SCHEMA
    NOT_OFFERED = "not_offered"


class ToolState(msgspec.Struct, frozen=True):
    """What is known of a tool beside its definition."""

    version: str | None
    risk: Risk
    setting: ToolSetting
    reason: HiddenReason | None = None
    """Why it cannot be called; None when it can."""

    @property
    def enabled(self) -> bool:
        return self.reason is None


class _Versioned(msgspec.Struct):
    version: Any = None


_decode_meta = msgspec.json.Decoder(_Versioned).decode
_LONGEST_VERSION: Final = 200


def version_of(members: dict[str, Raw], server_version: str | None) -> str | None:
    """Return the version of a tool: its ``_meta.version``, or else its server's."""
    try:
        own = _decode_meta(members.get("_meta") or b"{}").version
    except msgspec.MsgspecError:  # a server may write anything
        own = None
    found = own if isinstance(own, str) and own else server_version
    return found[:_LONGEST_VERSION] if found else None


def explain_version(version: str | None, versions: str | None) -> str:
    """Explain why a version is not among the compatible ones; empty when it is."""
    if versions is None or is_compatible(version, parse_ranges(versions)):
        return ""
    return f"version {version} is not in {versions}"


class ToolRules:
    """Decides whether tools are hidden, by the settings as they are now."""

    def __init__(self, settings: ToolSettings, *, strict_schemas: bool = False) -> None:
        self.settings = settings
        self.strict_schemas = strict_schemas

    def why_hidden(self, member: Member, name: str, members: dict[str, Raw]) -> HiddenReason | None:
        """Return why a tool that its server lists is hidden; None when it is not."""
        decision = member.decisions.get(name)
        if decision is not None and decision.quarantined:
            return HiddenReason.QUARANTINED
        if self.settings.is_unverified(member.id, name):
            return HiddenReason.UNVERIFIED
        setting = self.settings.of(member.id, name)
        is_enabled = setting.enabled if setting is not None else None
        if is_enabled is False:
            return HiddenReason.DISABLED
        if self.explain_incompatible(member, name, members):
            return HiddenReason.INCOMPATIBLE
        is_invalid = decision is not None and decision.schema_fault
        if is_invalid and self.strict_schemas and is_enabled is None:
            return HiddenReason.INVALID_SCHEMA
        return None

    def explain_incompatible(self, member: Member, name: str, members: dict[str, Raw]) -> str:
        """Explain why the version of a listed tool is not compatible; empty when it is."""
        versions = self.settings.versions_of(member.id, name)
        if versions is None:
            return ""
        return explain_version(version_of(members, member.server_version), versions)

    def state_of(self, member: Member, name: str, members: dict[str, Raw]) -> ToolState:
        """Describe a tool that its server lists."""
        setting = self.settings.of(member.id, name)
        return ToolState(
            version_of(members, member.server_version),
            self.settings.risk_of(member.id, name, members.get("annotations")),
            setting or ToolSetting(member.id, name),
            self.why_hidden(member, name, members),
        )
