"""``POST /api/v1/mcp/register``: servers with their tools, checked, as often as it is asked."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw
from tests.plugin_registry import ADMIN
from tests.plugin_rest import SERVERS, Served, stdio_config
from tests.registry.toolbox import tool, until

from mcp_junction.config.load import load
from mcp_junction.protocol.versions import SERVER_UNAVAILABLE
from mcp_junction.registry.server_registration import ServerDeclaration, ServerRegistrar
from mcp_junction.store.audit_records import AuditQuery

REGISTER = "/api/v1/mcp/register"
TOOLS = "/api/v1/mcp/tools"
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#", **SCHEMA}
DRAFT_2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMA}


def declared(name: str, schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"name": name, "schema": schema, **more}


def server(*tools: Any, **more: Any) -> dict[str, Any]:
    given = {"server_id": "context7", "version": "1.0.0", "capabilities": ["search"]}
    return {**given, "tools": list(tools), **more}


async def register(served: Served, *tools: Any, **more: Any) -> dict[str, Any]:
    answer = await served.client().post(REGISTER, json=server(*tools, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def connection(toolbox, *tools: dict) -> tuple[Any, dict[str, Any]]:
    box = await toolbox(list(tools))
    config = {"transport_type": "HTTP", "connection_config": {"url": box.url}}
    return box, {**config, "allow_private": True, "allow_http": True}


async def shown(served: Served, name: str, ref: str = "context7") -> dict[str, Any]:
    return (await served.client().get(f"{TOOLS}/{ref}/{name}")).json()


@pytest.mark.req("REQ-MCP-REG-001", "MCP-POST-register")
async def test_registering_records_the_server_and_says_which_tools_were_taken(served):
    told = await register(
        served,
        declared("search", version="1.0.0", description="finds"),
        declared("delete_all"),
        metadata={"team": "docs", "api_token": "s3cret"},
    )
    assert (told["server_id"], told["registered_count"], told["rejected_count"]) == (
        "context7",
        2,
        0,
    )
    search, other = told["registered_tools"]
    assert (search["tool_name"], search["version"], search["schema"]) == (
        "search",
        "1.0.0",
        SCHEMA,
    )
    assert (search["enabled"], search["risk"], search["description"]) == (True, "low", "finds")
    assert other["risk"] == "high"
    record = (await served.client().get(f"{SERVERS}/context7")).json()
    assert (record["server_version"], record["capabilities"]) == ("1.0.0", ["search"])
    assert record["metadata"]["team"] == "docs"
    assert record["metadata"]["api_token"] != "s3cret"
    assert (record["status"], record["origin"], record["last_heartbeat"]) == (
        "DISCONNECTED",
        "api",
        None,
    )


@pytest.mark.req("REQ-MCP-REG-002")
async def test_a_tool_with_an_invalid_schema_is_rejected_with_diagnostics_and_the_rest_stay(served):
    told = await register(
        served,
        declared("draft7", DRAFT_7),
        declared("draft2020", DRAFT_2020),
        {"name": "own_word", "inputSchema": SCHEMA},
        declared("bad_type", {"type": "objekt"}),
        declared("far", {"$ref": "https://schemas.example/elsewhere.json"}),
        declared("list", [SCHEMA]),
        {"name": "none"},
        {"schema": SCHEMA},
        declared("draft7", SCHEMA),
        declared("odd_version", version=7),
    )
    assert [one["tool_name"] for one in told["registered_tools"]] == [
        "draft7",
        "draft2020",
        "own_word",
    ]
    rejected = {one["tool_name"]: one for one in told["rejected_tools"]}
    assert told["rejected_count"] == len(told["rejected_tools"]) == 7
    assert rejected["bad_type"]["reason"] == "Invalid JSON schema"
    assert rejected["bad_type"]["errors"][0]["path"] == "/type"
    assert "schemas.example" in rejected["far"]["errors"][0]["message"], "it is not fetched"
    assert {"list", "none", "unknown", "draft7", "odd_version"} <= rejected.keys()
    assert (await served.client().get(f"{TOOLS}/context7/bad_type")).status_code == 404


@pytest.mark.req("REQ-MCP-REG-003")
@pytest.mark.parametrize("versions", [{"new": ">=1,<2"}, {"new": ["1.0", "1.5"]}, {"*": "<2"}])
async def test_a_tool_outside_its_versions_is_registered_and_disabled(served, versions):
    told = await register(
        served,
        declared("new", version="2.0.0"),
        declared("old", version="1.5"),
        versions=versions,
    )
    assert (told["registered_count"], told["rejected_count"]) == (2, 1)
    new, old = told["registered_tools"]
    assert (new["enabled"], new["reason"], old["enabled"]) == (False, "incompatible_version", True)
    (rejected,) = told["rejected_tools"]
    assert (rejected["tool_name"], rejected["reason"], rejected["version"]) == (
        "new",
        "Version incompatibility",
        "2.0.0",
    )
    again = await register(served, declared("new", version="1.5"))
    assert again["registered_tools"][0]["enabled"], "the matrix stays, the version is another"


async def test_a_range_for_the_server_holds_for_all_of_its_tools(served):
    told = await register(served, declared("one"), declared("two", version="3"), versions="<1.0.0")
    assert [one["reason"] for one in told["registered_tools"]] == ["incompatible_version"] * 2


async def test_without_a_connection_calls_are_answered_503_until_there_is_one(served, toolbox):
    await register(served, declared("echo"), declared("gone"))
    for name, more in (("context7.echo", {}), ("echo", {"server_id": "context7"})):
        answer = await served.call(name, {"query": "x"}, **more)
        assert (answer.status_code, answer.json()["error_code"]) == (503, "SERVER_UNAVAILABLE")
        assert answer.json()["context"]["delivery"] == "not_sent"
    answer = await served.client().post(f"{SERVERS}/context7/connect")
    assert answer.json()["status"] == "DISCONNECTED"
    assert "without a connection" in answer.json()["message"]
    answer = await served.client().patch(f"{SERVERS}/context7", json={"description": "docs"})
    assert answer.status_code == 200, answer.text
    _, reached = await connection(toolbox, tool("echo"), tool("extra"))
    await register(served, declared("echo"), declared("gone"), connection=reached)
    await served.until("context7", "CONNECTED")
    assert (await served.call("context7.echo", {"query": "x"})).status_code == 200
    assert (await shown(served, "echo"))["enabled"]
    gone = await shown(served, "gone")
    assert (gone["enabled"], gone["reason"]) == (False, "not_offered")
    record = (await served.client().get(f"{SERVERS}/context7")).json()
    assert (record["server_version"], record["description"]) == ("1", "docs")
    assert record["last_heartbeat"] >= record["connected_at"]


async def test_the_same_again_changes_nothing(served, toolbox):
    box, reached = await connection(toolbox, tool("echo"))
    given = {"connection": reached, "versions": {"echo": "*"}, "metadata": {"a": 1}}
    first = await register(served, declared("echo"), **given)
    before = await served.until("context7", "CONNECTED")
    openings, seen = box.openings, await generations(served)
    again = await register(served, declared("echo"), **given)
    assert again["registered_count"] == first["registered_count"] == 1
    after = (await served.client().get(f"{SERVERS}/context7")).json()
    assert (after["version"], box.openings) == (before["version"], openings)
    assert await generations(served) == seen
    await register(served, declared("echo"), version="2.0.0", metadata={"a": 2})
    after = (await served.client().get(f"{SERVERS}/context7")).json()
    assert (after["metadata"], after["server_version"]) == ({"a": 2}, "1"), "it says so itself"
    assert box.openings == openings, "its connection stays"


async def generations(served: Served) -> dict[str, int]:
    found = await served.registry._context.store.generations()
    return {topic: found.get(topic, 0) for topic in ("servers", "tool_settings")}


async def test_two_at_once_for_one_name_make_one_server(served):
    told = await asyncio.gather(*(register(served, declared(f"t{n}")) for n in range(4)))
    assert {one["registered_count"] for one in told} == {1}
    assert (await served.client().get(SERVERS)).json()["total"] == 1
    assert len((await served.client().get(TOOLS)).json()) == 1, "each replaces what was declared"


async def test_what_was_declared_is_known_after_a_restart_and_goes_with_the_server(
    platform,
):
    run = await platform()
    raw = {key: json.dumps(value).encode() for key, value in declared("echo", version="3").items()}
    tools = [{key: Raw(value) for key, value in raw.items()}]
    await ServerRegistrar(run.registry).register(
        ServerDeclaration("box", "1.0", tools, ["x"], {"m": 1}), ADMIN
    )
    run = await platform()
    (known,) = run.registry.tools.known.of("box")
    assert (known.name, known.state.version, known.reason) == ("echo", "3", None)
    record = run.registry.find("box")
    assert (record.server_version, record.capabilities, record.metadata) == (
        "1.0",
        ["x"],
        {"m": 1},
    )
    assert (await run.call("box.echo")).code == SERVER_UNAVAILABLE
    rows = [row.action for row in await run.rows(actor="ann") if row.kind == "outcome"]
    assert rows == ["server.register", "tools.declare"]
    await run.registry.remove("box", ADMIN)
    assert run.registry.tools.known.declared(record.id) == {}
    assert await run.store.declared_tools.all() == []
    await until(lambda: not list(run.registry.tools.known.of()))


async def test_a_declared_tool_can_be_disabled_by_its_declaration_or_the_operator(served):
    told = await register(served, declared("a", enabled=False), declared("b"))
    assert [one["enabled"] for one in told["registered_tools"]] == [False, True]
    await served.client().patch(f"{TOOLS}/context7/a", json={"enabled": True})
    await served.client().patch(f"{TOOLS}/context7/b", json={"enabled": False})
    told = await register(served, declared("a", enabled=False), declared("b"))
    assert [one["enabled"] for one in told["registered_tools"]] == [True, False]
    assert (await served.call("context7.b")).status_code == 404
    assert (await served.call("context7.a")).status_code == 503


async def test_a_server_of_the_config_file_is_not_registered_again(gateway, tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"filed": stdio_config()}}))
    served = await gateway(load(str(path), {}, {}))
    answer = await served.client().post(REGISTER, json=server(server_id="filed"))
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "ServerOwnedByFileError")


WRONG = [
    (server(server_id="Not A Name"), "$.server_id"),
    (server(server_id="1f0cb1f4-9d9b-4f1e-8f0f-0123456789ab"), "$.server_id"),
    (server(versions={"a": ">=x"}), "$.versions.a"),
    (server(tools="all"), "tools"),
    (server(tools=["a"]), "tools"),
    (server(connection={"transport_type": "HTTP"}), "$"),
    (
        server(connection={"transport_type": "HTTP", "connection_config": {}}),
        "$.connection.connection_config.url",
    ),
    (
        server(
            connection={
                "transport_type": "HTTP",
                "connection_config": {"url": "http://169.254.169.254/latest"},
            }
        ),
        "$.connection_config.url",
    ),
    (
        server(connection={"transport_type": "STDIO", "connection_config": {"command": "/bin/sh"}}),
        "$.connection_config.command",
    ),
    (server(connection={"transport_type": "NONE", "connection_config": {}}), "transport_type"),
    (server(color="red"), "color"),
    ({"version": "1"}, "server_id"),
]


async def test_a_wrong_registration_is_refused_and_nothing_is_made(gateway):
    served = await gateway(stdio_allow="/nothing/is/allowed")
    for body, place in WRONG:
        answer = await served.client().post(REGISTER, json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError"), (
            body
        )
        told = answer.json()["problems"][0]
        assert place in told["path"] or place in told["message"], body
        assert (await served.client().get(SERVERS)).json()["total"] == 0, body


@pytest.mark.parametrize("role", ["orchestrator", "agent", "viewer"])
async def test_only_administrators_register(gateway, role):
    served = await gateway()
    answer = await served.client(role).post(REGISTER, json=server())
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ForbiddenError")


async def test_registering_is_audited_and_told_on_the_bus(gateway):
    served = await gateway()
    await register(served, declared("search"), versions={"search": "*"})
    await served.audit.flush()
    await served.bus.flush()
    store = served.registry._context.store
    rows = await store.audit.rows(AuditQuery(actor="the-admin", kind="outcome"))
    assert [row.action for row in rows[::-1]] == ["server.register", "tool.change", "tools.declare"]
    events = await store.events.after(0, limit=100, types=("tool.registered",))
    assert [one.data["tools"] for one in events] == [["search"]]
