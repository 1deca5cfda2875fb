"""Small calls: what one costs, and how much later its answer comes."""

from budgets import AtMost, Figure, Ratio
from measure import added_latency, cpu_per_call, echo, in_flight
from registry import case
from targets import Lab, Target, server

UP = {"up": server("upstream.py", "--stdio")}


@case("stdio-call", budget={"CPU per call, 32 in flight": Ratio(1.9, stretch=1.6)})
async def stdio_call(lab: Lab) -> list[Figure]:
    """300-byte echo calls, stdio front, stdio upstream."""
    pair = await lab.open_pair(UP)
    calls = lab.calls(5_000)

    async def load(target: Target) -> int:
        await in_flight(lambda: echo(target), 32, calls)
        return calls

    return [await cpu_per_call(lab, pair, load, "CPU per call, 32 in flight", "µs")]


@case(
    "stdio-latency",
    budget={"added p50": Ratio(3, stretch=2), "added p50, absolute": AtMost(50)},
    req=("SC-003",),
)
async def stdio_latency(lab: Lab) -> list[Figure]:
    """One caller: how much later than straight from the server the answer comes."""
    floor, ours = await lab.open_pair(UP)
    direct = await (await lab.start_direct(UP["up"])).open()
    return await added_latency(lab, (direct, floor, ours))
