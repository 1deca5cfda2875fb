"""The Python SDK's client over HTTP in front, a real server over each transport behind."""

import asyncio
import json

import httpx2
import pytest
from mcp import MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import PromptReference, ResourceTemplateReference
from tests.journeys.client import BOUND
from tests.journeys_http.sdk import ROOT, connected, listed, said
from tests.journeys_http.stack import KEYS

pytestmark = pytest.mark.peers

PROMPTS = ["simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"]
DOCUMENT = "demo://resource/static/document/instructions.md"
# The first to have an address keeps it; to the others' their key is added.
DOCUMENTS = {"child": DOCUMENT, "stream": f"stream+{DOCUMENT}", "sse": f"sse+{DOCUMENT}"}
# They come after the handshake, because the gateway says that it can do these.
ASKING = ["trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"]

each = pytest.mark.parametrize("key", KEYS)
# The client of today still has the request, for servers of the handshake.
subscribing = pytest.mark.filterwarnings(
    "ignore:resources/:mcp.shared.exceptions.MCPDeprecationWarning"
)


@pytest.mark.req("J-REMOTE")
async def test_the_three_are_listed_whole(url):
    async with connected(url) as (client, _):
        assert client.protocol_version == "2025-11-25"
        assert client.server_info.name == "mcp-junction"
        tools = await listed(client, *(f"{key}.{tool}" for key in KEYS for tool in ASKING))
        of = {
            key: {name.split(".", 1)[1] for name in tools if name.startswith(key)} for key in KEYS
        }
        assert {"echo", "get-sum", "trigger-long-running-operation"} < of["child"]
        assert of["child"] == of["stream"] == of["sse"]
        assert len(tools) == len(set(tools)) == 3 * len(of["child"])

        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        assert prompts == [f"{key}.{name}" for key in KEYS for name in PROMPTS]

        resources = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert set(DOCUMENTS.values()) <= set(resources)
        assert len(resources) == len(set(resources))

        templates = (await client.list_resource_templates()).resource_templates
        assert len(templates) == 3 * 2
        assert {template.name for template in templates} == {
            "Dynamic Text Resource",
            "Dynamic Blob Resource",
        }


@pytest.mark.req("J-REMOTE")
@each
async def test_calls_of_tools(url, key):
    async with connected(url) as (client, _):
        await client.list_tools()
        assert await said(client, f"{key}.echo", {"message": "é 🚦"}) == "Echo: é 🚦"
        total = await said(client, f"{key}.get-sum", {"a": 1.5, "b": 2})
        assert total == "The sum of 1.5 and 2 is 3.5."
        wrong = await client.call_tool(f"{key}.get-sum", {"a": "not a number"})
        assert wrong.is_error
        with pytest.raises(MCPError, match="unknown tool"):
            await client.call_tool(f"{key}.no-such-tool", {})


@pytest.mark.req("J-REMOTE")
@each
async def test_resources_prompts_and_completion(url, key):
    async with connected(url) as (client, _):
        (content,) = (await client.read_resource(DOCUMENTS[key])).contents
        assert content.mime_type == "text/markdown"
        assert "Everything Server" in content.text

        arguments = {"department": "Sales", "name": "Eve"}
        prompt = await client.get_prompt(f"{key}.completable-prompt", arguments)
        assert prompt.messages[0].content.text == (
            "Please promote Eve to the head of the Sales team."
        )

        ref = PromptReference(type="ref/prompt", name=f"{key}.completable-prompt")
        some = await client.complete(ref, {"name": "department", "value": "S"})
        assert some.completion.values == ["Sales", "Support"]
        narrowed = await client.complete(
            ref, {"name": "name", "value": ""}, context_arguments={"department": "Sales"}
        )
        assert narrowed.completion.values == ["David", "Eve", "Frank"]


@pytest.mark.req("J-REMOTE")
@each
async def test_a_template_is_completed_and_read_at_the_endpoint_of_its_server(url, key):
    template = "demo://resource/dynamic/text/{resourceId}"
    ref = ResourceTemplateReference(type="ref/resource", uri=template)
    uri = template.replace("{resourceId}", "7")
    async with connected(f"{url}/{key}") as (client, _):
        some = await client.complete(ref, {"name": "resourceId", "value": "7"})
        assert some.completion.values == ["7"]
        (content,) = (await client.read_resource(uri)).contents
        assert content.text.startswith("Resource 7:")


