"""ToolSelection: which tools of a server are shown, and under which names of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import Any, NamedTuple


class ToolSelection(NamedTuple):
    """``tools: {allow, deny, rename}`` of a server. A name denied is denied, allowed or not."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    rename: Mapping[str, str] = {}

    def name_for(self, name: str) -> str | None:
        """What a tool is called here; None when it is not shown."""
        if _any(self.deny, name) or (self.allow is not None and not _any(self.allow, name)):
            return None
        return self.rename.get(name, name)


def read_selection(value: Any) -> ToolSelection | None:
    """A selection as it stands in a file; None when it makes no sense."""
    if not isinstance(value, dict):
        return None
    allow, deny, rename = value.get("allow"), value.get("deny", []), value.get("rename", {})
    lists = [deny] if allow is None else [allow, deny]
    if not all(isinstance(names, list) and _are_texts(names) for names in lists):
        return None
    if not isinstance(rename, dict) or not _are_texts(rename.values()):
        return None
    return ToolSelection(None if allow is None else tuple(allow), tuple(deny), rename)


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _any(patterns: tuple[str, ...], name: str) -> bool:
    return any(pattern == name or re.match(translate(pattern), name) for pattern in patterns)
