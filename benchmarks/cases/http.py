"""Small calls over HTTP. Ours asks every client for a key."""

import time
from functools import partial
from statistics import median

from budgets import AtLeast, AtMost, Figure, Ratio
from client import HttpSession
from measure import (
    Loads,
    added_latency,
    alternating,
    by_clients,
    compared,
    cpu_of_loads,
    cpu_over_lives,
    echo,
)
from registry import case
from targets import HttpTarget, Lab, Servers, server

UP = {"up": server("upstream.py", "--stdio")}


async def small_calls(lab: Lab, servers: Servers, clients: int, what: str) -> list[Figure]:
    """What a call costs, over several lives of both programs."""
    calls = lab.calls(4_000)

    async def load(target: HttpTarget) -> int:
        await by_clients(target, echo, calls)
        return calls

    async def begin() -> Loads:
        pair = await lab.open_http_pair(servers, clients)
        return {target.name: (target, partial(load, target)) for target in pair}

    return [compared(await cpu_over_lives(lab, begin), "ours", "floor", what, "µs")]


@case("http-call-32", budget={"CPU per call, 32 clients": Ratio(2.3, stretch=2)}, front="http")
async def http_call_32(lab: Lab) -> list[Figure]:
    """300-byte echo calls of 32 clients with a key, HTTP front, stdio upstream."""
    return await small_calls(lab, UP, 32, "CPU per call, 32 clients")


@case("http-call-128", budget={"CPU per call, 128 clients": Ratio(2.5, stretch=2.2)}, front="http")
async def http_call_128(lab: Lab) -> list[Figure]:
    """The same of 128 clients."""
    return await small_calls(lab, UP, 128, "CPU per call, 128 clients")


@case("http-http-32", budget={"CPU per call, 32 clients": Ratio(6, stretch=4)}, front="http")
async def http_http_32(lab: Lab) -> list[Figure]:
    """300-byte echo calls of 32 clients with a key, HTTP front, HTTP upstream."""
    upstream = await lab.serve_direct().open()
    servers = {"up": {"url": f"http://127.0.0.1:{upstream.port}/mcp"}}
    return await small_calls(lab, servers, 32, "CPU per call, 32 clients")


@case(
    "http-credential",
    budget={"CPU per call, 32 clients": Ratio(1.05)},
    req=("NFR-SEC3",),
    front="http",
)
async def http_credential(lab: Lab) -> list[Figure]:
    """A server whose token is a credential of ours, held against one with a fixed header.

    Both are servers of one gateway, so that two processes are not compared with each other.
    """
    upstream = await lab.serve_direct().open()
    url = f"http://127.0.0.1:{upstream.port}/mcp"
    servers: Servers = {
        "header": {"url": url, "headers": {"Authorization": "Bearer a-token"}},
        "credential": {"url": url, "auth": {"type": "bearer", "token": "a-token"}},
    }
    target = await lab.serve("ours", servers).open(32)
    await target.session.request("tools/list", {})
    calls = lab.calls(4_000)

    async def load(name: str) -> int:
        async def call(_: HttpTarget, session: HttpSession) -> None:
            text = {"text": "x" * 200, "topic": "bench"}
            params = {"name": f"{name}__echo", "arguments": text}
            assert not (await session.request("tools/call", params)).get("isError")

        await by_clients(target, call, calls)
        return calls

    loads = {name: (target, partial(load, name)) for name in servers}
    taken = await cpu_of_loads(lab, loads)
    return [compared(taken, "credential", "header", "CPU per call, 32 clients", "µs")]


@case("http-rate", budget={"calls a second": AtLeast(100)}, req=("NFR-S4",), front="http")
async def http_rate(lab: Lab) -> list[Figure]:
    """How many 300-byte calls of 32 clients are routed and answered in a second."""
    pair = await lab.open_http_pair(UP, 32)
    calls = lab.calls(4_000)
    rates: dict[str, list[float]] = {target.name: [] for target in pair}
    async for target in alternating(5, pair):
        began = time.perf_counter()
        await by_clients(target, echo, calls)
        rates[target.name].append(calls / (time.perf_counter() - began))
    floor, ours = (median(rates[target.name]) for target in pair)
    note = f"slowest of five rounds: {min(rates['ours']):.0f}"
    return [Figure("calls a second", ours, "/s", floor, note)]


@case(
    "http-latency",
    budget={"added p50": Ratio(3, stretch=2), "added p50, absolute": AtMost(50)},
    req=("SC-003",),
    front="http",
)
async def http_latency(lab: Lab) -> list[Figure]:
    """One caller: how much later than straight from an HTTP server the answer comes."""
    floor, ours = await lab.open_http_pair(UP)
    direct = await lab.serve_direct().open()
    return await added_latency(lab, (direct, floor, ours))
