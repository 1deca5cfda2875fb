"""Small calls: what one costs, and how much later its answer comes."""

from statistics import quantiles

from budgets import AtMost, Figure, Ratio
from measure import alternating, cpu_per_call, echo, in_flight, latencies
from registry import case
from targets import Lab, Target, server

UP = {"up": server("upstream.py", "--stdio")}


@case("stdio-call", budget={"CPU per call, 32 in flight": Ratio(3, stretch=2)})
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
    calls = lab.calls(400)
    seconds: dict[str, list[float]] = {"direct": [], "floor": [], "ours": []}
    # Which core wakes which process changes from round to round and moves a p50 by half: the
    # rounds are short and many, and pooled.
    async for target in alternating(lab, (direct, floor, ours)):
        seconds[target.name] += await latencies(target, calls)
    cuts = {name: quantiles(values, n=100) for name, values in seconds.items()}
    p50 = {name: cut[49] * 1000 for name, cut in cuts.items()}
    p99 = {name: cut[98] * 1000 for name, cut in cuts.items()}
    added = {name: p50[name] - p50["direct"] for name in ("floor", "ours")}
    note = f"{lab.rounds} × {calls}, pooled"
    return [
        Figure("added p50", added["ours"], "ms", added["floor"], note),
        Figure("added p50, absolute", added["ours"], "ms"),
        Figure("whole p50", p50["ours"], "ms", p50["floor"], f"direct: {p50['direct']:.3f} ms"),
        Figure("whole p99", p99["ours"], "ms", p99["floor"], f"direct: {p99['direct']:.3f} ms"),
    ]
