"""``/api/v1/mcp/tools``: tools with version, risk and state, and what operators set for them."""

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
from tests.api.scope_door import Hiding
from tests.plugin_rest import BOUND, SERVERS, Served, serve_api
from tests.registry.toolbox import Toolbox, tool, until

from mcp_junction.protocol.names import Pair
from mcp_junction.store.audit_records import AuditQuery

TOOLS = "/api/v1/mcp/tools"


@pytest.fixture
async def box(toolbox):
    """Registers a server with these tools at a gateway."""

    async def add(served: Served, *tools: dict, name: str = "box", **more: Any) -> Toolbox:
        server = await toolbox(list(tools))
        await served.register(
            name,
            transport_type="HTTP",
            connection_config={"url": server.url},
            allow_private=True,
            allow_http=True,
            **more,
        )
        return server

    return add


async def listed(served: Served, role: str = "admin", **query: Any) -> list[str]:
    answer = await served.client(role).get(TOOLS, params=query)
    assert answer.status_code == 200, answer.text
    return [f"{one['server_id']}.{one['tool_name']}" for one in answer.json()]


async def set_tool(served: Served, name: str, role: str = "admin", **fields: Any) -> Any:
    return await served.client(role).patch(f"{TOOLS}/box/{name}", json=fields)


@pytest.mark.req("REQ-MCP-REG-001", "MCP-GET-tools", "MCP-GET-tool")
async def test_a_tool_is_shown_with_its_schema_version_risk_and_breaker(served, box):
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    await box(
        served,
        tool("delete_it", inputSchema=schema, _meta={"version": "1.2.3"}),
        tool("wipe", annotations={"destructiveHint": True}),
        tool("look", annotations={"readOnlyHint": True}),
    )
    answer = await served.client().get(TOOLS)
    shown = {one["tool_name"]: one for one in answer.json()}
    assert shown["delete_it"] == {
        "server_id": "box",
        "tool_name": "delete_it",
        "description": "does something",
        "schema": schema,
        "version": "1.2.3",
        "enabled": True,
        "risk": "high",
        "risk_reason": "its name contains 'delete'",
        "breaker": "CLOSED",
    }
    assert "destructiveHint" in shown["wipe"]["risk_reason"]
    assert (shown["look"]["risk"], shown["look"]["version"]) == ("low", "1")
    one = (await served.client().get(f"{TOOLS}/box/delete_it")).json()
    assert {name: one[name] for name in shown["delete_it"]} == shown["delete_it"]
    assert one["settings"]["risk"] is None
    record = (await served.client().get("/api/v1/aggregator/servers/box")).json()
    assert (await served.client().get(f"{TOOLS}/{record['id']}/look")).status_code == 200


async def test_the_list_comes_in_pages_that_lead_to_each_other(served, box):
    await box(served, *(tool(f"t{number}") for number in range(5)))
    await box(served, tool("a"), name="crate")
    path, found = f"{TOOLS}?limit=2&enabled_only=false", []
    while path:
        answer = await served.client().get(path)
        found += [one["tool_name"] for one in answer.json()]
        path = answer.links.get("next", {}).get("url", "")
    assert found == ["t0", "t1", "t2", "t3", "t4", "a"]
    assert await listed(served, server_id="crate") == ["crate.a"]
    for query in ({"limit": 0}, {"cursor": "nonsense"}, {"enabled_only": "maybe"}):
        answer = await served.client().get(TOOLS, params=query)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")


@pytest.mark.req("MCP-GET-tools")
async def test_a_disabled_tool_is_listed_only_when_asked_for_and_cannot_be_called(served, box):
    server = await box(served, tool("a/b"), tool("other"))
    answer = await set_tool(served, "a/b", enabled=False)
    assert (answer.status_code, answer.json()["enabled"]) == (200, False)
    assert await listed(served) == ["box.other"]
    assert await listed(served, enabled_only="false") == ["box.a/b", "box.other"]
    shown = (await served.client().get(f"{TOOLS}/box/a/b")).json()
    assert (shown["enabled"], shown["reason"]) == (False, "disabled")
    assert (await served.call("box.a/b")).status_code == 404
    (group,) = (await served.client().get("/api/v1/aggregator/tools")).json()["items"]
    assert [one["enabled"] for one in group["tools"]] == [False, True]
    assert (await set_tool(served, "a/b", enabled=None)).json()["enabled"] is None
    assert (await served.call("box.a/b")).status_code == 200
    assert server.calls == 1


