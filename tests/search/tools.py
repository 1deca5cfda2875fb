"""Tools to be found, as a server would describe them."""

from typing import Any

import msgspec
from msgspec import Raw

from mcp_junction.catalog.discovery import Offer


def tool(name: str, description: Any = "", *params: str, **members: Any) -> Offer:
    """A tool with these words about it."""
    schema = {"type": "object", "properties": {param: {"type": "string"} for param in params}}
    said = {"name": name, "description": description, "inputSchema": schema, **members}
    return Offer(name, {key: Raw(msgspec.json.encode(value)) for key, value in said.items()})
