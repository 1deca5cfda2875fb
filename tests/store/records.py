"""Records to put into a store."""

import json
from uuid import uuid4

from mcp_junction.store.pinning import definition_hash
from mcp_junction.store.records import Definition, ServerRecord

SECRET = "canary-5ecret"


def server(name: str = "files", **fields) -> ServerRecord:
    given = {
        "id": str(uuid4()),
        "name": name,
        "transport_type": "STDIO",
        "connection_config": {"command": "files", "env": {"API_KEY": SECRET}},
    }
    return ServerRecord(**{**given, **fields})


def definition(name: str, **fields) -> Definition:
    raw = json.dumps({"name": name, "inputSchema": {"type": "object"}, **fields}).encode()
    return Definition(name, raw, definition_hash(raw))
