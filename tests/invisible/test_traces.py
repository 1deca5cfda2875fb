"""Traces of hidden tools that random worlds rarely have: each in a world made for it."""

import asyncio
from collections.abc import Sequence

from tests.invisible.twins import Question, Twins
from tests.invisible.worlds import TOOLS, Item, PlannedGrant, World
from tests.plugin_rest import BOUND, Served

LIST = "/api/v1/aggregator/tools"
CALL = "/api/v1/tools/call"


def make_world(shown: Sequence[str], hidden: Sequence[str], **settings: str) -> World:
    """A world of servers with one tool each, as ``server.tool``, the hidden ones first."""
    items = []
    for full in (*hidden, *shown):
        server, _, name = full.partition(".")
        told = {"name": name, "description": "does it", "inputSchema": {"type": "object"}}
        items.append(Item(TOOLS, server, name, told))
    servers = tuple(dict.fromkeys(item.server for item in items))
    grants = [PlannedGrant(*full.split("."), (TOOLS,)) for full in shown]
    return World(servers, tuple(items), tuple(grants), dict(settings), {}, ("cnry",))


async def wait_for_flags(served: Served, count: int) -> None:
    async with asyncio.timeout(BOUND):
        while (await served.client().get(f"{LIST}/changes")).json()["total"] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_which_of_two_tools_that_are_alike_is_flagged_is_not_told(tmp_path, vault):
    """The first server that has a name is imitated by the others; here that one is hidden."""
    world = make_world(["a.send", "b.send"], ["h.send"])
    async with Twins(tmp_path, vault, world) as twins:
        for gateway, flagged in zip(twins.gateways, (2, 1), strict=True):
            await wait_for_flags(gateway.served, flagged)
        for path in (LIST, f"{LIST}?server=b"):
            assert await twins.compare(Question(path, "GET")) is None
        assert await twins.compare(Question("/api/v1/search", body={"query": "send"})) is None


async def test_asking_for_hidden_tools_uses_up_what_asking_for_nothing_does(tmp_path, vault):
    world = make_world(["a.send", "a.list"], ["h.send", "a.drop"], limit_agent="6/3600")
    async with Twins(tmp_path, vault, world) as twins:
        statuses = []
        for name in ("h.send", "a.drop", "a.send", "drop", "a.list") * 6:
            question = Question(CALL, body={"name": name, "arguments": {}})
            assert await twins.compare(question) is None
            statuses.append(twins.hiding.sent[-1][0][:3])
        assert statuses.count("200") == 6
        assert statuses.count("404") == 18
        assert statuses.count("429") == 6
