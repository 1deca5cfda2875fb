"""A server that goes away and comes back speaking another era is spoken to in that one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from mcp import MCPError
from tests.journeys_eras.clients import connected, said
from tests.journeys_eras.ledger import BOUND
from tests.journeys_eras.stacks import DIRECT, KEY, Stacks
from tests.journeys_http.stack import serving

from mcp_junction.testing.faults import FaultProxy

AWAY = 1.0  # seconds that nothing listens, where it is away for a while

pytestmark = [
    pytest.mark.req("J-ERAS"),
    pytest.mark.timeout(90),
    pytest.mark.skipif(DIRECT, reason="a gateway keeps what it found out"),
]


@asynccontextmanager
async def gateway(stacks: Stacks, name: str, port: int) -> AsyncIterator[str]:
    """In front of whatever is at that port. It is started aside: the port is of our own loop."""
    entry = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
    made = serving(stacks.config(name, {KEY: entry}))
    url = await asyncio.to_thread(made.__enter__)
    try:
        yield url
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)


def port_of(stacks: Stacks, era: str) -> int:
    return int(urlsplit(stacks.server(era)).port or 0)


async def answered(client, words: str) -> None:
    """Call until it is answered: the server was away."""
    async with asyncio.timeout(BOUND):
        while True:
            try:
                assert await said(client, "echo", text=words) == words
            except MCPError:
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.parametrize("away", [0.0, AWAY], ids=["at once", "after a while"])
@pytest.mark.parametrize(("first", "then"), [("old", "new"), ("new", "old")])
@pytest.mark.parametrize("era", ["old", "new"])
async def test_the_era_is_found_out_again(stacks, era, first, then, away):
    name = f"coming-back-{era}-{first}-{away:g}"
    async with (
        FaultProxy(port_of(stacks, first)) as place,
        gateway(stacks, name, place.port) as url,
        connected(era, url) as (client, person),
    ):
        await answered(client, "before")
        place.target = port_of(stacks, then)
        if away:
            await place.refuse()
            place.cut()
            await asyncio.sleep(away)
            await place.accept()
        else:
            place.cut()
        await answered(client, "after")
        assert await said(client, "ask_user", nonce="n") == "n: accept Ada"
        assert person.asked == ["Who is n?"]


@pytest.mark.parametrize(
    ("first", "then"), [("old", "old"), ("new", "new"), ("old", "new"), ("new", "old")]
)
@pytest.mark.parametrize("era", ["old", "new"])
async def test_in_stdio_mode_a_server_given_by_url_comes_back_too(stacks, era, first, then):
    """It is no child of ours, so nobody but us could connect to it again."""
    async with FaultProxy(port_of(stacks, first)) as place:
        entry = {"type": "http", "url": f"http://127.0.0.1:{place.port}/mcp"}
        program = stacks.program(stacks.config(f"stdio-back-{era}-{first}-{then}", {KEY: entry}))
        async with connected(era, program) as (client, _):
            await answered(client, "before")
            place.target = port_of(stacks, then)
            await place.refuse()
            place.cut()
            with pytest.raises(MCPError):
                await said(client, "echo", text="while it is away, and for a while after")
            await asyncio.sleep(AWAY)
            await place.accept()
            await answered(client, "after")
