"""A large catalog: 10,000 tools."""

import time
from collections.abc import Awaitable, Callable

from budgets import AtMost, Figure, Ratio
from cases.startup import time_behind
from measure import cpu_per_call, expect_tools, list_tools
from registry import case
from targets import HttpTarget, Lab, Servers, Target, fast_servers

COUNT, TOOLS = 20, 500
BUDGET = {"CPU per warm list": Ratio(1.5), "spawn to first full list": AtMost(3)}

FirstList = Callable[[Lab, str, Servers, int], Awaitable[tuple[float, Target]]]
OpenPair = Callable[[Servers], Awaitable[tuple[Target, Target]]]


async def time_over_http(
    lab: Lab, name: str, servers: Servers, tools: int
) -> tuple[float, HttpTarget]:
    """Seconds from the spawn of a program to the list of all its servers' tools, over HTTP."""
    target = lab.serve(name, servers)
    await target.retry(target.session.open)
    names = await list_tools(target.session)
    taken = time.perf_counter() - target.spawned
    expect_tools(target, names, len(servers) * tools)
    return taken, target


async def first_and_warm(lab: Lab, first_list: FirstList, open_pair: OpenPair) -> list[Figure]:
    servers = fast_servers(COUNT, TOOLS)
    first: dict[str, list[float]] = {"floor": [], "ours": []}
    starts = lab.calls(5)
    for _ in range(starts):
        for name in ("floor", "ours"):
            seconds, target = await first_list(lab, name, servers, TOOLS)
            first[name].append(seconds)
            await target.end()

    calls = lab.calls(8)

    async def load(target: Target) -> int:
        for _ in range(calls):
            expect_tools(target, await list_tools(target.session), COUNT * TOOLS)
        return calls

    pair = await open_pair(servers)
    best = f"wall time, best of {starts}"
    return [
        await cpu_per_call(lab, pair, load, "CPU per warm list", "ms"),
        Figure("spawn to first full list", min(first["ours"]), "s", min(first["floor"]), best),
    ]


@case("list-10k", budget=BUDGET)
async def list_10k(lab: Lab) -> list[Figure]:
    """tools/list of 20 servers with 500 tools each."""
    return await first_and_warm(lab, time_behind, lab.open_pair)


@case("http-list-10k", budget=BUDGET, front="http")
async def http_list_10k(lab: Lab) -> list[Figure]:
    """tools/list of 20 servers with 500 tools each, HTTP front."""
    return await first_and_warm(lab, time_over_http, lab.open_http_pair)
