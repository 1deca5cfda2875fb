"""A large catalog: 10,000 tools."""

from budgets import AtMost, Figure, Ratio
from cases.startup import time_behind
from measure import cpu_per_call, expect_tools, list_tools
from registry import case
from targets import Lab, Target, fast_servers

COUNT, TOOLS = 20, 500


@case(
    "list-10k",
    budget={"CPU per warm list": Ratio(1.5), "spawn to first full list": AtMost(3)},
)
async def list_10k(lab: Lab) -> list[Figure]:
    """tools/list of 20 servers with 500 tools each."""
    servers = fast_servers(COUNT, TOOLS)
    first: dict[str, list[float]] = {"floor": [], "ours": []}
    starts = lab.calls(5)
    for _ in range(starts):
        for name in ("floor", "ours"):
            seconds, target = await time_behind(lab, name, servers, TOOLS)
            first[name].append(seconds)
            await target.end()

    calls = lab.calls(8)

    async def load(target: Target) -> int:
        for _ in range(calls):
            expect_tools(target, await list_tools(target.session), COUNT * TOOLS)
        return calls

    pair = await lab.open_pair(servers)
    best = f"wall time, best of {starts}"
    return [
        await cpu_per_call(lab, pair, load, "CPU per warm list", "ms"),
        Figure("spawn to first full list", min(first["ours"]), "s", min(first["floor"]), best),
    ]
