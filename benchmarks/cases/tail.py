"""The slowest of many calls: the 99th percentile beside the floor's, as `serve` runs, audit on."""

import time
from statistics import median, quantiles

from budgets import Figure, Ratio
from client import HttpSession
from measure import alternating, by_clients, echo
from registry import case
from targets import HttpTarget, Lab, server

RUNS = 5
LIMIT = Ratio(2.5)
STDIO, HTTP = "stdio", "HTTP"


def what(clients: int, upstream: str) -> str:
    return f"p99, {clients} clients, {upstream} upstream"


async def timed_calls(target: HttpTarget, calls: int) -> list[float]:
    """Milliseconds of each of so many echo calls by all clients of a target."""
    taken: list[float] = []

    async def call(target: HttpTarget, client: HttpSession) -> None:
        started = time.perf_counter()
        await echo(target, client)
        taken.append((time.perf_counter() - started) * 1000)

    await by_clients(target, call, calls)
    return taken


async def p99_of_pair(lab: Lab, pair: tuple[HttpTarget, HttpTarget], name: str) -> Figure:
    """The median of some runs' 99th percentiles, ours and the floor's in turn."""
    calls = lab.calls(20_000)
    for target in pair:
        await timed_calls(target, calls // 2)  # connections are made, caches fill
    found: dict[str, list[float]] = {"floor": [], "ours": []}
    halves: dict[str, list[float]] = {"floor": [], "ours": []}
    async for target in alternating(RUNS, pair):
        cuts = quantiles(await timed_calls(target, calls), n=100)
        found[target.name].append(cuts[98])
        halves[target.name].append(cuts[49])
    for target in pair:
        await target.end()
    p50 = {who: median(taken) for who, taken in halves.items()}
    turns = zip(found["ours"], found["floor"], strict=True)
    runs = " ".join(f"{ours:.1f}/{floor:.1f}" for ours, floor in turns)
    note = f"median of {RUNS} × {calls}: {runs}; p50 {p50['ours']:.2f}/{p50['floor']:.2f}"
    return Figure(name, median(found["ours"]), "ms", median(found["floor"]), note)


@case(
    "tail",
    budget={what(clients, upstream): LIMIT for clients in (32, 128) for upstream in (STDIO, HTTP)},
    front="http",
)
async def tail(lab: Lab) -> list[Figure]:
    """The 99th percentile of small calls by 32 and 128 clients, stdio and HTTP upstream."""
    upstream = await lab.serve_direct().open()
    servers = {
        STDIO: {"up": server("upstream.py", "--stdio")},
        HTTP: {"up": {"url": f"http://127.0.0.1:{upstream.port}/mcp"}},
    }
    return [
        await p99_of_pair(
            lab, await lab.open_http_pair(servers[kind], clients), what(clients, kind)
        )
        for clients in (32, 128)
        for kind in (STDIO, HTTP)
    ]
