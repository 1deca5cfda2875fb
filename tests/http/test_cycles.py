"""A cycle of Junctions is refused, by whichever addresses they reach each other; a chain is not."""

import asyncio
import json

import msgspec
import pytest
from tests.http.wire import BOUND
from tests.plugin_http import Gateway, stdio_entry

from mcp_junction.config.servers import ServerDefinition
from mcp_junction.protocol.versions import Era
from mcp_junction.upstream.handshake import EVERYTHING_RELAYED
from mcp_junction.upstream.state import SERVING
from mcp_junction.upstream.upstream import Upstream


def lead(
    one: Gateway, name: str, to: Gateway, path: str = "/mcp", era: Era | None = None
) -> Upstream:
    """Have one gateway connect to another, under a name."""
    if era is not None:
        one.junction._hello = asyncio.get_running_loop().create_future()
        one.junction._hello.set_result(msgspec.structs.replace(EVERYTHING_RELAYED, prefers=era))
    url = f"http://127.0.0.1:{to.port}{path}"
    one.junction.servers.add(ServerDefinition(name, "http", url=url))
    return one.junction.servers[name]


async def until(is_so) -> None:
    async with asyncio.timeout(BOUND):
        while not is_so():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)


def is_refused(server: Upstream) -> bool:
    return server.error is not None and "circular reference" in server.error.message


def is_serving(server: Upstream) -> bool:
    return server.state in SERVING


@pytest.fixture
async def gateways(serving, tmp_path):
    async def make(count: int) -> list[Gateway]:
        made = [await serving({"own": stdio_entry()})]
        made += [await serving({}) for _ in range(count - 1)]
        for gateway in made:
            await gateway.settled()
        return made

    return make


ERAS = pytest.mark.parametrize("era", list(Era))


@pytest.mark.req("R-QUOTA")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/own"])
async def test_a_junction_that_is_led_to_itself_refuses_it(gateways, path):
    (one,) = await gateways(1)
    server = lead(one, "self", one, path)
    await until(lambda: is_refused(server))
    client = await one.front()
    assert all(name.startswith("own.") for name in await client.names())


@pytest.mark.req("R-QUOTA")
@ERAS
async def test_who_closes_a_cycle_of_several_refuses_it(gateways, era):
    one, two, three = await gateways(3)
    links = [lead(three, "two", two, era=era), lead(two, "one", one, era=era)]
    await until(lambda: all(map(is_serving, links)))
    client = await three.front()
    await until(lambda: three.junction.servers["two"].condition.reachable_junctions)
    closing = lead(one, "three", three, era=era)
    await until(lambda: is_refused(closing))
    assert all(map(is_serving, links)), "what leads to it goes on"
    answer = json.loads(await client.told("two.one.own.echo"))
    assert answer["name"] == "echo"
    names = await (await one.front()).names()
    assert all(name.startswith("own.") for name in names)


@pytest.mark.req("R-QUOTA")
@ERAS
async def test_a_cycle_that_nobody_could_know_of_when_it_was_closed_is_opened_again(gateways, era):
    """Each link is made before those behind it are: where they lead is learned from the lists."""
    one, two, three = await gateways(3)
    links = [lead(one, "two", two, era=era)]
    await until(lambda: is_serving(links[0]))
    links.append(lead(two, "three", three, era=era))
    await until(lambda: is_serving(links[1]))
    links.append(lead(three, "one", one, era=era))
    await until(lambda: sum(map(is_refused, links)) == 1 and sum(map(is_serving, links)) == 2)
    for gateway in (one, two, three):
        names = await (await gateway.front()).names()
        assert max(name.count(".") for name in names or ["."]) <= 3


async def test_a_chain_and_a_diamond_are_not_refused(gateways):
    end, left, right, top = await gateways(4)
    links = [lead(left, "end", end), lead(right, "end", end)]
    links += [lead(top, "left", left), lead(top, "right", right)]
    await until(lambda: all(map(is_serving, links)))
    client = await top.front()
    await until(lambda: {"left", "right"} <= set(top.junction.live_catalog.catalog.offerings))
    for way in ("left", "right"):
        assert json.loads(await client.told(f"{way}.end.own.echo"))["name"] == "echo"
    assert top.junction.servers["left"].condition.reachable_junctions == {
        left.junction.junction_id,
        end.junction.junction_id,
    }


async def test_endpoints_that_do_not_lead_back_are_no_cycle(gateways):
    (one,), (two,) = await gateways(1), await gateways(1)
    links = [lead(one, "two", two, "/mcp/own")]
    await until(lambda: is_serving(links[0]))
    links.append(lead(two, "one", one, "/mcp/own"))
    await until(lambda: all(map(is_serving, links)))
    for gateway, link in zip((one, two), links, strict=True):
        await gateway.junction.live_catalog.reread(link)
    assert all(map(is_serving, links))
    assert "two.echo" in await (await one.front()).names()
