"""Many servers and many tools: all connected and stored, the loop free meanwhile.

How long that takes, `make bench` measures (`discover`, `restart-10k`); here is only a bound on what
hangs. Coverage, which would hold the loop up for two to three times as long, is off.
"""

import asyncio
from contextlib import AsyncExitStack
from itertools import count

import pytest
from tests.plugin_registry import ADMIN, Platforms, registration
from tests.plugin_store import Opener
from tests.pulse import BLOCKED, Pulse, least
from tests.registry.toolbox import Toolbox, tool, until

from mcp_junction.upstream.outcome import OutcomeKind

pytestmark = pytest.mark.bulk
HANGS = 60


def many(server: int, size: int) -> list[dict]:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(4)}}
    words = "does one of many things, and says so in a sentence of ordinary length"
    return [tool(f"t{server}_{n}", words, inputSchema=schema) for n in range(size)]


@pytest.mark.req("NFR-P2", "NFR-S2")
async def test_a_server_of_1200_tools_is_known_whole(platform, toolbox):
    run = await platform()
    server = await toolbox(many(0, 1200))
    await run.add("big", server)
    assert len(run.listed()) == 1200
    await run.registry.refresh("big", ADMIN)
    assert len(await run.registry.tools.all("big")) == 1200


@pytest.fixture
async def new_platforms(another_store_url, vault, tmp_path):
    """Makes starters of platforms, each with a store of its own."""
    numbers = count()
    async with AsyncExitStack() as stack:

        async def make() -> Platforms:
            folder = tmp_path / f"platform-{next(numbers)}"
            folder.mkdir()
            opener = Opener(stack, await another_store_url(folder.name), vault, folder / "data")
            platforms = Platforms(opener, folder)
            stack.push_async_callback(platforms.stop)
            return platforms

        yield make


@pytest.mark.req("NFR-S1", "NFR-S3")
async def test_twenty_servers_of_500_tools_are_stored_and_a_restart_serves_them_at_once(
    new_platforms, toolbox
):
    servers = [await toolbox(many(n, 500)) for n in range(20)]
    entries = {f"s{n}": {"url": server.url} for n, server in enumerate(servers)}
    platforms = []

    async def fill() -> float:
        platforms.append(await new_platforms())
        run = await platforms[-1](entries)
        run.junction.tool_search.begin()
        async with Pulse() as pulse, asyncio.timeout(HANGS):
            for name in entries:
                await run.until(name, "CONNECTED")
            await until(lambda: sum(record.tool_count for record in run.registry.all()) >= 10_000)
            while len(await run.store.tools.all()) < 10_000:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await until(lambda: run.registry.state().indexed_tools >= 10_000)
            found = await run.find("one of many things t7_11", 1)
        assert run.registry.state().total_tools == 10_000
        assert run.registry.state().indexed_tools == 10_000
        assert [hit.pair for hit in found] == [("s7", "t7_11")]
        return pulse.worst

    assert await least(fill, BLOCKED) < BLOCKED
    for server in servers:
        server.answers.clear()
    run = await platforms[-1](entries)
    assert len(run.listed()) == 10_000
    assert run.registry.find("s3").status == "CONNECTING", "before anybody answers"
    for server in servers:
        server.answers.set()
    outcome = await run.call("s19.t19_499", n=1)
    assert outcome.kind is OutcomeKind.RESULT


@pytest.mark.req("NFR-S1")
async def test_300_servers_registered_at_once_all_connect_ten_at_a_time(new_platforms):
    async def register() -> float:
        platforms = await new_platforms()
        run = await platforms()
        async with Toolbox() as server, Pulse() as pulse:
            server.slowness = 0.005

            def made(number: int):
                config = {"url": f"{server.url}?n={number}"}
                return registration(f"box{number}", connection_config=config)

            async with asyncio.timeout(HANGS):
                await asyncio.gather(*(run.registry.register(made(n), ADMIN) for n in range(300)))
                await until(lambda: run.registry.state().connected_servers >= 300)
            worst = pulse.worst
            assert server.most <= 10, "attempts at one time"
            assert len(run.listed()) == 300
            assert (await run.call("box299.echo")).kind is OutcomeKind.RESULT
        await platforms.stop()
        return worst

    assert await least(register, BLOCKED) < BLOCKED
