"""Junction's own tools through the SDK's client of either era, before servers of either era."""

import json
import uuid

import pytest
from mcp import MCPError, StdioServerParameters
from tests.conformance.processes import junction
from tests.journeys_eras.clients import connected, tool_names
from tests.journeys_http.stack import serving
from tests.plugin_journeys import own_environment

OWN = ["find_tools", "describe_tools", "call_tool"]
ERAS = ("old", "new")

pytestmark = [
    pytest.mark.req("AG-US7-AC7", "J-ERAS"),
    pytest.mark.parametrize("era", ERAS),
    pytest.mark.timeout(90),
]


@pytest.fixture(scope="module")
def config(stacks):
    entries = {"older": stacks.entry("old", "http"), "newer": stacks.entry("new", "stdio")}
    return stacks.config("own", entries, exposure="search")


@pytest.fixture(scope="module")
def url(config):
    """A gateway that lists its own tools, in front of a server of either era."""
    with serving(config) as url:
        yield url


@pytest.fixture(scope="module")
def program(config):
    """The same on stdio, which whoever connects starts."""
    command, *words = junction()
    args = [*words, "--config", str(config)]
    return StdioServerParameters(command=command, args=args, env=own_environment())


@pytest.fixture(params=["http", "stdio"])
def front(request):
    return request.getfixturevalue("url" if request.param == "http" else "program")


async def told(client, tool, **arguments):
    """What an own tool says."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


async def called(client, tool, **arguments):
    """The text of what a tool says that is called through `call_tool`."""
    result = await client.call_tool("call_tool", {"name": tool, "arguments": arguments})
    assert not result.is_error, result
    return result.content[0].text


async def test_a_tool_is_found_described_and_called(front, era):
    async with connected(era, front) as (client, _):
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == OWN
        assert "older (" in tools[0].description
        assert "newer (" in tools[0].description
        found = (await told(client, "find_tools", query="echo"))["tools"]
        assert {each["server"] for each in found} >= {"older", "newer"}
        for name in [each["name"] for each in found if "echo" in each["name"]][:2]:
            (described,) = (await told(client, "describe_tools", names=[name]))["tools"]
            assert described["name"] == name
            assert described["inputSchema"]["properties"]["text"]
            assert await called(client, name, text="é 🚦") == "é 🚦"


@pytest.mark.parametrize("server", ["older", "newer"])
async def test_a_server_may_ask_back_on_the_way(url, era, server):
    nonce = uuid.uuid4().hex[:8]
    async with connected(era, url) as (client, person):
        assert await called(client, f"{server}.ask_user", nonce=nonce) == f"{nonce}: accept Ada"
        assert person.asked == [f"Who is {nonce}?"]


async def test_what_is_not_there_is_not_called(front, era):
    async with connected(era, front) as (client, _):
        with pytest.raises(MCPError, match="unknown tool"):
            await client.call_tool("call_tool", {"name": "older.no_such_tool"})
        wrong = await client.call_tool("find_tools", {"query": 7})
        assert wrong.is_error
        assert "query" in wrong.content[0].text


async def test_the_servers_own_names_still_lead_to_them(url, era):
    async with connected(era, url) as (client, _):
        result = await client.call_tool("older.echo", {"text": "direct"})
        assert result.content[0].text == "direct"
        assert await tool_names(client) == OWN
