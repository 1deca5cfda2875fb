"""Lazy discovery in the stdio mode: three tools to search, look at and call the others with."""

import json

import pytest
from tests.plugin_journeys import scripted

OWN = ["find_tools", "describe_tools", "call_tool"]

pytestmark = [pytest.mark.preloaded, pytest.mark.req("AG-US7-AC7")]


def described(name, words):
    return json.dumps({"name": name, "description": words, "inputSchema": {"type": "object"}})


@pytest.mark.parametrize("client", ["a-test", "claude-ai"])
async def test_every_client_is_shown_three_tools_and_reaches_all(junction, client):
    git = scripted("echo", described=[described("commit", "Record changes to the repository")])
    client = await junction({"git": git, "files": scripted("echo")}, "--exposure", "search",
                            client=client)  # fmt: skip
    listed = await client.tools()
    assert list(listed) == OWN
    assert "git (2), files (1)" in listed["find_tools"]["description"]
    found = (await client.read("find_tools", query="record a change", limit=1))["tools"]
    assert (found[0]["server"], found[0]["description"]) == (
        "git",
        "Record changes to the repository",
    )
    name = found[0]["name"]
    (shown,) = (await client.read("describe_tools", names=[name]))["tools"]
    assert shown["name"] == name
    reached = await client.read("call_tool", name=name, arguments={"message": "é"})
    assert reached["params"] == {"name": "commit", "arguments": {"message": "é"}}


async def test_a_call_through_call_tool_reports_progress_and_can_be_cancelled(junction):
    client = await junction({"one": scripted()}, exposure="search")
    dropped = await client.under_way("call_tool", name="one:hold")
    client.send("notifications/cancelled", {"requestId": dropped, "reason": "changed my mind"})
    lines = await client.read("call_tool", name="one:seen")
    (cancelled,) = [json.loads(line) for line in lines if "notifications/cancelled" in line]
    assert cancelled["params"]["reason"] == "changed my mind"
    await client.result("ping")
    assert not client.first(lambda message: message.get("id") == dropped)


async def test_with_no_prefix_a_servers_tool_of_our_name_is_there_under_another(junction):
    client = await junction(
        {"one": scripted("find_tools", "echo"), "two": scripted("echo")},
        *("--exposure", "search", "--prefix", "never"),
    )
    assert list(await client.tools()) == OWN
    found = (await client.read("find_tools", query="find tools"))["tools"]
    (name,) = [each["name"] for each in found if each["server"] == "one"][:1]
    assert name.startswith("find_tools_")
    reached = await client.read("call_tool", name=name, arguments={"query": "theirs"})
    assert reached["params"] == {"name": "find_tools", "arguments": {"query": "theirs"}}


async def test_the_tools_of_a_server_that_died_are_not_found_any_more(junction):
    servers = {"one": scripted("echo", "die"), "two": scripted("echo")}
    client = await junction(servers, exposure="search")
    assert "one (2)" in (await client.tools())["find_tools"]["description"]
    names = [each["name"] for each in (await client.read("find_tools", query="echo"))["tools"]]
    assert names == ["one:echo", "two:echo"]
    await client.answer(client.begin("call_tool", name="one:die"))
    await client.heard("notifications/tools/list_changed")
    names = [each["name"] for each in (await client.read("find_tools", query="echo"))["tools"]]
    assert names == ["two:echo"]
    assert "one (" not in (await client.tools())["find_tools"]["description"]


def test_an_unknown_exposure_is_refused_with_what_there_is(program, config):
    words = program.refused("--config", config({"one": scripted()}, exposure="some"))
    assert "$.junction.exposure: must be one of all, search, auto" in words
    sets = {"few": {"servers": ["one"], "exposure": "some"}}
    words = program.refused("--config", config({"one": scripted()}, endpoints=sets))
    assert "$.junction.endpoints.few.exposure: must be one of all, search, auto" in words
