"""Four cells over stdio in front: the program is the client's child, as in a desktop client."""

import asyncio
import uuid

import pytest
from mcp_types import PromptReference
from tests.journeys_eras.clients import (
    HOME,
    connected,
    resource_uris,
    said,
    spelled,
    tool_names,
    watching,
)
from tests.journeys_eras.ledger import BOUND
from tests.journeys_eras.offers import DOCUMENT, GREETING, RESOURCES, TOOLS
from tests.journeys_eras.stacks import DIRECT

ERAS = ("old", "new")

pytestmark = [
    pytest.mark.req("J-ERAS"),
    pytest.mark.parametrize(
        ("era", "server_era", "transport"),
        [
            (client, server, transport)
            for client in ERAS
            for server in ERAS
            for transport in ("http", "stdio")
        ],
    ),
    pytest.mark.timeout(90),
    pytest.mark.skipif(DIRECT, reason="the gateway itself is started here"),
]


@pytest.mark.feature(
    "elicitation", "sampling", "roots", "progress", "cancellation", "logging", "completions"
)
async def test_calls_and_what_happens_in_them(stacks, era, server_era, transport):
    program, ledger = stacks.stdio(server_era, transport)
    nonce = uuid.uuid4().hex[:8]
    heard, holding = [], asyncio.Event()

    async def on_progress(done, total, message):
        heard.append((done, total))
        holding.set()

    async with connected(era, program, log_level="warning") as (client, person):
        assert await said(client, "ask_all") == f"accept Ada, a-model: forty-two, {HOME}"
        assert await said(client, "ask_twice", nonce=nonce) == f"{nonce}: accept Ada, accept Ada"
        assert (person.asked, person.prompted) == (["Who?", "First?", "Second?"], ["What?"])

        tool = spelled(client, "steps")
        await client.call_tool(tool, {"steps": 3}, progress_callback=on_progress)
        assert heard == [(1, 3), (2, 3), (3, 3)]

        assert await said(client, "speak") == "spoken"
        async with asyncio.timeout(BOUND):
            while len(person.logs) < 2:  # noqa: ASYNC110 - a callback of the SDK fills it
                await asyncio.sleep(0.01)
        assert [level for level, _ in person.logs] == ["warning", "error"]

        prompt = PromptReference(type="ref/prompt", name=spelled(client, GREETING))
        found = await client.complete(prompt, {"name": "name", "value": "A"})
        assert found.completion.values == ["Ada", "Alan"]

        holding.clear()
        held = {"nonce": nonce}
        call = asyncio.ensure_future(
            client.call_tool(spelled(client, "hold"), held, progress_callback=on_progress)
        )
        await asyncio.wait_for(holding.wait(), BOUND)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(ledger.wait_for, nonce, "cancelled")
        assert await said(client, "echo", text="after") == "after"


@pytest.mark.feature("list_changed", "subscriptions", "pagination")
async def test_lists_and_news(stacks, era, server_era, transport):
    program, _ = stacks.stdio(server_era, transport)
    grown = f"g{uuid.uuid4().hex[:8]}"
    async with connected(era, program) as (client, person):
        names = await tool_names(client)
        assert {spelled(client, own) for own in TOOLS} <= set(names)
        assert len(names) == len(set(names))
        assert set(RESOURCES) <= set(await resource_uris(client))
        async with watching(client, person, "tools", uris=[DOCUMENT]) as following:
            await said(client, "touch", uri=DOCUMENT)
            while await following() != DOCUMENT:
                pass
            await said(client, "grow", kind="tools", name=grown)
            while spelled(client, grown) not in await tool_names(client):
                await following()
