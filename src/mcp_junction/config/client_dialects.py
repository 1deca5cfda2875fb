"""Keys that MCP clients write into their own config files, and what each means to Junction.

Some are honoured under other names than ours (``disabledTools``, ``serverUrl``); the ones that
would change how a server behaves elsewhere and cannot here are named in a warning. Keys in neither
table are ignored. Junction's own options are read in ``config/servers.py``, all but ``tools``,
which says what those keys say (``ToolSelection``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import translate
from typing import Any, NamedTuple


class ToolSelection(NamedTuple):
    """Which tools of a server are shown: ``{allow, deny, rename}``. ``deny`` beats ``allow``."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    rename: Mapping[str, str] = {}

    def name_for(self, name: str) -> str | None:
        """Return the name that a tool is shown under; None when it is not shown."""
        if _any(self.deny, name) or (self.allow is not None and not _any(self.allow, name)):
            return None
        return self.rename.get(name, name)


def read_selection(value: Any) -> ToolSelection | None:
    """Read a selection from a file; None when it is not valid."""
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


URL_KEYS = ("httpUrl", "url", "serverUrl")
"""The address of a remote server: Gemini CLI's key, everybody's, Windsurf's."""

_ALLOW_KEYS = ("includeTools", "enabledTools", "enabled_tools", "tools")
"""Gemini CLI, various, Codex, Copilot: the only tools to show."""
_DENY_KEYS = ("excludeTools", "disabledTools", "disabled_tools")
"""Gemini CLI; Windsurf, Roo Code and Kiro; Codex: tools to hide."""

_ASKING = "your client still asks before it calls a tool"
_SIGN_IN = "Junction does not sign in with it; give a header or a variable instead"
_NO_EFFECT = {
    "alwaysAllow": _ASKING,
    "autoApprove": _ASKING,
    "trust": _ASKING,
    "oauth": _SIGN_IN,
    "authProviderType": _SIGN_IN,
    "headersHelper": "Junction runs no program to get headers; write them under headers",
    "watchPaths": "Junction does not start a server again when files change",
    "dev": "Junction does not start a server again when files change",
    "sandbox": "Junction starts the server without a sandbox",
    "sandboxEnabled": "Junction starts the server without a sandbox",
    "initTimeout": "use start_timeout_ms under junction",
    "startup_timeout_sec": "use start_timeout_ms under junction",
    "tool_timeout_sec": "use timeout, in milliseconds",
    "environment": "use env",
    "envs": "use env",
    "cmd": "use command",
}
"""Keys that have a meaning to another client and none here, and what to do about it."""

_WORKSPACE, _HOME = "workspaceFolder", "userHome"
WORKSPACE_VARIABLES = frozenset({_WORKSPACE, _HOME})
"""Names that VS Code and Cursor replace by folders: no secrets."""
_CLIENT_FOLDERS = frozenset({".vscode", ".cursor", ".roo", ".kiro", ".gemini", ".zed"})
"""Where clients keep the file of a workspace, one level below it."""

_SECONDS_BELOW = 1000
"""Cline and Roo Code count ``timeout`` in seconds: a number below this is likely to be meant so."""


def url_key(entry: Mapping[str, Any]) -> str:
    """Return the key that holds the address of a remote server."""
    return next((key for key in URL_KEYS if key in entry), "url")


def is_switched_off(entry: Mapping[str, Any]) -> bool:
    """Whether the entry has ``enabled: false``, as Codex, Zed and opencode write it."""
    return entry.get("enabled") is False


def read_tool_lists(entry: Mapping[str, Any]) -> tuple[ToolSelection | None, list[str]]:
    """Read which tools the user switched on or off in a client.

    Returns the selection, and the keys whose value is no array of names.
    """
    faulty: list[str] = []
    allowed = list(_lists(entry, _ALLOW_KEYS, faulty))
    denied = list(_lists(entry, _DENY_KEYS, faulty))
    if not allowed and not denied:
        return None, faulty
    # Gemini CLI lets an entry go on with arguments: "read_file(path)" means the tool read_file.
    names = [name.partition("(")[0] for found in allowed for name in found]
    deny = tuple(name for found in denied for name in found)
    return ToolSelection(tuple(names) if allowed else None, deny), faulty


def merge_selections(
    own: ToolSelection | None, client: ToolSelection | None
) -> ToolSelection | None:
    """Combine Junction's own selection with a client's.

    Whatever either hides is hidden; Junction's own ``allow`` stands in the place of the client's.
    """
    if own is None or client is None:
        return own or client
    allow = client.allow if own.allow is None else own.allow
    return ToolSelection(allow, (*own.deny, *client.deny), own.rename)


def workspace_variables(folder: str) -> dict[str, str]:
    """Return what the names of ``WORKSPACE_VARIABLES`` stand for in a file in ``folder``."""
    if not folder:
        return {}
    parent, name = os.path.split(folder)
    workspace = parent if name in _CLIENT_FOLDERS else folder
    return {_WORKSPACE: workspace, _HOME: os.path.expanduser("~")}


def warnings_about(entry: Mapping[str, Any]) -> list[str]:
    """Name every key that means something to another client and nothing to Junction."""
    words = [
        f"{key} has no effect here: {advice}"
        for key, advice in _NO_EFFECT.items()
        if entry.get(key) not in (None, False, [], {})
    ]
    timeout = entry.get("timeout")
    if type(timeout) is int and 0 < timeout < _SECONDS_BELOW:
        words.append(
            f"timeout is taken as {timeout} milliseconds; some clients count seconds:"
            f" for {timeout} s write {timeout * 1000}"
        )
    return words


def _lists(
    entry: Mapping[str, Any], keys: tuple[str, ...], faulty: list[str]
) -> Iterator[list[str]]:
    for key in keys:
        value = entry.get(key)
        if isinstance(value, list) and _are_texts(value):
            yield value
        elif value is not None and key != "tools":  # which others use for other things
            faulty.append(key)