async def test_the_operator_sets_the_risk_and_nobody_else_lowers_it(served, box):
    await box(served, tool("delete"), tool("read", annotations={"readOnlyHint": True}))
    await set_tool(served, "delete", risk="low")
    await set_tool(served, "read", risk="high")
    shown = {one["tool_name"]: one for one in (await served.client().get(TOOLS)).json()}
    assert [shown[name]["risk"] for name in ("delete", "read")] == ["low", "high"]
    assert "operator" in shown["delete"]["risk_reason"]
    (group,) = (await served.client().get("/api/v1/aggregator/tools")).json()["items"]
    assert [one["risk"] for one in group["tools"]] == ["low", "high"]
    await set_tool(served, "delete", risk=None)
    assert (await served.client().get(f"{TOOLS}/box/delete")).json()["risk"] == "high"


@pytest.mark.req("REQ-MCP-REG-003")
async def test_a_tool_outside_its_versions_is_disabled_with_a_warning(served, box, caplog):
    await box(served, tool("old", _meta={"version": "1.0.0"}), tool("new"))
    async with aclosing(served.bus.subscribe(types=["tools.flagged"])) as events:
        coming = asyncio.ensure_future(anext(events))
        await until(lambda: served.bus.has_readers)
        answer = await set_tool(served, "old", versions=[">=2,<3", "4.0"])
        assert answer.json()["versions"] == ">=2,<3 || 4.0"
        event = await asyncio.wait_for(coming, BOUND)
    assert event.data["flags"]["old"] == [
        "incompatible_version: version 1.0.0 is not in >=2,<3 || 4.0"
    ]
    assert "incompatible_version" in caplog.text
    assert await listed(served) == ["box.new"]
    shown = (await served.client().get(f"{TOOLS}/box/old")).json()
    assert (shown["enabled"], shown["reason"]) == (False, "incompatible_version")
    await set_tool(served, "old", versions="1.0")
    assert await listed(served) == ["box.new", "box.old"]


async def test_what_is_set_can_be_read_again_and_is_audited(served, box):
    await box(served, tool("main"))
    await box(served, tool("spare"), name="mirror")
    given = {
        "read_only": True,
        "idempotent": True,
        "timeout_ms": 1500,
        "fallbacks": [
            {
                "server_id": "mirror",
                "tool_name": "spare",
                "arguments": {"q": "/query", "n": {"value": 1}},
            }
        ],
    }
    answer = await set_tool(served, "main", **given)
    assert {name: answer.json()[name] for name in given} == given
    await served.client().patch("/api/v1/aggregator/servers/mirror", json={"name": "copy"})
    shown = (await served.client().get(f"{TOOLS}/box/main")).json()["settings"]
    assert shown["fallbacks"][0]["server_id"] == "copy", "it follows a rename"
    await served.audit.flush()
    query = AuditQuery(action="tool.change", kind="outcome")
    rows = await served.registry._context.store.audit.rows(query)
    assert [(row.actor, row.target, row.outcome) for row in rows] == [
        ("the-admin", "box.main", "ok")
    ]


