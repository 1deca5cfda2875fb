"""The endpoints of the integration seed's table, with the bodies and members that it gives them.

What each endpoint does beyond that is in the test files of its subject.
"""

from contextlib import AsyncExitStack
from datetime import datetime

import pytest
from tests.plugin_rest import serve_api
from tests.registry.toolbox import Toolbox, tool

MCP = "/api/v1/mcp"
SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 10}},
    "required": ["query"],
}
REGISTRATION = {
    "server_id": "context7",
    "version": "1.0.0",
    "capabilities": ["search", "documentation"],
    "tools": [{"name": "search", "schema": SCHEMA, "version": "1.0.0"}],
}
GRANT = {
    "agent_id": "agent-001",
    "tool_name": "search",
    "actions": ["invoke"],
    "token_ttl": 900,
    "token_id": None,
    "server_id": "context7",
}
INVOCATION = {
    "correlation_id": "req-12345",
    "agent_id": "agent-001",
    "server_id": "context7",
    "tool_name": "search",
    "params": {"query": "Python async patterns", "limit": 5},
    "idempotency_key": "idemp-67890",
    "ticket_id": "ticket-abc",
    "task_id": "task-xyz",
    "requested_at": "2025-01-16T10:30:00.123456",
}
TOOL = {"server_id", "tool_name", "schema", "version", "enabled"}
RESULT = {"correlation_id", "success", "result", "error", "attempts", "latency_ms", "completed_at"}
CIRCUIT = {"state", "failure_count", "last_failure_time", "opened_at"}
PLACE = {"server_id": "context7", "tool_name": "search"}


@pytest.fixture
async def client(opener):
    """An administrator's client of a gateway without servers."""
    async with AsyncExitStack() as stack:
        yield (await serve_api(stack, opener, grants=False)).client()


@pytest.fixture
async def connected(client, toolbox):
    """The same, with the seed's server registered and connected."""
    box: Toolbox = await toolbox([tool("search", inputSchema=SCHEMA)])
    reached = {"transport_type": "HTTP", "connection_config": {"url": box.url}}
    answer = await client.post(f"{MCP}/register", json={**REGISTRATION, "connection": reached})
    assert answer.status_code == 200, answer.text
    return client


@pytest.mark.req("MCP-POST-register", "MCP-GET-tools", "MCP-GET-tool", "REQ-MCP-REG-001")
async def test_a_server_is_registered_and_its_tool_is_listed_and_shown(client):
    answer = await client.post(f"{MCP}/register", json=REGISTRATION)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["server_id"], told["registered_count"], told["rejected_count"]) == (
        "context7",
        1,
        0,
    )
    (registered,), rejected = told["registered_tools"], told["rejected_tools"]
    assert rejected == []
    expected = {**PLACE, "schema": SCHEMA, "version": "1.0.0", "enabled": True}
    one = (await client.get(f"{MCP}/tools/context7/search")).json()
    for query in ({}, {"server_id": "context7"}, {"server_id": "context7", "enabled_only": "true"}):
        (listed,) = (await client.get(f"{MCP}/tools", params=query)).json()
        for shown in (registered, listed, one):
            assert {name: shown[name] for name in TOOL} == expected
    missing = await client.get(f"{MCP}/tools/context7/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "ToolNotFoundError")


@pytest.mark.req("MCP-POST-policies-grant", "MCP-GET-policies", "REQ-MCP-AUTH-001")
async def test_a_permission_is_granted_and_listed(connected):
    answer = await connected.post(f"{MCP}/policies/grant", json=GRANT)
    assert answer.status_code == 201, answer.text
    given = answer.json()
    plain = {name: value for name, value in GRANT.items() if name != "token_id"}
    assert {name: given[name] for name in plain} == plain
    assert given["token_id"] is not None
    (listed,) = (await connected.get(f"{MCP}/policies/agent-001")).json()
    assert {name: listed[name] for name in plain} == plain
    chosen = await connected.post(f"{MCP}/policies/grant", json={**GRANT, "token_id": "mine"})
    assert (chosen.status_code, chosen.json()["error"]["type"]) == (400, "BadRequestError")


@pytest.mark.req("MCP-POST-invoke", "MCP-GET-circuit-breakers", "MCP-GET-metrics")
async def test_a_tool_is_invoked_and_seen_in_circuits_and_metrics(connected):
    assert (await connected.post(f"{MCP}/policies/grant", json=GRANT)).status_code == 201
    answer = await connected.post(f"{MCP}/invoke", json=INVOCATION)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told.keys() >= RESULT
    assert (told["correlation_id"], told["success"], told["error"]) == ("req-12345", True, None)
    assert (told["attempts"], told["latency_ms"] > 0) == (1, True)
    assert datetime.fromisoformat(told["completed_at"]).tzinfo is not None
    for query in ({}, {"server_id": "context7"}, PLACE):
        found = (await connected.get(f"{MCP}/circuit-breakers", params=query)).json()
        (row,) = [one for one in found if one["tool_name"] == "search"]
        assert row.keys() >= CIRCUIT
        assert (row["state"], row["failure_count"], row["opened_at"]) == ("CLOSED", 0, None)
    for query in ({}, {"server_id": "context7"}, {**PLACE, "time_range": "15m"}):
        counted = await connected.get(f"{MCP}/metrics", params=query)
        assert (counted.status_code, counted.json()["calls"]) == (200, 1), counted.text
    other = await connected.get(f"{MCP}/metrics", params={**PLACE, "tool_name": "other"})
    assert other.json()["calls"] == 0
