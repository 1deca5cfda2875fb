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
        if key in _OURS:
            raise ValueError(f"the header {name!r} is set by Junction itself")
        if not _NAME.fullmatch(key) or not value.isprintable() or max(value, default="") > "\xff":
            raise ValueError(f"the header {name!r} has a name or value that cannot be sent")
        found[key] = value
    return found
