"""The official SDK's client in front, in both its ways to connect, and its server behind.

What crosses from one era to the other, and how, is in `tests/journeys_eras`.
"""

import asyncio

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    Implementation,
    ListRootsResult,
    Root,
    TextContent,
    ToolListChangedNotification,
)
from tests import preloaded
from tests.journeys.client import BOUND
from tests.plugin_journeys import PROGRAM, SERVERS, own_environment, scripted

VERSIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}
handshake = pytest.mark.parametrize("connect", ["legacy"], indirect=True)


@pytest.fixture
def sdk_server():
    command, *args = preloaded.command()
    return {"command": command, "args": [*args, str(SERVERS / "sdk_server.py")]}


@pytest.fixture(params=list(VERSIONS))
def connect(request, config):
    """The SDK's client with the program on these servers; it closes the program by itself."""

    def to(servers, *options, **how):
        path = config(servers)
        arguments = ["--config", str(path), *options]
        server = StdioServerParameters(command=str(PROGRAM), args=arguments, env=own_environment())
        return Client(server, mode=request.param, read_timeout_seconds=BOUND, **how)

    return to


@pytest.mark.req("FR-012", "FR-004", "FR-006")
async def test_it_connects_lists_and_calls(connect, sdk_server, request):
    mode = request.node.callspec.params["connect"]
    async with connect({"one": scripted("echo", "count"), "two": sdk_server}) as client:
        assert client.protocol_version == VERSIONS[mode]
        assert client.server_info.name == "mcp-junction"
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools)[:3] == ["one:echo", "one:count", "two:add"]
        assert tools["two:add"].output_schema["required"] == ["total", "count"]
        added = await client.call_tool("two:add", {"numbers": [1, 2.5]})
        assert added.structured_content == {"total": 3.5, "count": 2}
        assert not added.is_error
        failed = await client.call_tool("two:fail", {})
        assert failed.is_error
        assert failed.content[0].text == "Error executing tool fail"
        with pytest.raises(MCPError, match="unknown tool: two:ad"):
            await client.call_tool("two:ad", {})


@pytest.mark.req("J-NAMES-CLIENT")
async def test_a_client_of_a_strict_name_sees_strict_names(connect):
    servers = {"my server": scripted("do.it")}
    info = Implementation(name="claude-ai", version="0.1.0")
    async with connect(servers, client_info=info) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "my_server__do_it"
        assert not (await client.call_tool(tool.name, {})).is_error


@handshake
async def test_progress_and_log_messages_of_a_call_reach_its_callbacks(connect, sdk_server):
    progress, logs = [], []

    async def on_progress(done, total, message):
        progress.append((done, total, message))

    async def on_log(params):
        logs.append((params.level, params.data))

    async with connect({"two": sdk_server}, logging_callback=on_log) as client:
        result = await client.call_tool("two:steps", {"count": 3}, progress_callback=on_progress)
    assert result.content[0].text == "done"
    assert progress == [(n, 3, f"step {n}") for n in (1, 2, 3)]
    assert logs == [("info", f"did step {n}") for n in (1, 2, 3)]


@pytest.mark.req("J-HANDSHAKE")
@handshake
async def test_questions_of_a_server_reach_the_clients_callbacks(connect, sdk_server):
    async def on_elicitation(context, params):
        assert params.message == "What is your name?"
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def on_sampling(context, params):
        text = params.messages[0].content.text
        content = TextContent(type="text", text=text.upper())
        return CreateMessageResult(role="assistant", content=content, model="a model")

    async def on_roots(context):
        return ListRootsResult(roots=[Root(uri="file:///home/ada", name="home")])

    async with connect(
        {"two": sdk_server},
        elicitation_callback=on_elicitation,
        sampling_callback=on_sampling,
        list_roots_callback=on_roots,
    ) as client:
        assert (await client.call_tool("two:greet", {})).content[0].text == "Hello, Ada!"
        thought = await client.call_tool("two:think", {"about": "life"})
        assert thought.content[0].text == "a model: LIFE"
        assert (await client.call_tool("two:places", {})).structured_content == {
            "result": ["file:///home/ada"]
        }


@handshake
async def test_a_client_that_can_answer_no_questions_is_not_asked_any(connect, sdk_server):
    async with connect({"two": sdk_server}) as client:
        for tool, arguments in (("greet", {}), ("think", {"about": "life"}), ("places", {})):
            with pytest.raises(MCPError, match="the client does not support"):
                await client.call_tool(f"two:{tool}", arguments)


@pytest.mark.req("FR-009", "US2-5")
@handshake
async def test_a_crash_is_told_to_the_client(connect):
    changed = asyncio.Event()

    async def on_message(message):
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    servers = {"weak": scripted("die", "echo"), "strong": scripted("echo")}
    async with connect(servers, message_handler=on_message) as client:
        assert len((await client.list_tools()).tools) == 3
        with pytest.raises(MCPError, match="connection to server 'weak' was lost"):
            await client.call_tool("weak:die", {})
        await asyncio.wait_for(changed.wait(), BOUND)
        assert [tool.name for tool in (await client.list_tools()).tools] == ["strong:echo"]
        assert not (await client.call_tool("strong:echo", {})).is_error
