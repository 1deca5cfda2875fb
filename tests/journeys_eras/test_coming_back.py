"""A server that goes away and comes back speaking another era is spoken to in that one."""

import asyncio
import socket
import sys
from contextlib import ExitStack

import pytest
from mcp import MCPError
from tests.conformance.processes import listening
from tests.journeys_eras.clients import connected, said
from tests.journeys_eras.ledger import BOUND
from tests.journeys_eras.stacks import DIRECT, KEY, ROOT, command
from tests.journeys_http.stack import serving
from tests.plugin_journeys import own_environment

pytestmark = [
    pytest.mark.req("J-ERAS"),
    pytest.mark.timeout(90),
    pytest.mark.skipif(DIRECT, reason="a gateway keeps what it found out"),
]


def server(era: str, port: int, ledger):
    words = command("http", str(port), "--era", era, "--ledger", str(ledger))
    return listening([sys.executable, *words], {**own_environment(), "PYTHONPATH": str(ROOT)})


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


@pytest.mark.parametrize(("first", "then"), [("old", "new"), ("new", "old")])
@pytest.mark.parametrize("era", ["old", "new"])
async def test_the_era_is_found_out_again(stacks, era, first, then):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    name = f"coming-back-{era}-{first}"
    entry = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
    config = stacks.config(name, {KEY: entry})
    ledger = stacks.folder / f"{name}.ledger"
    with ExitStack() as before:
        before.enter_context(server(first, port, ledger))
        with serving(config) as url:
            async with connected(era, url) as (client, person):
                await answered(client, "before")
                await asyncio.to_thread(before.close)
                with server(then, port, ledger):
                    await answered(client, "after")
                    assert await said(client, "ask_user", nonce="n") == "n: accept Ada"
                    assert person.asked == ["Who is n?"]
