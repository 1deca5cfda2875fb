"""A server of either era behind us: how its era is found, kept, and found again."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conformance.processes import FIXTURE, fixture

from mcp_junction.app import Junction
from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings
from mcp_junction.protocol.versions import Era
from mcp_junction.upstream.hello import Hello
from mcp_junction.upstream.outcome import Kind
from mcp_junction.upstream.server import Upstream
from mcp_junction.upstream.state import ServerState

BOUND = 30.0
OLD, NEW = Era.HANDSHAKE, Era.STATELESS


@asynccontextmanager
async def behind(entry: ServerDefinition, hello: Hello, **how: Any) -> AsyncIterator[Upstream]:
    """A gateway with one server behind it, once it is up or has failed."""
    async with Junction(Config("test", (entry,), Settings(), "test", {}), **how) as junction:
        junction.greet(hello)
        upstream = junction.servers[entry.key]
        async with asyncio.timeout(BOUND):
            await upstream.settled.wait()
        yield upstream


def python(*args: str) -> ServerDefinition:
    return ServerDefinition("s", "stdio", command=sys.executable, args=args)


def on_stdio(era: str) -> ServerDefinition:
    return python(str(FIXTURE), "stdio", "--era", era)


async def listed(upstream: Upstream) -> list[str]:
    outcome = await upstream.request("tools/list", b"{}", BOUND)
    assert outcome.kind is Kind.RESULT, outcome.message
    return [tool["name"] for tool in json.loads(bytes(outcome.payload))["tools"]]


EXPECTED = [
    ("old", NEW, OLD),
    ("old", OLD, OLD),
    ("new", NEW, NEW),
    ("new", OLD, NEW),
    ("both", NEW, NEW),
    ("both", OLD, OLD),
]


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize(("spoken", "preferred", "found"), EXPECTED)
async def test_a_server_is_talked_to_in_the_preferred_era_it_speaks(
    transport, spoken, preferred, found
):
    hello = Hello(prefers=preferred)
    if transport == "stdio":
        async with behind(on_stdio(spoken), hello) as upstream:
            await check(upstream, found)
    else:
        with fixture(spoken) as url:
            async with behind(ServerDefinition("s", "http", url=url), hello) as upstream:
                await check(upstream, found)


async def check(upstream: Upstream, found: Era) -> None:
    assert upstream.state is ServerState.CONNECTED, upstream.error
    assert (upstream.link.era, upstream.greeting.era) == (found, found)
    assert upstream.starts == 1
    assert upstream.greeting.name
    assert "test_simple_text" in await listed(upstream)
