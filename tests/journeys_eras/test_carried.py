"""What calls carry for Junction, sent by the SDK's client of either era."""

import pytest
from mcp import MCPError
from tests.journeys_eras.clients import connected
from tests.journeys_eras.stacks import KEY

pytestmark = [
    pytest.mark.req("REQ-MCP-CALL-001"),
    pytest.mark.parametrize("era", ["old", "new"]),
    pytest.mark.timeout(60),
]

CARRIED = {
    "junction/correlation-id": "c-1",
    "junction/ticket-id": "T-7",
    "junction/task-id": "a task",
    "junction/idempotency-key": "k-1",
    "junction/token": "jtk_t1_secret",
    "junction/timeout-ms": 20_000,
}


async def test_a_call_that_carries_everything_is_answered(stacks, era):
    async with connected(era, stacks.http("old", "http").url) as (client, _):
        result = await client.call_tool(f"{KEY}.echo", {"text": "hi"}, meta=CARRIED)
        assert result.content[0].text == "hi"


async def test_errors_of_ours_name_the_correlation_id(stacks, era):
    async with connected(era, stacks.http("old", "http").url) as (client, _):
        with pytest.raises(MCPError) as raised:
            await client.call_tool(f"{KEY}.nosuch", {}, meta={"junction/correlation-id": "c-2"})
        assert raised.value.error.data["correlation_id"] == "c-2"
        with pytest.raises(MCPError) as raised:
            await client.call_tool(f"{KEY}.nosuch", {})
        assert raised.value.error.data["correlation_id"].startswith("j")


async def test_what_is_wrong_is_said_in_words(stacks, era):
    async with connected(era, stacks.http("old", "http").url) as (client, _):
        for wrong in ({"junction/timeout-ms": "soon"}, {"junction/token": "s3cr3t"}):
            with pytest.raises(MCPError) as raised:
                await client.call_tool(f"{KEY}.echo", {"text": "hi"}, meta=wrong)
            assert raised.value.error.code == -32602
            assert next(iter(wrong)) in raised.value.error.message
            assert "s3cr3t" not in str(raised.value.error)
