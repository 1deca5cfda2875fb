"""`POST /api/v1/search`: what is found, in which order, for whom, and what is refused."""

import asyncio
import json

import pytest
from tests.plugin_rest import SERVERS, registration, stdio_config
from tests.registry.toolbox import tool

SEARCH = "/api/v1/search"
ISSUES = [
    tool("create_issue", "Create a new issue", inputSchema={"type": "object", "title": "the one"}),
    tool("list_issues", "List the open issues"),
]
FILES = [tool("read_file", "Read a file from the disk"), tool("create_file", "Write a new file")]


@pytest.fixture
def add(toolbox):
    """Register a server with these tools and wait until it is connected."""

    async def adding(served, name, tools):
        box = await toolbox(tools)
        more = {"transport_type": "HTTP", "connection_config": {"url": box.url}}
        return await served.register(name, **more)

    return adding


async def search(served, query="create an issue", *, role="admin", **more):
    return await served.client(role).post(SEARCH, json={"query": query, **more})


async def names(served, *query, **more):
    return [found["name"] for found in (await search(served, *query, **more)).json()["tools"]]


@pytest.mark.req("AG-US2-AC1", "AG-US2-AC2", "AG-US2-AC5", "AG-US2-AC7", "AG-US7-AC3", "AG-US7-AC2")
async def test_tools_of_all_servers_are_found_best_first_with_both_names_and_their_server(
    served, add
):
    files = await add(served, "files", FILES)
    github = await add(served, "github", ISSUES)
    jira = await add(served, "jira", ISSUES)
    answer = await search(served, "create a github issue")
    told = answer.json()
    assert (answer.status_code, told["query"]) == (200, "create a github issue")
    best, *rest = told["tools"]
    assert (best["name"], best["original_name"]) == ("github.create_issue", "create_issue")
    assert best["description"] == "Create a new issue"
    assert best["source_server"] == {"id": github["id"], "name": "github", "status": "CONNECTED"}
    servers = {found["name"]: found["source_server"]["id"] for found in rest}
    assert servers["jira.create_issue"] == jira["id"]
    assert servers["files.create_file"] == files["id"]
    scores = [found["score"] for found in told["tools"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert all(found["is_external"] for found in told["tools"])
    assert told["metadata"] == {
        "servers_searched": 3,
        "total_tools_searched": 6,
        "strategy": "keyword",
    }
    assert {"id", "skill_ids", "primary_skill_id", "is_classified", "enabled", "risk"} < set(best)
    assert "input_schema" not in best


@pytest.mark.req("AG-US2-AC3", "AG-US6-AC4", "AG-US6-AC5")
async def test_tools_of_a_server_that_is_disconnected_are_not_found_until_it_is_back(served, add):
    await add(served, "files", FILES)
    await add(served, "github", ISSUES)
    await served.client().post(f"{SERVERS}/github/disconnect")
    answer = (await search(served)).json()
    assert [found["name"] for found in answer["tools"]] == ["files.create_file"]
    assert answer["metadata"]["total_tools_searched"] == 2
    await served.client().post(f"{SERVERS}/github/connect")
    assert (await names(served))[0] == "github.create_issue"


@pytest.mark.req("AG-US6-AC6", "AG-US7-AC6")
async def test_a_server_that_is_renamed_is_found_under_its_new_name_and_a_removed_one_not(
    served, add
):
    await add(served, "github", ISSUES)
    await served.client().patch(f"{SERVERS}/github", json={"name": "forge"})
    found = (await search(served, "forge issue", limit=1)).json()["tools"]
    assert [(one["name"], one["source_server"]["name"]) for one in found] in (
        [("forge.create_issue", "forge")],
        [("forge.list_issues", "forge")],
    )
    await served.client().delete(f"{SERVERS}/forge")
    assert await names(served, "forge issue") == []


@pytest.mark.req("AG-US2-AC4")
async def test_a_filter_by_name_or_id_limits_what_is_found(served, add):
    await add(served, "github", ISSUES)
    jira = await add(served, "jira", ISSUES)
    for ref in ("jira", jira["id"]):
        answer = (await search(served, "create a github issue", server_filter=[ref])).json()
        assert {found["source_server"]["name"] for found in answer["tools"]} == {"jira"}
        told = answer["metadata"]
        assert (told["servers_searched"], told["total_tools_searched"]) == (1, 2)
    assert len(await names(served, server_filter=["jira", "github"], limit=3)) == 3
    assert await names(served, server_filter=[]) == []
    answer = await search(served, server_filter=["jira", "nobody"])
    assert (answer.status_code, answer.json()["error_code"]) == (404, "SERVER_NOT_FOUND")


async def test_what_was_quarantined_or_disabled_is_not_found(served, add):
    await add(served, "github", ISSUES)
    async with asyncio.timeout(20):
        while not await served.registry.tools.all("github"):
            pass  # it is connected, and what it has is being stored
    actor = served.ring.principal(f"Bearer {served.keys['admin']}".encode())
    await served.registry.tools.settings.change("github", "create_issue", {"enabled": False}, actor)
    assert await names(served) == ["github.list_issues"]


async def test_schemas_come_when_they_are_asked_for(served, add):
    await add(served, "github", ISSUES)
    answer = await search(served, limit=1, include_schemas=True)
    assert answer.json()["tools"][0]["input_schema"] == {"type": "object", "title": "the one"}


@pytest.mark.parametrize("role", ["admin", "orchestrator", "agent", "viewer"])
async def test_who_may_read_tools_may_search_them(gateway, role):
    served = await gateway()
    await served.register("one")
    assert await names(served, "echo", role=role) == ["one.echo"]


async def test_nobody_searches_without_a_key(gateway):
    assert (await search(await gateway(), role=None)).status_code == 401


BAD_BODIES = [
    ({}, "$"),
    ({"query": ""}, "$.query"),
    ({"query": "x" * 1001}, "$.query"),
    ({"query": 7}, "$.query"),
    ({"query": "x", "limit": 0}, "$.limit"),
    ({"query": "x", "limit": 101}, "$.limit"),
    ({"query": "x", "limit": "5"}, "$.limit"),
    ({"query": "x", "include_external": 1}, "$.include_external"),
    ({"query": "x", "server_filter": "one"}, "$.server_filter"),
    ({"query": "x", "server_filter": [""]}, "$.server_filter[0]"),
    ({"query": "x", "strategy": "magic"}, "$.strategy"),
    ({"query": "x", "skill_filter": [""]}, "$.skill_filter[0]"),
    ({"query": "x", "skils": []}, "$"),
    ([], "$"),
]


async def test_a_body_that_is_not_right_is_refused_with_its_place(gateway):
    served = await gateway()
    for body, place in BAD_BODIES:
        answer = await served.client().post(SEARCH, json=body)
        told = answer.status_code, answer.json()["error_code"]
        assert told == (422, "VALIDATION_ERROR"), body
        (problem,) = answer.json()["context"]["problems"]
        assert problem["path"] == place, body


async def test_there_is_nothing_to_find_where_there_is_nothing(gateway):
    answer = (await search(await gateway())).json()
    assert answer["tools"] == []
    assert answer["metadata"]["total_tools_searched"] == 0


@pytest.mark.req("AG-US7-AC7")
async def test_junctions_own_tools_are_internal_have_no_prefix_and_can_be_called(gateway):
    served = await gateway(exposure="search")
    one = await served.register("one", connection_config=stdio_config(mark=1))
    found = (await search(served, "find tools", include_external=False)).json()
    first = found["tools"][0]
    assert (first["name"], first["original_name"]) == ("find_tools", "find_tools")
    assert (first["is_external"], first["source_server"]) == (False, None)
    assert found["metadata"]["servers_searched"] == 0
    assert found["metadata"]["total_tools_searched"] == 3
    told = (await served.call("find_tools", {"query": "echo"})).json()
    assert told["structuredContent"]["tools"][0]["name"] == "one.echo"
    assert told["metadata"]["server_id"] is None
    called = (await served.call("call_tool", {"name": "one.echo", "arguments": {"x": 1}})).json()
    assert json.loads(called["content"][0]["text"])["arguments"] == {"x": 1}
    assert (called["metadata"]["routed_to"], called["metadata"]["server_id"]) == ("one", one["id"])
    answer = await served.call("call_tool", {"name": "one.nothing"})
    assert (answer.status_code, answer.json()["error_code"]) == (404, "TOOL_NOT_FOUND")
    assert answer.json()["context"]["delivery"] == "not_sent"


async def test_where_everything_is_exposed_there_are_no_internal_tools(gateway):
    served = await gateway()
    await served.register("one")
    assert await names(served, "find tools", include_external=False) == []
    assert (await served.call("find_tools", {"query": "echo"})).status_code == 404


async def test_the_state_counts_what_is_indexed(served, add):
    await add(served, "github", ISSUES)
    await search(served)
    state = (await served.client().get("/api/v1/aggregator/state")).json()
    assert (state["total_tools"], state["indexed_tools"], state["unindexed_tools"]) == (2, 2, 0)


async def test_a_search_ranks_the_tools_of_all_servers(served, toolbox):
    words = "does one of many things, and says so in a sentence of ordinary length"
    for number in range(10):
        box = await toolbox([tool(f"thing_{n}", f"{words}, number {n}") for n in range(100)])
        body = registration(f"s{number}", transport_type="HTTP", connection_config={"url": box.url})
        await served.client().post(SERVERS, json=body)
    for number in range(10):
        await served.until(f"s{number}", "CONNECTED")
    answer = (await search(served, "a sentence of many things, number 7")).json()
    assert answer["metadata"]["total_tools_searched"] == 1000
    assert {found["original_name"] for found in answer["tools"]} == {"thing_7"}
    assert {found["source_server"]["name"] for found in answer["tools"]} == {
        f"s{number}" for number in range(10)
    }


@pytest.mark.req("J-TOKENS")
async def test_the_state_tells_what_search_has_spared_its_clients(gateway):
    served = await gateway(exposure="search")
    await served.register("one")
    path = "/api/v1/aggregator/state"
    state = (await served.client().get(path)).json()
    assert (state["tokens_saved"], state["tokens_listed"]) == (0, 0)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}}
    hello["clientInfo"] = {"name": "t", "version": "1"}
    headers = {"accept": "application/json, text/event-stream"}
    first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    opened = await served.client().post("/mcp", headers=headers, json=first)
    headers["mcp-session-id"] = opened.headers["mcp-session-id"]
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answer = await served.client().post("/mcp", headers=headers, json=asked)
    sent = len(json.dumps(answer.json()["result"], separators=(",", ":"), ensure_ascii=False))
    view = served.junction.snapshot.catalog.view(served.junction.spelling())
    state = (await served.client().get(path)).json()
    assert state["tokens_listed"] == sent // 4
    assert state["tokens_saved"] == (view.whole_size - sent) // 4