async def test_a_tool_that_was_not_seen_yet_can_be_set(served, box):
    server = await box(served, tool("one"))
    assert (await set_tool(served, "two", enabled=False)).status_code == 200
    assert (await served.client().get(f"{TOOLS}/box/two")).status_code == 404
    server.tools.append(tool("two"))
    await served.client().post("/api/v1/aggregator/servers/box/tools/refresh")
    assert await listed(served, enabled_only="false") == ["box.one", "box.two"]
    assert await listed(served) == ["box.one"]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"enabled": "no"}, "enabled"),
        ({"risk": "extreme"}, "risk"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"versions": ">=x"}, "versions"),
        ({"color": "red"}, "color"),
        ({"fallbacks": [{"server_id": "nobody", "tool_name": "t"}]}, "fallbacks[0].server_id"),
        ({"fallbacks": [{"server_id": "box", "tool_name": "one"}]}, "fallbacks[0]"),
        (
            {"fallbacks": [{"server_id": "box", "tool_name": "t", "arguments": {"a": "b"}}]},
            "fallbacks[0].arguments.a",
        ),
        ([], "$"),
    ],
)
async def test_a_wrong_setting_is_refused_with_its_place(gateway, box, body, place):
    served = await gateway()
    await box(served, tool("one"))
    answer = await served.client().patch(f"{TOOLS}/box/one", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "BadRequestError"
    told = answer.json()["problems"][0]
    assert place in told["path"] or place in told["message"]


async def test_what_is_not_there_is_not_found(gateway, box):
    served = await gateway()
    await box(served, tool("one"))
    client = served.client()
    answer = await client.get(f"{TOOLS}/box/nothing")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "ToolNotFoundError")
    assert (await client.get(f"{TOOLS}/nobody/one")).status_code == 404
    answer = await client.patch(f"{TOOLS}/nobody/one", json={"enabled": False})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "ServerNotFoundError")
    answer = await client.get(TOOLS, params={"server_id": "nobody"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "ServerNotFoundError")


@pytest.mark.parametrize(
    ("role", "status"), [("orchestrator", 200), ("agent", 403), ("viewer", 403)]
)
async def test_who_may_change_the_policy_may_set_tools(gateway, box, role, status):
    served = await gateway()
    await box(served, tool("one"))
    assert (await set_tool(served, "one", role, enabled=False)).status_code == status


async def test_an_agent_sees_its_own_and_cannot_tell_hidden_from_unknown(gateway, box):
    hidden = frozenset({("tools", Pair("box", "hidden"))})
    served = await gateway(policy=Hiding(hidden, servers=("secret",)))
    await box(served, tool("hidden"), tool("off"), tool("open", _meta={"version": "7"}))
    await box(served, tool("t"), name="secret")
    await set_tool(served, "off", enabled=False)
    await set_tool(served, "open", fallbacks=[{"server_id": "secret", "tool_name": "t"}])
    for more in ({}, {"enabled_only": "false"}, {"server_id": "box"}):
        assert await listed(served, "agent", **more) == ["box.open"]
    assert await listed(served, "agent", server_id="secret") == []
    assert await listed(served, "agent", server_id="nobody") == []
    client = served.client("agent")
    refused = [
        await client.get(f"{TOOLS}/{path}")
        for path in ("box/hidden", "box/nothing", "box/off", "secret/t", "nobody/t")
    ]
    assert {(one.status_code, one.text) for one in refused} == {(401, refused[0].text)}
    assert refused[0].json()["error"]["type"] == "AuthorizationError"
    shown = (await client.get(f"{TOOLS}/box/open")).json()
    assert shown["version"] == "7"
    assert "settings" not in shown, "which name other servers"
    assert "secret" not in (await client.get(TOOLS)).text


BROKEN = {"type": "object", "properties": {"limit": {"type": "number of things"}}}


@pytest.mark.req("REQ-MCP-REG-002")
async def test_a_discovered_tool_with_an_invalid_schema_is_flagged_and_stays_listed(served, box):
    async with aclosing(served.bus.subscribe(types=["tools.flagged"])) as events:
        coming = asyncio.ensure_future(anext(events))
        await until(lambda: served.bus.has_readers)
        await box(served, tool("bad", inputSchema=BROKEN), tool("good"), pin="strict")
        event = await asyncio.wait_for(coming, BOUND)
    ((name, flags),) = event.data["flags"].items()
    assert (name, event.data["quarantined"]) == ("bad", [])
    assert flags[0].startswith("invalid_schema: /properties/limit/type ")
    assert await listed(served) == ["box.bad", "box.good"]
    shown = (await served.client().get(f"{TOOLS}/box/bad")).json()
    assert (shown["enabled"], shown["flags"]) == (True, flags)
    assert shown["diagnostics"][0]["path"] == "/properties/limit/type"
    assert "diagnostics" not in (await served.client().get(f"{TOOLS}/box/good")).json()
    assert (await served.call("box.bad")).status_code == 200
    assert "diagnostics" not in (await served.client("agent").get(f"{TOOLS}/box/bad")).json()


@pytest.mark.req("REQ-MCP-REG-002")
async def test_strict_schemas_disables_such_tools_before_anybody_sees_them(gateway, box):
    served = await gateway(strict_schemas=True)
    server = await box(served, tool("bad", inputSchema=BROKEN), tool("good"))
    assert await listed(served) == ["box.good"]
    assert (await served.call("box.bad")).status_code == 404
    assert (await served.client().get(f"{TOOLS}/box/bad")).json()["reason"] == "invalid_schema"
    await set_tool(served, "bad", enabled=True)
    assert (await served.call("box.bad")).status_code == 200, "the operator's word goes first"
    await set_tool(served, "bad", enabled=None)
    server.tools[0] = tool("bad")
    await served.client().post("/api/v1/aggregator/servers/box/tools/refresh")
    assert await listed(served) == ["box.bad", "box.good"]


async def test_a_setting_that_was_tampered_with_disables_its_tool_until_it_is_set_again(
    served, box, dump
):
    server = await box(served, tool("send"), tool("look"))
    assert (await set_tool(served, "send", risk="high")).status_code == 200
    await dump.run("UPDATE tool_settings SET risk = 'low'")
    await dump.run("UPDATE counters SET value = value + 1 WHERE topic = 'tool_settings'")
    settings = served.junction.governance.tool_settings
    await until(lambda: settings.unverified == 1)
    one = (await served.client().get(f"{TOOLS}/box/send")).json()
    assert (one["enabled"], one["reason"]) == (False, "setting_unverified")
    assert await listed(served) == ["box.look"]
    invoke = {"server_id": "box", "tool_name": "send", "params": {}}
    answer = await served.client().post("/api/v1/mcp/invoke", json=invoke)
    assert (answer.status_code, "setting_unverified" in answer.text) == (409, True)
    assert (await served.call("box.send")).status_code == 404
    ready = await served.client(None).get("/readyz")
    assert ready.json() == {"status": "ready", "unverified_tool_settings": 1}
    assert "tool_settings_unverified 1" in (await served.client().get("/metrics")).text
    await set_tool(served, "send", timeout_ms=5_000)
    assert (await served.client().get(f"{TOOLS}/box/send")).json()["reason"] == "disabled"
    assert server.calls == 0
    await set_tool(served, "send", risk="high", enabled=True)
    assert (await served.call("box.send")).status_code == 200
    assert (await served.client(None).get("/readyz")).json() == {"status": "ready"}


async def test_versions_for_all_tools_that_were_tampered_with_disable_all_of_them(
    served, box, dump
):
    await box(served, tool("send"), tool("look"))
    await set_tool(served, "*", versions=">=1")
    await dump.run("UPDATE tool_settings SET versions = '>=0'")
    await dump.run("UPDATE counters SET value = value + 1 WHERE topic = 'tool_settings'")
    await until(lambda: served.junction.governance.tool_settings.unverified == 1)
    assert await listed(served) == []
    await set_tool(served, "*", versions=">=1")
    assert {*await listed(served)} == {"box.send", "box.look"}


@pytest.mark.req("REQ-MCP-AUTH-003")
async def test_a_tool_that_once_said_it_destroys_needs_a_token_until_a_person_lowers_its_risk(
    opener, box
):
    kind, other = {"destructiveHint": True}, {"destructiveHint": False, "readOnlyHint": True}
    async with AsyncExitStack() as stack:
        served = await serve_api(stack, opener, grants=False)
        server = await box(served, tool("wipe", annotations=kind))
        body = {"agent_id": "the-agent", "server_id": "box", "tool_name": "wipe"}
        asked = await served.client().post(
            "/api/v1/mcp/policies/grant", json={**body, "token_mode": "present"}
        )
        token = asked.json()["token"]
        assert await statuses(served, token) == (401, 403, 200)
        server.tools = [tool("wipe", annotations=other)]
        await refresh(served)
        assert await statuses(served, token) == (401, 403, 200)
        server.tools = []
        await refresh(served)
        server.tools = [tool("wipe", "another", annotations=other)]
        await refresh(served)
        assert await statuses(served, token) == (401, 403, 200)
    async with AsyncExitStack() as stack:
        served = await serve_api(stack, opener, grants=False)
        await served.until("box", "CONNECTED")
        await refresh(served)
        assert await statuses(served, token) == (401, 403, 200)
        shown = (await served.client().get(f"{TOOLS}/box/wipe")).json()
        assert (shown["risk"], "had destructiveHint" in shown["risk_reason"]) == ("high", True)
        await set_tool(served, "wipe", risk="low")
        assert await statuses(served, token) == (200, 200, 200)
        await set_tool(served, "wipe", risk=None)
        assert await statuses(served, token) == (401, 403, 200)
        await approve(served)
        assert await statuses(served, token) == (200, 200, 200)
        server.tools = [tool("wipe", annotations=kind)]
        await refresh(served)
        await approve(served)
        server.tools = [tool("wipe", annotations=other)]
        await refresh(served)
        assert await statuses(served, token) == (401, 403, 200), "an approval is of one form only"


async def statuses(served: Served, token: str) -> tuple[int, ...]:
    """Call the tool without a token both ways, then with it."""
    client = served.client("agent")
    body = {"agent_id": "the-agent", "server_id": "box", "tool_name": "wipe", "params": {}}
    bare = await client.post("/api/v1/mcp/invoke", json=body)
    called = await served.call("box.wipe", role="agent")
    given = await client.post("/api/v1/mcp/invoke", json={**body, "token": token})
    return bare.status_code, called.status_code, given.status_code


async def refresh(served: Served) -> None:
    answer = await served.client().post(f"{SERVERS}/box/tools/refresh")
    assert answer.status_code == 200, answer.text


async def approve(served: Served) -> None:
    """Approve the definition that the tool has now."""
    record = await served.registry.tools.get("box", "wipe")
    path = f"/api/v1/aggregator/tools/{record.id}/approve"
    answer = await served.client().post(path, json={"hash": record.hash})
    assert answer.status_code == 200, answer.text
