"""LiveCatalog with a server of 10,000 tools: its lists are taken in without holding up the loop.

Coverage, which would hold the loop up for two to three times as long, is off.
"""

import asyncio

import pytest
from tests.catalog.test_live_catalog import Server, Shelf
from tests.pulse import Pulse, least

from mcp_junction.protocol import encode
from mcp_junction.protocol.names import STDIO
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import Flight
from mcp_junction.upstream.outcome import Outcome

pytestmark = pytest.mark.bulk
HELD_UP = 0.04
"""The most that the loop may be held up, in seconds of work of its own thread."""


class Big(Server):
    """A server of 10,000 tools of ordinary size, whose list is ready before it is asked for."""

    def __init__(self) -> None:
        super().__init__("big")
        properties = {f"p{n}": {"type": "string", "description": "a word"} for n in range(4)}
        schema = {"type": "object", "properties": properties}
        words = "does one of many things, and says so in a sentence of ordinary length"
        tools = [
            {"name": f"t{n}", "description": words, "inputSchema": schema} for n in range(10_000)
        ]
        self.list = outcomes.result(encode.dumps({"tools": tools}))

    def answer_to(self, flight: Flight) -> Outcome:
        return self.list if flight.method == "tools/list" else super().answer_to(flight)


async def take_in(big: Big) -> float:
    """By how much the loop was held up while a catalog took the list in."""
    first, shelf = Server(), Shelf("s", "big")
    await shelf.live_catalog.discover(first.upstream)
    shelf.live_catalog.catalog.view(STDIO).find("s__echo")
    async with Pulse() as pulse:
        await asyncio.sleep(0.02)
        await asyncio.wait_for(shelf.live_catalog.discover(big.upstream), 60)
        await asyncio.sleep(0.02)
        found = shelf.live_catalog.catalog.view(STDIO).find("big__t77")
        await asyncio.sleep(0.02)
    assert found is not None
    return pulse.worst


async def test_ten_thousand_tools_come_without_holding_up_the_loop():
    big = Big()
    assert await least(lambda: take_in(big), HELD_UP) < HELD_UP