async def test_a_template_of_three_servers_is_listed_for_each_and_each_can_be_read(url):
    async with connected(url) as (client, _):
        listed = (await client.list_resource_templates()).resource_templates
        texts = [t.uri_template for t in listed if t.uri_template.endswith("text/{resourceId}")]
        assert len(set(texts)) == len(texts) == 3
        for text in texts:
            (content,) = (await client.read_resource(text.replace("{resourceId}", "7"))).contents
            assert content.text.startswith("Resource 7:")


@pytest.mark.req("J-REMOTE")
@each
async def test_progress_of_a_long_call(url, key):
    progress = []

    async def on_progress(done, total, message):
        progress.append((done, total))

    async with connected(url) as (client, _):
        arguments = {"duration": 0.4, "steps": 4}
        tool = f"{key}.trigger-long-running-operation"
        text = await said(client, tool, arguments, progress_callback=on_progress)
    assert text == "Long running operation completed. Duration: 0.4 seconds, Steps: 4."
    assert progress == [(step, 4) for step in (1, 2, 3, 4)]


@pytest.mark.req("J-REMOTE")
@each
async def test_questions_of_a_server_are_answered_by_the_client(url, key):
    """On every transport. Not its questions as tasks: the gateway declares no tasks to a server,
    which then does not list the tools that ask them.
    """
    async with connected(url) as (client, answers):
        await listed(client, *(f"{key}.{tool}" for tool in ASKING))

        asked = {"prompt": f"of {key}", "maxTokens": 5}
        text = await said(client, f"{key}.trigger-sampling-request", asked)
        answer = json.loads(text.partition("\n")[2])
        assert answer["model"] == "a-model"
        assert answer["content"] == {"type": "text", "text": "said the model"}
        assert answers.sampled == [f"Resource trigger-sampling-request context: of {key}"]

        text = await said(client, f"{key}.trigger-elicitation-request", {})
        assert "- Name: Ada" in text
        assert "- Favorite Integer: 7" in text
        question = answers.elicited[0]
        assert question.message == "Please provide inputs for the following fields:"
        assert question.requested_schema["required"] == ["name"]

        place = {"url": "https://example.invalid/pay", "message": "Pay there"}
        await said(client, f"{key}.trigger-url-elicitation", place)
        by_address = answers.elicited[1]
        assert (by_address.mode, by_address.url) == ("url", place["url"])
        assert len(answers.elicited) == 2

        assert ROOT in await said(client, f"{key}.get-roots-list", {})


@pytest.mark.req("J-REMOTE")
@each
@subscribing
async def test_an_update_of_a_subscribed_resource_arrives(url, key):
    toggle = f"{key}.toggle-subscriber-updates"
    async with connected(url) as (client, answers):
        await client.subscribe_resource(DOCUMENTS[key])
        try:
            assert "Started" in await said(client, toggle, {})
            assert await asyncio.wait_for(answers.updated.get(), BOUND) == DOCUMENTS[key]
        finally:
            assert "Stopped" in await said(client, toggle, {})
            await client.unsubscribe_resource(DOCUMENTS[key])


async def test_closing_ends_the_session(url):
    ended = []

    async def on_response(response):
        if response.request.method == "DELETE":
            ended.append((response.status_code, response.request.headers["mcp-session-id"]))

    async with httpx2.AsyncClient(event_hooks={"response": [on_response]}, timeout=BOUND) as http:
        async with connected(streamable_http_client(url, http_client=http)) as (client, _):
            assert await said(client, "sse.echo", {"message": "bye"}) == "Echo: bye"
            assert ended == []
        ((status, session),) = ended
        assert status in (200, 204)
        headers = {
            "mcp-session-id": session,
            "mcp-protocol-version": "2025-11-25",
            "accept": "application/json, text/event-stream",
        }
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await http.post(url, json=ping, headers=headers)).status_code == 404
    async with connected(url) as (client, _):
        assert await said(client, "sse.echo", {"message": "again"}) == "Echo: again"
