"""A server of each era behind one gateway: a client of either sees and uses all of both."""

import pytest
from tests.journeys_eras.clients import connected, prompt_names, resource_uris, said, tool_names
from tests.journeys_eras.offers import PROMPTS, RESOURCES, TOOLS
from tests.journeys_eras.stacks import DIRECT

pytestmark = [
    pytest.mark.req("J-ERAS"),
    pytest.mark.parametrize("era", ["old", "new"]),
    pytest.mark.timeout(60),
    pytest.mark.skipif(DIRECT, reason="only a gateway has two servers"),
]

SERVERS = ("older", "newer")


async def test_no_list_is_shortened(stacks, era):
    async with connected(era, stacks.both()) as (client, _):
        tools, prompts = await tool_names(client), await prompt_names(client)
        for key in SERVERS:
            assert {f"{key}.{own}" for own in TOOLS} <= set(tools)
            assert {f"{key}.{own}" for own in PROMPTS} <= set(prompts)
        assert len(tools) == len(set(tools))
        uris = await resource_uris(client)
        # Both have these addresses: each is there once as it is, and once as the other's.
        assert set(RESOURCES) <= set(uris)
        assert len(set(uris)) == len(uris) >= 2 * len(RESOURCES)
        templates = (await client.list_resource_templates()).resource_templates
        assert len({template.uri_template for template in templates}) == 2


@pytest.mark.parametrize("key", SERVERS)
async def test_either_server_is_called_and_asks(stacks, era, key):
    async with connected(era, stacks.both()) as (client, person):
        assert await said(client, "echo", key, text="hello") == "hello"
        assert await said(client, "ask_user", key, nonce="two") == "two: accept Ada"
        assert await said(client, "ask_model", key, prompt="What?") == "a-model: forty-two"
        assert (person.asked, person.prompted) == (["Who is two?"], ["What?"])


async def test_resources_of_both_are_read(stacks, era):
    async with connected(era, stacks.both()) as (client, _):
        for uri in await resource_uris(client):
            if "asking" not in uri:
                (content,) = (await client.read_resource(uri)).contents
                assert content.text.startswith("The body of cell://")
