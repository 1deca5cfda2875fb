"""Records to put into a store."""

import json
from hashlib import sha256
from uuid import uuid4

from mcp_junction.store.records import ServerRecord, ToolDefinitionRow

SECRET = "canary-5ecret"


def server(name: str = "files", **fields) -> ServerRecord:
    given = {
        "id": str(uuid4()),
        "name": name,
        "transport_type": "STDIO",
        "connection_config": {"command": "files", "env": {"API_KEY": SECRET}},
    }
    return ServerRecord(**{**given, **fields})


def definition_hash(raw: bytes) -> str:
    """Any hash will do: what makes two definitions the same is not the store's to say."""
    return sha256(raw).hexdigest()


def definition(name: str, **fields) -> ToolDefinitionRow:
    raw = json.dumps({"name": name, "inputSchema": {"type": "object"}, **fields}).encode()
    return ToolDefinitionRow(name, raw, definition_hash(raw))
