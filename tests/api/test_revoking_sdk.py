"""R-REVOKE as the SDK's own clients of both eras meet it: while they call, are asked, listen."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from tests.api.test_revoking import flights, grant, revoke
from tests.journeys_eras.clients import MODES, VERSIONS, of_the_old_era
from tests.plugin_rest import Served, serve_api
from tests.registry.toolbox import BOUND, until

from mcp_junction.protocol.versions import DENIED

KINDS = ["tools", "prompts", "resources"]
ASKED = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
GREETING = types.PromptReference(name="peer.greet")


@asynccontextmanager
async def client_of(served: Served, era: str, **more: Any):
    headers = {"authorization": f"Bearer {served.keys['agent']}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=BOUND) as http:
        way = streamable_http_client(f"{served.url}/mcp", http_client=http)
        async with Client(way, mode=MODES[era], read_timeout_seconds=BOUND, **more) as client:
            assert client.protocol_version == VERSIONS[era]
            yield client


@pytest.fixture
async def served(opener):
    async with AsyncExitStack() as stack:
        made = await serve_api(stack, opener, grants=False)
        await made.register("peer")
        yield made


async def subscribe(client: Client, uri: str, stack: AsyncExitStack) -> None:
    if client.protocol_version == VERSIONS["new"]:
        await stack.enter_async_context(client.listen(resource_subscriptions=[uri]))
        return
    with of_the_old_era():
        await client.subscribe_resource(uri)


def ways(client: Client) -> dict[str, Any]:
    """All that the agent does with what it is granted."""
    argument = {"name": "who", "value": "x"}
    return {
        "call": lambda: client.call_tool("peer.echo", {}),
        "prompt": lambda: client.get_prompt("peer.greet"),
        "read": lambda: client.read_resource("note://1"),
        "complete": lambda: client.complete(GREETING, argument),
    }


@pytest.mark.req("R-REVOKE", "J-ERAS")
@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_call_under_way_and_all_that_was_open_end_with_the_grant(served, era):
    mine = await grant(served, "*", kinds=KINDS)
    subscriptions = served.junction.clients.subscriptions
    async with client_of(served, era) as client, AsyncExitStack() as open_streams:
        for way in ways(client).values():
            await way()
        await subscribe(client, "note://1", open_streams)
        await until(lambda: subscriptions.of("peer"))
        running = asyncio.create_task(client.call_tool("peer.hold", {}))
        await until(lambda: flights(served) == 1)
        await revoke(served, mine)
        with pytest.raises(MCPError) as denied:
            await asyncio.wait_for(running, BOUND)
        assert denied.value.error.code == DENIED
        await until(lambda: not subscriptions.of("peer") and flights(served) == 0)
        for name, way in ways(client).items():
            with pytest.raises(MCPError):
                await way()
            assert flights(served) == 0, name
        assert (await client.list_tools(cache_mode="refresh")).tools == []


@pytest.mark.req("R-REVOKE", "J-ERAS")
@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_call_whose_person_is_being_asked_does_not_go_on_with_the_answer(served, era):
    mine = await grant(served, "ask")

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        await revoke(served, mine)
        return types.ElicitResult(action="accept", content={})

    asked = {"method": "elicitation/create", "params": ASKED}
    async with client_of(served, era, elicitation_callback=answer) as client:
        with pytest.raises(MCPError):
            await client.call_tool("peer.ask", asked)
    await until(lambda: flights(served) == 0)
    assert len(served.junction.parked_calls) == 0
