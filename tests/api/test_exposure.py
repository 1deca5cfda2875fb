"""What clients of either era are listed: all tools, or the three to search them with, and which."""

import asyncio
import json

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.api.mcp_client import ERAS, client_of
from tests.journeys_eras.clients import MODES, VERSIONS
from tests.plugin_rest import BOUND, SERVERS, Served, registration
from tests.registry.toolbox import tool, until

from mcp_junction.config.load import ExposureRule, without_file

OWN = ["find_tools", "describe_tools", "call_tool"]
WORDS = "does one of many things with what it is given, and says so in a sentence"


def described(name: str, words: str = WORDS) -> dict:
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": words}}}
    return tool(name, words, inputSchema=schema)


async def add(served: Served, name: str, box) -> None:
    body = registration(name, transport_type="HTTP", connection_config={"url": box.url})
    assert (await served.client().post(SERVERS, json=body)).status_code == 201
    await served.until(name, "CONNECTED")


async def names(client) -> list[str]:
    return [one["name"] for one in (await client.send("tools/list"))["result"]["tools"]]


def tokens(value) -> int:
    """The tokens that something takes in a model's context."""
    return len(json.dumps(value, ensure_ascii=False).encode()) // 4


@pytest.mark.req("J-EXPOSURE", "J-ERAS")
async def test_sdk_clients_call_one_of_a_thousand_tools_with_few_definitions(gateway, toolbox):
    served = await gateway(exposure="search", only=("admin", "agent"))
    boxes = []
    for number in range(10):
        extra = [described("send_postcard", "Write a postcard and send it")] if number == 7 else []
        box = await toolbox([described(f"thing_{n}") for n in range(100 - len(extra))] + extra)
        await add(served, f"s{number}", box)
        boxes.append(box)
    headers = {"authorization": f"Bearer {served.keys['agent']}"}
    for era in ("old", "new"):
        async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=BOUND) as http:
            way = streamable_http_client(f"{served.url}/mcp", http_client=http)
            async with Client(way, mode=MODES[era], read_timeout_seconds=BOUND) as client:
                assert client.protocol_version == VERSIONS[era]
                assert tokens(await find_and_call(client, "send a postcard")) < 3_000
    assert [box.calls for box in boxes] == [0] * 7 + [2] + [0] * 2
    await served.audit.flush()
    query = {"tool_name": "send_postcard"}
    rows = (await served.client().get("/api/v1/mcp/audit", params=query)).json()
    assert len({row["correlation_id"] for row in rows}) == 2
    for row in rows:
        said = row["agent_id"], row["decision"], row["target"]
        assert said == ("the-agent", "ALLOW", "s7.send_postcard"), "as any other call"


async def find_and_call(client: Client, query: str) -> list:
    """Find a tool and call it; return all definitions that this put into the context."""
    tools = (await client.list_tools()).tools
    assert [one.name for one in tools] == OWN
    context = [one.model_dump(by_alias=True, exclude_none=True) for one in tools]
    for one in context:
        assert one["_meta"]["anthropic/alwaysLoad"] is True
    found = await client.call_tool("find_tools", {"query": query})
    best = found.structured_content["tools"][0]["name"]
    shown = await client.call_tool("describe_tools", {"names": [best]})
    sent = {"name": best, "arguments": {"text": "hello"}}
    assert not (await client.call_tool("call_tool", sent)).is_error
    return [*context, found.structured_content, shown.structured_content]


@pytest.mark.req("J-EXPOSURE")
@pytest.mark.parametrize("era", ERAS)
async def test_auto_lists_search_where_all_tools_take_more_than_the_budget(gateway, toolbox, era):
    served = await gateway(exposure="auto", exposure_tokens=500)
    box = await toolbox([described("first"), described("second")])
    await add(served, "box", box)
    client = await client_of(era).open(served, "admin")
    assert await names(client) == ["box.first", "box.second"]
    found = {"name": "find_tools", "arguments": {"query": "second"}}
    assert "error" not in await client.send("tools/call", found), "a client may know it from before"
    box.tools += [described(f"more_{n}") for n in range(20)]
    await served.client().post(f"{SERVERS}/box/tools/refresh")
    await until(lambda: len(served.junction.snapshot.catalog.offerings["box"].tools) == 22)
    assert await names(client) == OWN
    state = (await served.client().get("/api/v1/aggregator/state")).json()
    assert state["tokens_saved"] > 500


