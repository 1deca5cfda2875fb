"""ToolSelection: which tools of a server are shown, and under which names of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import translate

import msgspec


class ToolSelection(msgspec.Struct, frozen=True):
    """``tools: {allow, deny, rename}`` of a server. A name denied is denied, allowed or not."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    rename: Mapping[str, str] = {}

    def name_for(self, name: str) -> str | None:
        """What a tool is called here; None when it is not shown."""
        if _any(self.deny, name) or (self.allow is not None and not _any(self.allow, name)):
            return None
        return self.rename.get(name, name)


def _any(patterns: tuple[str, ...], name: str) -> bool:
    return any(pattern == name or re.match(translate(pattern), name) for pattern in patterns)
