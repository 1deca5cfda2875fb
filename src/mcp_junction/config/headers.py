"""Headers the operator gives for a server, checked before they go on a wire."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OURS = {
    "host", "content-length", "transfer-encoding", "connection", "content-type", "accept",
    "mcp-session-id", "mcp-protocol-version", "last-event-id",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """Lower-case names. Raises ValueError for what cannot be a header, or is ours to set."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower().strip()
        fault = "is set by Junction itself; remove it" if key in _OURS else header_fault(key, value)
        if fault is not None:
            raise ValueError(f"the header {name!r} {fault}")
        found[key] = value
    return found


def header_fault(name: str, value: str) -> str | None:
    """Why a header cannot be sent, without its value: it may be a secret."""
    if not _NAME.fullmatch(name.strip()):
        return "has a name that cannot be sent: letters, digits and '-' can"
    if not value.isprintable() or max(value, default="") > "\xff":
        return "has a value that cannot be sent: it holds a line break or another odd character"
    return None
