"""The official SDK's client with each demo server, in both of its ways to connect."""

import os
import sys

import pytest
from mcp import Client, MCPError, StdioServerParameters

from mcp_junction.demo import DEMOS


def server(name, *args):
    command = ["-m", DEMOS[name], *args]
    return StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))


@pytest.fixture(params=["auto", "legacy"])
def mode(request):
    return request.param


async def test_it_lists_and_calls_the_clock(mode):
    heard = []

    async def on_progress(progress, total, message):
        heard.append((progress, total, message))

    async with Client(server("clock"), mode=mode) as client:
        assert client.protocol_version == "2025-11-25"
        assert client.server_info.name == "junction-demo-clock"
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["now", "convert", "countdown"]
        assert all(tool.annotations.read_only_hint for tool in tools)
        times = {"time": "2026-01-15T12:00", "from": "UTC", "to": "+02:00"}
        converted = await client.call_tool("convert", times)
        assert converted.structured_content["to"]["time"] == "2026-01-15T14:00:00+02:00"
        counted = await client.call_tool("countdown", {"seconds": 1}, progress_callback=on_progress)
        assert not counted.is_error
        assert heard == [(1, 1, "0 s to go")]
        wrong = await client.call_tool("countdown", {"seconds": 31})
        assert wrong.is_error
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("absent", {})


async def test_it_lists_and_calls_the_notes(mode, tmp_path):
    async with Client(server("notes", str(tmp_path)), mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"add", "list", "read", "search", "delete"}
        assert tools["delete"].annotations.destructive_hint is True
        await client.call_tool("add", {"name": "plan", "text": "Sow."})
        listed = await client.call_tool("list", {})
        assert listed.structured_content == {"notes": [{"name": "plan", "bytes": 4}]}
        found = await client.call_tool("search", {"text": "sow"})
        assert found.structured_content["total"] == 1
        read = await client.call_tool("read", {"name": "plan"})
        assert read.content[0].text == "Sow."
        (resource,) = (await client.list_resources()).resources
        assert (await client.read_resource(str(resource.uri))).contents[0].text == "Sow."
        assert len((await client.list_resource_templates()).resource_templates) == 1
        (prompt,) = (await client.list_prompts()).prompts
        got = await client.get_prompt(prompt.name, {"name": "plan"})
        assert got.messages[1].content.resource.text == "Sow."
        deleted = await client.call_tool("delete", {"name": "plan"})
        assert not deleted.is_error
        assert (await client.list_resources()).resources == []


async def test_it_lists_and_calls_arithmetic(mode):
    async with Client(server("arithmetic"), mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["evaluate", "statistics"]
        assert all(tool.output_schema for tool in tools)
        evaluated = await client.call_tool("evaluate", {"expression": "6 * 7"})
        assert evaluated.structured_content["value"] == 42
        described = await client.call_tool("statistics", {"numbers": [1, 2, 3.5]})
        assert described.structured_content["sum"] == 6.5
