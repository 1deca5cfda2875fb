"""What one principal can hold has a limit of its own, and nobody else notices."""

import asyncio
import json

import pytest
from tests.http.fronts import HttpFront
from tests.http.wire import BOUND, Response, Wire
from tests.keyring import Keys
from tests.plugin_http import Gateway, stdio_entry

from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.versions import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LATEST_STATELESS,
    RATE_LIMITED,
    VERSION_KEY,
)

META = {
    VERSION_KEY: LATEST_STATELESS,
    CAPABILITIES_KEY: {},
    CLIENT_INFO_KEY: {"name": "t", "version": "0"},
}
GREEDY = Principal("greedy", Role.AGENT)


class Two:
    """A gateway with two agents: one wants too much, the other wants to be left alone."""

    def __init__(self, gateway: Gateway, keys: Keys) -> None:
        self.gateway = gateway
        _, self.greedy = keys.create(Role.AGENT, "greedy")
        _, self.modest = keys.create(Role.AGENT, "modest")

    async def front(self, key: str, **how) -> HttpFront:
        return await self.gateway.front(key=key, **how)

    def holds(self, calls: int = 0, streams: int = 0) -> bool:
        usage = self.gateway.junction.quotas.of(GREEDY)
        return (usage.calls, len(usage.streams)) == (calls, streams)

    async def until_holds(self, **what: int) -> None:
        async with asyncio.timeout(BOUND):
            while not self.holds(**what):  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.005)

    async def stateless(self, key: str, method: str, params: dict, **headers: str) -> Wire:
        """Send a request of the stateless era; the connection it was sent on."""
        wire = await self.gateway.wire()
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        given = {"authorization": f"Bearer {key}", "mcp-protocol-version": LATEST_STATELESS}
        wire.request(
            "POST", "/mcp", json.dumps(body).encode(), **given, mcp_method=method, **headers
        )
        return wire

    async def call(self, key: str, tool: str) -> Wire:
        params = {"name": tool, "arguments": {}}
        return await self.stateless(key, "tools/call", params, mcp_name=tool)


@pytest.fixture
async def two(serving, tmp_path):
    async def make(**settings) -> Two:
        gateway = await serving({"p": stdio_entry()}, **settings)
        await gateway.settled()
        made = Two(gateway, Keys(tmp_path / "data"))
        await gateway.service._keys.refresh()
        return made

    return make


def is_over_quota(error: dict) -> bool:
    assert error["code"] == RATE_LIMITED, error
    assert "max_calls_per_principal" in error["message"]
    return error["data"]["delivery"] == "not_sent"


@pytest.mark.req("R-QUOTA")
async def test_calls_over_the_limit_are_refused_in_both_eras_and_only_to_their_principal(two):
    pair = await two(max_calls_per_principal=2)
    greedy, modest = await pair.front(pair.greedy), await pair.front(pair.modest)
    held = await greedy.under_way("p.hold")
    wire = await pair.call(pair.greedy, "p.hold")
    await pair.until_holds(calls=2, streams=2)
    assert is_over_quota(await greedy.refused("p.echo"))
    answer = await (await pair.call(pair.greedy, "p.echo")).response()
    assert is_over_quota(answer.json["error"])
    assert await modest.read("p.echo")
    await modest.told("p.release")
    assert "result" in await greedy.answer(held)
    assert "result" in (await wire.response()).json
    await pair.until_holds(streams=1)
    assert await greedy.read("p.echo")


@pytest.mark.req("R-QUOTA")
@pytest.mark.parametrize(
    "way", ["answer", "refusal", "unknown", "cancel", "leave", "session", "lost", "refused"]
)
async def test_a_call_is_no_longer_counted_however_it_ends(two, way):
    pair = await two(max_calls_per_principal=1)
    greedy, modest = await pair.front(pair.greedy), await pair.front(pair.modest)
    if way == "answer":
        assert await greedy.read("p.echo")
    elif way == "refusal":
        assert await greedy.refused("p.fail")
    elif way == "unknown":
        assert await greedy.refused("p.nothing")
    elif way == "leave":
        wire = await pair.call(pair.greedy, "p.hold")
        await pair.until_holds(calls=1, streams=1)
        wire.reset()
    else:
        frame_id = await greedy.under_way("p.hold")
        if way == "cancel":
            greedy.notify("notifications/cancelled", {"requestId": frame_id})
        elif way == "session":
            await greedy.delete()
        elif way == "lost":
            pair.gateway.junction.servers["p"].give_up("it was cut")
        else:
            assert is_over_quota(await greedy.refused("p.echo"))
            await modest.told("p.release")
    await pair.until_holds(streams=0 if way == "session" else 1)


@pytest.mark.req("R-QUOTA")
async def test_who_opens_too_many_streams_loses_his_own_oldest(two):
    pair = await two(max_streams_per_principal=2)
    modest = await pair.front(pair.modest)
    await modest.names()
    fronts = [await pair.front(pair.greedy, listens=False) for _ in range(2)]
    first, second = [await listen(pair, front) for front in fronts]
    wanted = {"notifications": {"toolsListChanged": True}}
    third = await pair.stateless(pair.greedy, "subscriptions/listen", wanted)
    assert (await third.response()).is_stream
    assert await ended(first)
    assert pair.holds(streams=2)
    await modest.told("p.grow", kind="tools", name="more")
    await modest.heard("notifications/tools/list_changed")
    assert (await third.event()).message["method"] == "notifications/subscriptions/acknowledged"
    assert (await third.event()).message["method"] == "notifications/tools/list_changed"
    again = await listen(pair, fronts[0])
    assert await ended(second), "the one whose turn it is, not the newest"
    third.reset()
    again.reset()
    await pair.until_holds()


async def listen(pair: Two, front: HttpFront) -> Wire:
    wire = await pair.gateway.wire()
    wire.request("GET", "/mcp", accept="text/event-stream", **front.headers)
    response: Response = await wire.response()
    assert response.status == 200
    return wire


async def ended(wire: Wire) -> bool:
    """Wait until a stream has ended."""
    async with asyncio.timeout(BOUND):
        async for _ in wire.events():
            pass
    return True
