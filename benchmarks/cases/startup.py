"""Starting up. The one topic where seconds are meant, so the best of the rounds counts."""

import asyncio
import time

from budgets import AtMost, Figure, Ratio
from measure import expect_tools, open_and_list, timed_list
from registry import case
from targets import Lab, Servers, Target, fast_servers

COUNT, TOOLS = 12, 3


async def time_alone(lab: Lab, servers: Servers) -> float:
    """Seconds to start the servers side by side, with nothing in front, and list their tools."""

    async def one(entry: dict[str, object]) -> Target:
        target = await lab.start_direct(entry)
        expect_tools(target, await open_and_list(target.session), TOOLS)
        return target

    started = time.perf_counter()
    found = await asyncio.gather(*map(one, servers.values()))
    taken = time.perf_counter() - started
    for target in found:
        await target.end()
    return taken


async def time_behind(lab: Lab, name: str, servers: Servers, tools: int) -> tuple[float, Target]:
    """Seconds from the spawn of a program to the list of all its servers' tools."""
    started = time.perf_counter()
    target = await lab.start(name, servers)
    names = await open_and_list(target.session)
    taken = time.perf_counter() - started
    expect_tools(target, names, len(servers) * tools)
    return taken, target


@case(
    "stdio-start-12",
    budget={
        "spawn to all tools listed, against the 12 alone": Ratio(1.3),
        "12 servers up": AtMost(5),
    },
    req=("SC-001",),
)
async def start_12(lab: Lab) -> list[Figure]:
    """Twelve stdio servers, from spawn to all tools listed."""
    servers = fast_servers(COUNT, TOOLS)
    taken: dict[str, list[float]] = {"alone": [], "floor": [], "ours": []}
    rounds = lab.calls(10)
    for _ in range(rounds):
        taken["alone"].append(await time_alone(lab, servers))
        for name in ("floor", "ours"):
            seconds, target = await time_behind(lab, name, servers, TOOLS)
            await target.end()
            taken[name].append(seconds)
    best = {name: min(values) for name, values in taken.items()}
    note = f"wall time, best of {rounds}"
    what = "spawn to all tools listed, against the 12 alone"
    return [
        Figure(what, best["ours"], "s", best["alone"], note),
        Figure("the same, against the floor", best["ours"], "s", best["floor"], note),
        Figure("12 servers up", best["ours"], "s"),
    ]


@case(
    "stdio-list-12",
    budget={"second list, 12 × 3 tools": AtMost(1000), "second list, 12 × 100 tools": AtMost(1000)},
    req=("SC-002",),
)
async def list_12(lab: Lab) -> list[Figure]:
    """`tools/list` once all twelve servers are up."""
    figures = []
    for tools in (TOOLS, 100):
        _, target = await time_behind(lab, "ours", fast_servers(COUNT, tools), tools)
        slowest = max([await timed_list(target, COUNT * tools) for _ in range(5)])
        await target.end()
        what = f"second list, {COUNT} × {tools} tools"
        figures.append(Figure(what, slowest * 1000, "ms", note="wall time, slowest of 5"))
    return figures
