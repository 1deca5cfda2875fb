"""What is left of large results: peak memory with the collector of cyclic garbage switched off."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from statistics import median

from budgets import AtMost, Figure
from cases.platform import CALL, Rest
from client import HttpSession, McpError, StdioSession
from measure import alternating, side_by_side
from procs import rss_mib
from registry import case
from targets import (
    CONFIG,
    DATA,
    HERE,
    OUR_PROGRAM,
    HttpTarget,
    Lab,
    Servers,
    filled,
    server,
    store_options,
)

MIB = 1 << 20
CALLS = 3_000
WIDTH = 4
RUNS = 5
SERVING, PIPED = "peak growth, HTTP and REST fronts", "peak growth, stdio front"
LOOK_EVERY = 0.005

Fetch = Callable[[str], Awaitable[None]]
"""Gets one large result from a server."""


def command(lab: Lab, front: list[str]) -> list[str]:
    """Our program with the collector off; another program is taken as it is."""
    if front[0] != OUR_PROGRAM:
        return front
    return [sys.executable, str(HERE / "uncollected.py"), *front[1:]]


def check(text: str, who: str) -> None:
    if len(text) != MIB:
        raise McpError(f"{who}: the result did not come through whole")


def over_mcp(session: HttpSession | StdioSession) -> Fetch:
    async def fetch(name: str) -> None:
        params = {"name": f"{name}__blob", "arguments": {"size": MIB}}
        result = await session.request("tools/call", params)
        check(result["content"][0]["text"], name)

    return fetch


def over_rest(target: HttpTarget) -> Fetch:
    rest = Rest(target)

    async def fetch(name: str) -> None:
        body = {"name": "blob", "server_id": name, "arguments": {"size": MIB}}
        check((await rest.ask("POST", CALL, body))["content"][0]["text"], name)

    return fetch


async def peak_while(pid: int, work: Awaitable[None]) -> float:
    """The most MiB that a process had while something was done."""
    peak = rss_mib([pid])

    async def look() -> None:
        nonlocal peak
        while True:
            peak = max(peak, rss_mib([pid]))
            await asyncio.sleep(LOOK_EVERY)

    looking = asyncio.ensure_future(look())
    try:
        await work
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
    return max(peak, rss_mib([pid]))


async def growth(pid: int, fronts: list[list[Fetch]], servers: Servers, calls: int) -> float:
    """By how many MiB a process grows at most while every front gets results from every server.

    Each front is a list of clients: as many calls as there are of them are under way at a time.
    """
    base = rss_mib([pid])

    async def all_pairs() -> None:
        for clients in fronts:
            for name in servers:
                await side_by_side([partial(fetch, name) for fetch in clients], calls)

    return await peak_while(pid, all_pairs()) - base


async def of_service(lab: Lab, name: str, servers: Servers, calls: int) -> float:
    """The growth of a program that serves HTTP, in one life."""
    if name == "ours":
        values = {CONFIG: lab.written(servers), DATA: str(lab.file("data"))}
        key = (
            lab.new_key(store_options(values[DATA], {}), "admin") if DATA in lab.our_http else None
        )
        target = lab.listen(name, filled(command(lab, lab.our_http), values), servers, key)
    else:
        target = lab.serve(name, servers)
    await target.open(WIDTH)
    await target.session.request("tools/list", {})
    fronts = [[over_mcp(client) for client in target.clients]]
    if target.headers:
        fronts.append([over_rest(target) for _ in range(WIDTH)])
    grown = await growth(target.pid, fronts, servers, calls)
    await target.end()
    return grown


async def of_pipe(lab: Lab, name: str, servers: Servers, calls: int) -> float:
    """The growth of a program that is spoken to on its stdio, in one life."""
    if name == "ours":
        argv = filled(command(lab, lab.our_command), {CONFIG: lab.written(servers)})
        target = await lab.spawn(name, argv, servers)
    else:
        target = await lab.start(name, servers)
    await target.open()
    await target.session.request("tools/list", {})
    clients = [over_mcp(target.session)] * WIDTH
    grown = await growth(target.pid, [clients], servers, calls)
    await target.end()
    return grown


@case("memory", budget={SERVING: AtMost(96), PIPED: AtMost(96)}, req=("R-MEMORY",), front="http")
async def memory(lab: Lab) -> list[Figure]:
    """3,000 results of 1 MiB through every pair of front and upstream, with the collector off."""
    json, events = await lab.serve_direct().open(), lab.serve_script("events_upstream.py")
    await events.retry(events.is_listing)
    plain: Servers = {
        "stdio": server("upstream.py", "--stdio"),
        "json": {"type": "http", "url": f"http://127.0.0.1:{json.port}/mcp"},
    }
    every = {
        **plain,
        "events": {"type": "http", "url": f"http://127.0.0.1:{events.port}/mcp"},
        "older": {"type": "sse", "url": f"http://127.0.0.1:{events.port}/sse"},
    }
    calls = lab.calls(CALLS) // (3 * len(every))
    figures = []
    for what, measured in ((SERVING, of_service), (PIPED, of_pipe)):
        grown: dict[str, list[float]] = {"floor": [], "ours": []}
        async for name in alternating(RUNS, ["floor", "ours"]):
            servers = every if name == "ours" else plain  # the floor knows no other transports
            grown[name].append(await measured(lab, name, servers, calls))
        runs = " ".join(f"{mib:.0f}" for mib in grown["ours"])
        note = f"median of {RUNS} runs ({runs}), {calls} calls a pair, {WIDTH} at a time"
        figures.append(Figure(what, median(grown["ours"]), "MiB", median(grown["floor"]), note))
    return figures
