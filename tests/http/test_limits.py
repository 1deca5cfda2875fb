"""One server's share: calls under way, requests that wait, bytes that it has not taken."""

import asyncio
import json
import sys

import pytest
from tests.http.links import Ears, Rider, call, failure, fly, landed, linked, sse_link
from tests.http.origin import Origin, Visit
from tests.http.test_sse_link import Older

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import DEFAULT_LIMITS, Limits, Settings, limits_of
from mcp_junction.upstream.stdio import StdioLink
from mcp_junction.upstream.warden import Warden


async def held(visit: Visit) -> None:
    """Answers nothing while the test looks."""


async def overloaded(link: object) -> None:
    """Two calls may be under way, a third may not, and our own requests always may."""
    two = [fly(link, rider=Rider()) for _ in range(2)]
    error = await failure(fly(link, rider=Rider()))
    assert (error["code"], error["data"]) == (
        -32003,
        {"server": link.server, "delivery": "not_sent"},
    )
    assert "2 calls under way" in error["message"]
    ours = fly(link, "ping")
    assert not ours.future.done()
    two[0].abandon(await landed(refused := fly(link, rider=Rider())), "enough")
    assert refused.future.done()
    ours.abandon(refused.future.result(), "enough")
    assert not fly(link, rider=Rider()).future.done(), "there is room again"


async def test_calls_over_http():
    async with linked(held, limits=Limits(calls=2)) as (_, link):
        await overloaded(link)


async def test_calls_over_the_older_transport():
    async with Origin(Older()) as origin, sse_link(origin, limits=Limits(calls=2)) as link:
        await overloaded(link)


async def test_calls_over_stdio():
    definition = ServerDefinition(
        "s",
        "stdio",
        command=sys.executable,
        args=("-c", "import sys\nfor _ in sys.stdin: pass"),
        limits=Limits(calls=2),
    )
    warden = Warden()
    link = StdioLink(definition, Ears(), 1000)
    try:
        await link.start({}, warden)
        await overloaded(link)
    finally:
        await link.end(0.0)
        await warden.close()


async def test_bytes_that_a_stdio_server_does_not_take():
    definition = ServerDefinition(
        "s",
        "stdio",
        command=sys.executable,
        args=("-c", "import time; time.sleep(600)"),
        limits=Limits(bytes=1_000_000),
    )
    warden = Warden()
    link = StdioLink(definition, Ears(), 1000)
    try:
        await link.start({}, warden)
        for _ in range(400):
            flight = fly(link, "x" * 10_000, rider=Rider())
            await asyncio.sleep(0)
            if flight.future.done():
                break
        error = await failure(flight)
        assert (error["code"], error["data"]["delivery"]) == (-32000, "not_sent")
    finally:
        await link.end(0.0)
        await warden.close()


async def test_bytes_that_wait_for_a_connection(monkeypatch):
    monkeypatch.setattr("mcp_junction.upstream.http.pool.MAX_CONNECTIONS", 1)
    async with linked(held, limits=Limits(bytes=2_000)) as (_, link):
        flights = [fly(link, "x" * 1_000, rider=Rider()) for _ in range(6)]
        refused = [flight for flight in flights if flight.future.done()]
        assert refused
        assert {(await failure(flight))["code"] for flight in refused} == {-32000}
        for flight in flights:
            flight.abandon(refused[0].future.result(), "enough")
        assert not link.pool.is_full, "what was given up does not wait any more"


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.mark.req("R-ISOLATE", "R-MEMORY")
async def test_answers_that_an_http_server_does_not_take_are_dropped_at_the_limit(monkeypatch):
    monkeypatch.setattr("mcp_junction.upstream.http.pool.MAX_CONNECTIONS", 1)
    goes_on = asyncio.Event()

    async def later(visit: Visit) -> None:
        await goes_on.wait()
        visit.result({}) if visit.rpc else visit.accepted()

    async with linked(later, limits=Limits(queue=5)) as (origin, link):
        for _ in range(100):
            link.multiplexer.receive(PING)
        goes_on.set()
        await origin.until(lambda: len(origin.told("")) >= 5)
        assert await call(link) == {}
        assert len(origin.told("")) <= 6


@pytest.mark.req("R-ISOLATE", "R-MEMORY")
async def test_answers_that_an_older_server_does_not_take_are_dropped_at_the_limit(monkeypatch):
    monkeypatch.setattr("mcp_junction.upstream.http.pool.MAX_CONNECTIONS", 1)
    goes_on, server = asyncio.Event(), Older()

    async def later(visit: Visit) -> None:
        if visit.method == "POST":
            await goes_on.wait()
        await server(visit)

    async with Origin(later) as origin, sse_link(origin, limits=Limits(queue=5)) as link:
        for _ in range(100):
            link.multiplexer.receive(PING)
        goes_on.set()
        await origin.until(lambda: len(origin.told("")) >= 5)
        flight = fly(link, rider=Rider())
        server.answer(await origin.visited("tools/call"))
        await landed(flight)
        assert len(origin.told("")) <= 6


def test_a_servers_own_limits_come_before_those_of_all():
    settings = Settings(max_calls_per_server=5, max_queue_per_server=0)
    assert limits_of(settings) == Limits(5, sys.maxsize, DEFAULT_LIMITS.bytes)
    assert limits_of(settings, calls=7, bytes=0) == Limits(7, sys.maxsize, sys.maxsize)
    assert limits_of(Settings()) == DEFAULT_LIMITS


@pytest.mark.parametrize("wrong", [5, {"calls": "5"}, {"calls": -1}, {"cars": 1}, {"calls": True}])
def test_limits_in_the_file(tmp_path, wrong):
    from mcp_junction.config.load import load
    from mcp_junction.errors import ConfigError

    def read(limits: object) -> Limits:
        entry = {"command": "x", "junction": {"limits": limits}}
        (tmp_path / "c.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
        return load(str(tmp_path / "c.json"), {}, {}).servers[0].limits

    assert read({"calls": 3}) == Limits(calls=3)
    with pytest.raises(ConfigError, match=r"junction\.limits: must be an object of whole numbers"):
        read(wrong)
