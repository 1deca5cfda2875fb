"""ToolSetting: what the operator has set for one tool of a server, seen or not seen yet. Pure data.

What is not set is None: the tool's own definition, its server and the settings of the process
decide then. How settings are stored and kept current is ``governance/tool_settings.py``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mcp_junction.policy.risk import RiskLevel


class FallbackTarget(msgspec.Struct, frozen=True):
    """A tool to call in place of one that failed."""

    server_id: str
    tool_name: str
    arguments: dict[str, Any] | None = None
    """From each argument of the target to a JSON Pointer into the caller's arguments, or to
    ``{"value": …}``; None passes the caller's arguments on as they are."""


class ToolSetting(msgspec.Struct, frozen=True):
    """The operator's word about one tool."""

    server_id: str
    tool_name: str
    enabled: bool | None = None
    risk: RiskLevel | None = None
    read_only: bool | None = None
    idempotent: bool | None = None
    timeout_ms: int | None = None
    fallbacks: tuple[FallbackTarget, ...] = ()
    versions: str | None = None
    """The versions of the tool that are compatible, exact or as a range."""
