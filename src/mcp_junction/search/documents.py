"""Document: a tool as the index knows it: its terms by field, from what its server says of it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from mcp_junction.search.words import all_terms, terms

NAME: Final = "name"
DESCRIPTION: Final = "description"
PARAMS: Final = "params"
SERVER: Final = "server"

_READ: Final = 500
"""Characters of a description. What comes later says less, and somebody may have written a book."""
_NAMES: Final = 300
"""Characters of a name."""
_PARAMS: Final = 1000
"""Characters of the names of all parameters."""

Fields = dict[str, Counter[str]]


class Described(Protocol):
    """A tool: the name it is known by, and what its server says of it, raw."""

    @property
    def name(self) -> str: ...

    @property
    def members(self) -> dict[str, Raw]: ...


class _Schema(msgspec.Struct):
    properties: dict[str, Raw] = {}


_strings = msgspec.json.Decoder(str)
_schemas = msgspec.json.Decoder(_Schema)


def fields(server: str, tool: Described) -> Fields:
    """The terms of a tool, by field. What cannot be read has none."""
    members = tool.members
    words = f"{_said(_strings, members.get('title'))} {_said(_strings, members.get('description'))}"
    schema = _said(_schemas, members.get("inputSchema"))
    params = " ".join(schema.properties) if schema else ""
    return {
        NAME: Counter(all_terms(tool.name[:_NAMES])),
        DESCRIPTION: Counter(terms(words[:_READ])),
        PARAMS: Counter(all_terms(params[:_PARAMS])),
        SERVER: Counter(all_terms(server[:_NAMES])),
    }


def _said(decoder: msgspec.json.Decoder[Any], raw: Raw | None) -> Any:
    try:
        return decoder.decode(raw) if raw is not None else ""
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