def with_rules(agents: dict | None = None, clients: dict | None = None, **settings):
    """A config with rules for agents and clients."""
    return without_file({}, settings)._replace(agents=agents or {}, clients=clients or {})


@pytest.mark.req("J-EXPOSURE")
@pytest.mark.parametrize("era", ERAS)
async def test_favourites_are_listed_beside_the_three(gateway, toolbox, era):
    agents = {"the-agent": ExposureRule(favourites=("box.third", "box.hidden"))}
    served = await gateway(with_rules(agents, exposure="search", favourites="box.sec*, other"))
    await add(served, "box", await toolbox([tool("first"), tool("second"), tool("third")]))
    await add(served, "other", await toolbox([tool("a"), tool("b")]))
    admin = await client_of(era).open(served, "admin")
    assert await names(admin) == [*OWN, "box.second", "other.a", "other.b"]
    agent = await client_of(era).open(served, "agent")
    assert await names(agent) == [*OWN, "box.second", "box.third", "other.a", "other.b"]


@pytest.mark.req("J-EXPOSURE", "REQ-MCP-AUTH-001")
@pytest.mark.parametrize("era", ERAS)
async def test_a_favourite_that_is_not_granted_is_not_listed(gateway, toolbox, era):
    agents = {"the-agent": ExposureRule("search", ("box",))}
    served = await gateway(with_rules(agents), grants=False)
    await add(served, "box", await toolbox([tool("first"), tool("second")]))
    grant = {"agent_id": "the-agent", "server_id": "box", "tool_name": "first"}
    grant["actions"] = ["invoke"]
    assert (await served.client().post("/api/v1/mcp/policies/grant", json=grant)).status_code == 201
    agent = await client_of(era).open(served, "agent")
    assert await names(agent) == [*OWN, "box.first"]
    admin = await client_of(era).open(served, "admin")
    assert await names(admin) == ["box.first", "box.second"], "the rule is the agent's own"


@pytest.mark.req("J-EXPOSURE")
@pytest.mark.parametrize("era", ERAS)
async def test_clients_are_listed_what_is_set_for_their_kind(gateway, toolbox, era):
    rules = {"t": ExposureRule("search"), "other": ExposureRule("all")}
    served = await gateway(with_rules(clients=rules))
    await add(served, "box", await toolbox([tool("first")]))
    client = await client_of(era).open(served, "admin")
    assert await names(client) == OWN
    if era == "stateless":
        answer = await client.send("tools/list")
        assert answer["result"]["cacheScope"] == "private", "others are listed something else"


@pytest.mark.req("J-EXPOSURE")
@pytest.mark.parametrize("era", ERAS)
async def test_the_search_names_the_skills_of_the_tools_that_its_caller_may_see(
    gateway, toolbox, era
):
    served = await gateway(exposure="search", grants=False)
    mail = described("send_email", "Send an email message to a person, with a subject")
    data = described("run_sql_query", "Run an SQL query in a PostgreSQL database")
    await add(served, "box", await toolbox([mail, data]))
    grant = {"agent_id": "the-agent", "server_id": "box", "tool_name": "send_*"}
    grant["actions"] = ["invoke"]
    await served.client().post("/api/v1/mcp/policies/grant", json=grant)
    catalog = served.junction.live_catalog
    async with asyncio.timeout(BOUND):
        while len(catalog.catalog.skills) < 2:
            await catalog.swapped
    skills = {pair.name: skill for pair, skill in catalog.catalog.skills.items()}
    assert skills["send_email"] != skills["run_sql_query"]
    agent = await client_of(era).open(served, "agent")
    words = (await agent.send("tools/list"))["result"]["tools"][0]["description"]
    assert skills["send_email"] in words
    assert skills["run_sql_query"] not in words
