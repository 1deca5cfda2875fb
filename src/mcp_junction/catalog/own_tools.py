"""Definitions of Junction's own tools: ``find_tools``, ``describe_tools`` and ``call_tool``.

They have the same names in every spelling. And of the one tool that a server has in a list while it
wants a sign-in and its own are not known. Which exposure applies to a client is decided in
``endpoints.py``, and what is listed by it in ``view.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcp_junction.catalog.items import ListItem
from mcp_junction.protocol import encode
from mcp_junction.protocol.names import Pair

FIND: Final = "find_tools"
DESCRIBE: Final = "describe_tools"
CALL: Final = "call_tool"
OWN_NAMES: Final = frozenset((FIND, DESCRIBE, CALL))
SIGN_IN: Final = "sign_in"
OWN_SERVER: Final = ""
"""The server key of Junction's own tools. No real server has it."""

TOKEN_BYTES: Final = 4
"""Bytes of UTF-8 that count as one token."""
MOST_FOUND: Final = 50
MOST_DESCRIBED: Final = 20
LONGEST_QUERY: Final = 1000
USUALLY_FOUND: Final = 10
_NAMED: Final = 40
_SKILLS_NAMED: Final = 15
_LONGEST_KEY: Final = 80
_NONE: Final[Mapping[str, int]] = {}
_LOADED: Final = {
    "anthropic/alwaysLoad": True,
    "anthropic/searchHint": "search, find, describe and call the tools of all connected servers",
}
"""For clients that keep tools out of the context until they are searched for: not these three."""

_LOADED_META: Final = Raw(encode.dumps(_LOADED))
SIGNED_IN: Final = encode.dumps(
    {"content": [{"type": "text", "text": "Signed in. The server's own tools are listed now."}]}
)
"""The result of ``sign_in`` when somebody has signed in."""
_READING: Final = {"readOnlyHint": True, "openWorldHint": False}
_CHANGING: Final = {"readOnlyHint": False, "openWorldHint": True}


def own_offers(
    servers: Mapping[str, int], skills: Mapping[str, int] = _NONE
) -> tuple[ListItem, ...]:
    """Return the three tools. ``servers``: how many tools each server has that can be called now.

    The description names the servers, and the ``skills`` that their tools have: models do not use a
    search without knowing what it covers.
    """
    words = _describe_search(servers, skills)
    return (
        _offer(FIND, "Find tools", words, _FIND_PROPERTIES, _READING),
        _offer(DESCRIBE, "Describe tools", _DESCRIBE_TEXT, _DESCRIBE_PROPERTIES, _READING),
        _offer(CALL, "Call a tool", _CALL_TEXT, _CALL_PROPERTIES, _CHANGING),
    )


def sign_in_offer(server: str) -> ListItem:
    """Return the tool that leads to the sign-in of a server whose own tools are not known yet."""
    words = (
        f"The server {server[:_LONGEST_KEY]!r} lists its tools when somebody has signed in to it."
        " Call this to be shown where; then list the tools again."
    )
    return _offer(SIGN_IN, f"Sign in to {server[:_LONGEST_KEY]}", words, {}, _CHANGING)


def is_sign_in_offer(item: ListItem | None) -> bool:
    """Whether an item is that tool, and no server's own of the same name."""
    return item is not None and item.name == SIGN_IN and item.members.get("_meta") is _LOADED_META


def _describe_search(servers: Mapping[str, int], skills: Mapping[str, int]) -> str:
    if not servers:
        return f"Search for tools. No server is connected now; try again later. {_NEXT_STEPS}"
    named = [f"{key[:_LONGEST_KEY]} ({count})" for key, count in list(servers.items())[:_NAMED]]
    more = len(servers) - len(named)
    rest = f" and {more} more servers" if more else ""
    total = sum(servers.values())
    return (
        f"Search the {total} tools that you can call here. They belong to these servers (with the"
        f" number of their tools): {', '.join(named)}{rest}.{_about(skills)} {_NEXT_STEPS}"
    )


def _about(skills: Mapping[str, int]) -> str:
    named = [name[:_LONGEST_KEY] for name in list(skills)[:_SKILLS_NAMED]]
    return f" They are for: {'; '.join(named)}." if named else ""


_NEXT_STEPS: Final = (
    "Whenever a task may need one of them, say in a few words what you want to do, and you get the"
    f" names of the best tools with what they are for. Then use {DESCRIBE} for the arguments they"
    f" take, and {CALL} to call one."
)
_DESCRIBE_TEXT: Final = (
    f"Get the full definitions of tools, with the schema of their arguments, by the names that"
    f" {FIND} gave."
)
_CALL_TEXT: Final = (
    f"Call a tool by the name that {FIND} gave. The result is that tool's own. Look at its"
    f" arguments with {DESCRIBE} first."
)
_FIND_PROPERTIES: Final = {
    "query": {
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_QUERY,
        "description": "What you want to do, in a few words: 'create a GitHub issue'.",
    },
    "limit": {
        "type": "integer",
        "minimum": 1,
        "maximum": MOST_FOUND,
        "default": USUALLY_FOUND,
        "description": "How many tools at most.",
    },
}
_DESCRIBE_PROPERTIES: Final = {
    "names": {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "maxItems": MOST_DESCRIBED,
        "description": "The names of the tools.",
    }
}
_CALL_PROPERTIES: Final = {
    "name": {"type": "string", "description": "The name of the tool."},
    "arguments": {
        "type": "object",
        "default": {},
        "description": "What the tool is to be called with, by its own schema.",
    },
}
_REQUIRED: Final[dict[str, list[str]]] = {
    FIND: ["query"], DESCRIBE: ["names"], CALL: ["name"], SIGN_IN: [],
}  # fmt: skip


def _offer(
    name: str, title: str, description: str, properties: dict[str, Any], hints: dict[str, bool]
) -> ListItem:
    schema = {
        "type": "object",
        "properties": properties,
        "required": _REQUIRED[name],
        "additionalProperties": False,
    }
    members = {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": schema,
        "annotations": hints,
    }
    made = {key: Raw(encode.dumps(value)) for key, value in members.items()}
    return ListItem(name, {**made, "_meta": _LOADED_META})


# -- what is listed where tools are searched for


class SearchRule(msgspec.Struct, frozen=True):
    """What is listed to clients that may search for tools."""

    exposure: str
    """Where it is ``auto``, search is listed if all tools take more than so many ``tokens``."""
    tokens: int
    favourites: tuple[str, ...]
    """Patterns of tools that are listed, too, beside those of the endpoint."""
    skills: Mapping[Pair, str]
    """The skill of each tool; the description of the search names those of the tools listed."""


class ListedTokens:
    """Counts the tokens of tool lists sent since the start, and those that search saved."""

    __slots__ = ("_listed", "_whole")

    def __init__(self) -> None:
        self._listed = 0
        self._whole = 0

    def add(self, listed: int, whole: int) -> None:
        """Count a list: its bytes, and those that all definitions would have had."""
        self._listed += listed
        self._whole += whole

    @property
    def listed(self) -> int:
        return self._listed // TOKEN_BYTES

    @property
    def saved(self) -> int:
        """Tokens saved by search; negative when the three search tools take more than all tools."""
        return (self._whole - self._listed) // TOKEN_BYTES
