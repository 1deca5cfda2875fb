"""Tools to be found, as a server would describe them."""

from typing import Any

import msgspec
from msgspec import Raw

from mcp_junction.catalog.items import ListItem


def tool(name: str, description: Any = "", *params: str, **members: Any) -> ListItem:
    """A tool with these words about it."""
    schema = {"type": "object", "properties": {param: {"type": "string"} for param in params}}
    said = {"name": name, "description": description, "inputSchema": schema, **members}
    return ListItem(name, {key: Raw(msgspec.json.encode(value)) for key, value in said.items()})
