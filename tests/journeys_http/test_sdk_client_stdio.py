"""The same three servers in stdio mode: entries with a url work there beside a child."""

import asyncio

import pytest
from mcp import StdioServerParameters
from tests.journeys.client import BOUND
from tests.journeys_http.sdk import ROOT, connected, listed, said
from tests.journeys_http.stack import KEYS
from tests.plugin_journeys import PROGRAM, own_environment

pytestmark = pytest.mark.peers

DOCUMENT = "demo://resource/static/document/instructions.md"
ASKING = ["trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"]


@pytest.mark.req("J-REMOTE")
@pytest.mark.filterwarnings("ignore:resources/:mcp.shared.exceptions.MCPDeprecationWarning")
async def test_remote_entries_serve_their_tools_beside_a_child(three_servers):
    arguments = ["--config", str(three_servers)]
    program = StdioServerParameters(command=str(PROGRAM), args=arguments, env=own_environment())
    progress = []

    async def on_progress(done, total, message):
        progress.append((done, total))

    async with connected(program) as (client, answers):
        await listed(client, *(f"{key}:{tool}" for key in KEYS for tool in ASKING))
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
        for key in KEYS:
            assert f"{key}:simple-prompt" in prompts
            assert await said(client, f"{key}:echo", {"message": key}) == f"Echo: {key}"
            total = await said(client, f"{key}:get-sum", {"a": 1, "b": 2})
            assert total == "The sum of 1 and 2 is 3."

            progress.clear()
            steps = {"duration": 0.3, "steps": 3}
            tool = f"{key}:trigger-long-running-operation"
            await said(client, tool, steps, progress_callback=on_progress)
            assert progress == [(1, 3), (2, 3), (3, 3)]

            asked = {"prompt": "hello", "maxTokens": 5}
            text = await said(client, f"{key}:trigger-sampling-request", asked)
            assert "said the model" in text
            assert "Ada" in await said(client, f"{key}:trigger-elicitation-request", {})
            assert ROOT in await said(client, f"{key}:get-roots-list", {})

            prompt = await client.get_prompt(f"{key}:simple-prompt")
            assert prompt.messages[0].content.text == "This is a simple prompt without arguments."
            uri = DOCUMENT if key == "child" else f"{key}+{DOCUMENT}"
            (content,) = (await client.read_resource(uri)).contents
            assert "Everything Server" in content.text

            await client.subscribe_resource(uri)
            await said(client, f"{key}:toggle-subscriber-updates", {})
            assert await asyncio.wait_for(answers.updated.get(), BOUND) == uri
            await said(client, f"{key}:toggle-subscriber-updates", {})
