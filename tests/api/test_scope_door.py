"""The door for a policy: what it hides from one agent is as if it had never been, everywhere.

Two gateways stand beside each other: in one the policy hides a tool from the agent, in the other no
server has that tool. Whatever the agent asks, both must answer the same.
"""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.api.mcp_client import client_of
from tests.api.scope_door import Gateways, Hiding
from tests.plugin_registry import ADMIN
from tests.plugin_rest import CALL, Served
from tests.registry.toolbox import Toolbox, tool

from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol.names import STRICT, Pair, digest

HIDDEN = Pair("d", "y__who")
"""Its plain name in strict spelling is that of the tool ``who`` of ``d__y``, too."""
TOOLS = "/api/v1/aggregator/tools"
CHANGED = "notifications/tools/list_changed"
PENGUIN = "feeds a penguin at the zoo"


def hide(**how: Any) -> Hiding:
    """A policy that hides the tool from agents."""
    return Hiding(frozenset({("tools", HIDDEN)}), **how)


def offered(*, with_hidden: bool) -> dict[str, list[dict]]:
    """The tools of three servers, in the order of their registration."""
    hidden = [tool(HIDDEN.name, f"{PENGUIN}, and more")] if with_hidden else []
    return {
        "d": [*hidden, tool("echo", "says what it hears")],
        "d__y": [tool("who", PENGUIN)],
        "zoo": [tool("feed", "feeds animals")],
    }


@pytest.fixture
async def start(tmp_path, vault):
    def make(*, with_hidden: bool) -> dict[str, Toolbox]:
        return {key: Toolbox(tools) for key, tools in offered(with_hidden=with_hidden).items()}

    async with AsyncExitStack() as stack:
        yield Gateways(stack, tmp_path, vault, make)


def hashed() -> str:
    return STRICT.hashed(STRICT.spell(HIDDEN), HIDDEN)


# Whatever may mean the hidden tool, is like it, or is nothing at all.
NAMES = [
    *("d:y__who", "d.y__who", "d__y__who", "y__who", hashed(), "d__y__whom", "d__y"),
    *("who", "d__y.who", "penguins"),
]


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_lists_and_calls_of_clients_are_as_if_it_were_not_there(start, era):
    two = await start.both(hide())

    async def ask(served: Served) -> str:
        client = await client_of(era).open(served, "agent")
        found = [await client.send("tools/list")]
        for name in NAMES:
            found.append(await client.send("tools/call", {"name": name, "arguments": {}}))
        return json.dumps(found)

    hiding, without = await two.ask(ask)
    assert hiding == without
    assert digest(HIDDEN) not in hiding.replace(hashed(), "")
    names = [one["name"] for one in json.loads(hiding)[0]["result"]["tools"]]
    assert names == ["d__echo", "d__y__who", "zoo__feed"], "a hidden collision makes no hash"
    assert two.boxes[0]["d"].calls == two.boxes[1]["d"].calls, "and nothing was sent to it"
    seen = await (await client_of(era).open(two.hiding, "admin")).send("tools/list")
    assert "d__y__who" in [one["name"] for one in seen["result"]["tools"]]
    assert len(seen["result"]["tools"]) == 4, "others see it"


async def test_what_junctions_own_tools_say_is_as_if_it_were_not_there(start):
    two = await start.both(hide(), exposure="search")
    await two.classify()

    async def ask(served: Served) -> str:
        client = await client_of("handshake").open(served, "agent")
        found = [await client.send("tools/list")]
        for query in ("feeds a penguin", "penguin", "says", "y who", "zoo"):
            given = {"name": "find_tools", "arguments": {"query": query}}
            found.append(await client.send("tools/call", given))
        given = {"name": "describe_tools", "arguments": {"names": NAMES}}
        found.append(await client.send("tools/call", given))
        for name in NAMES:
            given = {"name": "call_tool", "arguments": {"name": name}}
            found.append(await client.send("tools/call", given))
        return json.dumps(found)

    hiding, without = await two.ask(ask)
    assert hiding == without
    assert "Search the 3 tools" in hiding
    assert "They are for: " in hiding, "what the tools are for, once that is known"


async def test_rest_answers_as_if_it_were_not_there(start):
    two = await start.both(hide())

    async def ask(served: Served) -> str:
        client = served.client("agent")
        found = []
        for body in (
            {"query": "feeds a penguin"},
            {"query": "penguin zoo", "limit": 1},
            {"query": "says", "server_filter": ["d"]},
        ):
            found.append((await client.post("/api/v1/search", json=body)).text)
        for query in (
            "",
            "?limit=1",
            "?limit=2",
            "?server=d",
            "?include_schemas=true&include_unavailable=true",
        ):
            found.append((await client.get(TOOLS + query)).text)
        for name in NAMES:
            found.append((await client.post(CALL, json={"name": name, "arguments": {}})).text)
            body = {"name": name, "server_id": "d", "arguments": {}}
            found.append((await client.post(CALL, json=body)).text)
        return "\n".join(re.sub(r'"cursor":"[^"]*"', "", one) for one in found)

    hiding, without = await two.ask(ask)
    assert hiding.splitlines() == without.splitlines()


async def test_what_is_hidden_while_it_is_in_use_is_unknown_at_once(start):
    policy = hide(is_hiding=False)
    served, _ = await start.begin("one", with_hidden=True, policy=policy)
    for era in ("handshake", "stateless"):
        policy.is_hiding = False
        client = await client_of(era).open(served, "agent")
        given = {"name": "d__y__who", "arguments": {}}
        names = [one["name"] for one in (await client.send("tools/list"))["result"]["tools"]]
        assert names[0] == "d__y__who"
        assert "result" in await client.send("tools/call", given)
        policy.is_hiding = True
        told = (await client.send("tools/call", given))["error"]["message"]
        assert told.startswith("unknown tool: d__y__who"), (
            "its name is not another's for who knew it"
        )
        names = [one["name"] for one in (await client.send("tools/list"))["result"]["tools"]]
        assert names == ["d__echo", names[1], "zoo__feed"]
        assert names[1].startswith("d__y__who_")


async def test_a_change_of_what_is_hidden_is_told_to_others_only(start):
    served, boxes = await start.begin("one", with_hidden=True, policy=hide())
    heard: dict[Role, list[bytes]] = {Role.AGENT: [], Role.ADMIN: []}
    junction = served.junction
    for role, frames in heard.items():
        session = junction.open_session(frames.append, None, Principal("x", role))
        session.listed = {CHANGED: junction.snapshot.generation}

    async def told(change: Any) -> list[int]:
        change(boxes["d"].tools)
        await served.registry.refresh("d", ADMIN)
        async with asyncio.timeout(30):  # all sessions are told in one step, the admin's each time
            while not any(CHANGED.encode() in one for one in heard[Role.ADMIN]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        counts = [sum(CHANGED.encode() in one for one in frames) for frames in heard.values()]
        for frames in heard.values():
            frames.clear()
        return counts

    assert await told(lambda tools: tools[0].update(description="something else")) == [0, 1]
    assert await told(lambda tools: tools[1].update(description="something else")) == [1, 1]
