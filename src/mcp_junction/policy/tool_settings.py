"""ToolSetting: what the operator has set for one tool of a server, seen or not seen yet. Pure data.

What is not set is None: the tool's own definition, its server and the settings of the process
decide then. ``governance/tool_facts.py`` has all settings in memory, ``store/tool_settings.py``
stores them, and ``registry/tool_settings.py`` changes them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from mcp_junction.policy.risk import RiskLevel

ALL_TOOLS: Final = "*"
"""The name under which the versions for all tools of a server are set."""
MAX_FALLBACKS: Final = 10
MAX_MAPPED: Final = 100
"""Arguments that a fallback maps."""
_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
_VALUE: Final = "value"


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
    is_unverified: bool = False
    """Whether the store has a setting whose signature is wrong: what was set is not known, and the
    tool is disabled until an operator sets it again."""


SETTABLE: Final = tuple(ToolSetting.__struct_fields__[2:-1])
"""The fields that an operator sets."""


def find_mapping_error(arguments: dict[str, Any]) -> tuple[str, str] | None:
    """Find the first argument that a fallback maps wrongly, and what is wrong with it."""
    if len(arguments) > MAX_MAPPED:
        return "", f"maps more than {MAX_MAPPED} arguments"
    for name, source in arguments.items():
        if isinstance(source, str):
            if _POINTER.fullmatch(source) is None:
                return name, "is not a JSON Pointer; write one like /query, with ~1 for / in a name"
        elif not isinstance(source, dict) or source.keys() != {_VALUE}:
            return name, 'must be a JSON Pointer like /query, or {"value": …}'
    return None
