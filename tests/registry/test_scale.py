"""Many servers and many tools: all connected and stored in time, the loop free meanwhile."""

import asyncio
import sys
import time

import pytest
from tests.plugin_registry import ADMIN, registration
from tests.pulse import BLOCKED, Pulse
from tests.registry.toolbox import Toolbox, tool, until

from mcp_junction.upstream.outcome import OutcomeKind

TRACED = sys.gettrace() is not None
"""Whether coverage counts every line: that holds the loop up for two to three times as long.
`make test` runs this file without it."""


def many(server: int, count: int) -> list[dict]:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(4)}}
    words = "does one of many things, and says so in a sentence of ordinary length"
    return [tool(f"t{server}_{n}", words, inputSchema=schema) for n in range(count)]


@pytest.mark.req("NFR-P2", "NFR-S2")
async def test_a_server_of_1200_tools_is_known_whole_within_5_s(platform, toolbox):
    run = await platform()
    server = await toolbox(many(0, 1200))
    began = time.monotonic()
    await run.add("big", server)
    assert len(run.listed()) == 1200
    await run.registry.refresh("big", ADMIN)
    assert time.monotonic() - began < 5
    assert len(await run.registry.tools.all("big")) == 1200


@pytest.mark.req("NFR-S1", "NFR-S3")
async def test_twenty_servers_of_500_tools_are_stored_in_10_s_and_a_restart_serves_them_at_once(
    platform, toolbox
):
    servers = [await toolbox(many(n, 500)) for n in range(20)]
    entries = {f"s{n}": {"url": server.url} for n, server in enumerate(servers)}
    began = time.monotonic()
    run = await platform(entries)
    run.junction.tool_search.begin()
    async with Pulse() as pulse:
        for name in entries:
            await run.until(name, "CONNECTED")
        async with asyncio.timeout(10):
            await until(lambda: sum(record.tool_count for record in run.registry.all()) >= 10_000)
            while len(await run.store.tools.all()) < 10_000:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        found = await run.find("one of many things t7_11", 1)
    took = time.monotonic() - began
    assert took < 10
    assert TRACED or pulse.worst < BLOCKED
    assert run.registry.state().total_tools == 10_000
    assert run.registry.state().indexed_tools == 10_000
    assert [hit.pair for hit in found] == [("s7", "t7_11")]
    for server in servers:
        server.answers.clear()
    began = time.monotonic()
    run = await platform(entries)
    listed = run.listed()
    took = time.monotonic() - began
    assert len(listed) == 10_000
    assert run.registry.find("s3").status == "CONNECTING"
    assert took < 3, "opening the store and all, before anybody answers"
    for server in servers:
        server.answers.set()
    outcome = await run.call("s19.t19_499", n=1)
    assert outcome.kind is OutcomeKind.RESULT


@pytest.mark.req("NFR-S1")
async def test_300_servers_registered_at_once_all_connect_ten_at_a_time(platform):
    run = await platform()
    async with Toolbox() as server, Pulse() as pulse:
        server.slowness = 0.005

        def made(number: int):
            config = {"url": f"{server.url}?n={number}"}
            return registration(f"box{number}", connection_config=config)

        async with asyncio.timeout(60):
            await asyncio.gather(*(run.registry.register(made(n), ADMIN) for n in range(300)))
            await until(lambda: run.registry.state().connected_servers >= 300)
        assert server.most <= 10, "attempts at one time"
        assert TRACED or pulse.worst < BLOCKED
        assert len(run.listed()) == 300
        assert (await run.call("box299.echo")).kind is OutcomeKind.RESULT
