"""What calls have to bear from a server that is not theirs. The 99th percentile is meant."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from statistics import quantiles

import procs
from budgets import AtMost, Figure, Ratio
from client import HttpSession, McpError
from measure import TEXT, side_by_side
from registry import case
from targets import HttpTarget, Lab, server

CALLERS = 4
HANGING = 40
RATE = 10_000
ODD = "4"  # the number of tools of the one that is stopped: its process is found by that

Change = Callable[[], Awaitable[None]]


async def called(session: HttpSession, name: str, **arguments: object) -> str:
    result = await session.request("tools/call", {"name": name, "arguments": arguments})
    if result.get("isError"):
        raise McpError(f"{name}: {result}")
    return result["content"][0]["text"]


async def taken(target: HttpTarget, servers: list[str], calls: int) -> list[float]:
    """Milliseconds of echo calls, a few at a time, to each of these servers in turn."""
    found: list[float] = []

    def caller(session: HttpSession) -> Callable[[], Awaitable[None]]:
        async def call() -> None:
            name = f"{servers[len(found) % len(servers)]}__echo"
            started = time.perf_counter()
            if TEXT not in await called(session, name, text=TEXT):
                raise McpError(f"a wrong answer of {name}")
            found.append((time.perf_counter() - started) * 1000)

        return call

    await side_by_side([caller(session) for session in target.clients[:CALLERS]], calls)
    return found


async def disturbed(
    lab: Lab, target: HttpTarget, servers: list[str], begin: Change, end: Change, what: str
) -> list[Figure]:
    """Calls to `servers` while something goes on and while it does not, in turn and pooled."""
    calm: list[float] = []
    busy: list[float] = []
    calls = lab.calls(400)
    await taken(target, servers, calls)
    for _ in range(lab.rounds):
        calm += await taken(target, servers, calls)
        await begin()
        busy += await taken(target, servers, calls)
        await end()
    (calm50, calm99), (busy50, busy99) = (
        (cuts[49], cuts[98]) for cuts in (quantiles(each, n=100) for each in (calm, busy))
    )
    note = f"{len(busy)} calls, {CALLERS} callers; against the same without it"
    return [
        Figure(f"p50, {what}", busy50, "ms", calm50),
        Figure(f"p99, {what}", busy99, "ms", calm99, note),
    ]


@case(
    "stopped-1-of-20",
    budget={"p99, one of 20 stopped": Ratio(1.2)},
    req=("F-05",),
    front="http",
)
async def stopped(lab: Lab) -> list[Figure]:
    """Calls to 19 servers while the twentieth stands still with 40 calls on it."""
    servers = {f"s{n:02d}": server("upstream.py", "--stdio") for n in range(19)}
    target = lab.serve("ours", {**servers, "odd": server("upstream.py", "--stdio", "--tools", ODD)})
    await target.open(CALLERS + HANGING)
    pid = odd_one(target)
    hanging: list[asyncio.Task[str]] = []

    async def begin() -> None:
        os.kill(pid, signal.SIGSTOP)
        for session in target.clients[CALLERS:]:
            hanging.append(asyncio.ensure_future(called(session, "odd__echo", text=TEXT)))

    async def end() -> None:
        if any(call.done() for call in hanging):
            raise McpError("a server that is stopped has answered")
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*hanging)
        hanging.clear()

    try:
        return await disturbed(lab, target, list(servers), begin, end, "one of 20 stopped")
    finally:
        os.kill(pid, signal.SIGCONT)


@case(
    "flood-10k",
    budget={
        "p99, 10,000 notifications/s": Ratio(2),
        "memory, more than before": AtMost(100),
    },
    req=("F-15",),
    front="http",
)
async def flooded(lab: Lab) -> list[Figure]:
    """Calls to one server while another writes 10,000 log messages a second that nobody reads."""
    flooding = server("flooding_upstream.py")
    target = lab.serve("ours", {"up": server("upstream.py", "--stdio"), "flood": flooding})
    await target.open(CALLERS + 1)
    before = procs.rss_mib([target.pid])

    async def at(rate: int) -> None:
        await called(target.clients[-1], "flood__flood", rate=rate)

    figures = await disturbed(
        lab, target, ["up"], lambda: at(RATE), lambda: at(0), "10,000 notifications/s"
    )
    grown = procs.rss_mib([target.pid]) - before
    return [*figures, Figure("memory, more than before", grown, "MiB")]


def odd_one(target: HttpTarget) -> int:
    """The process of the server that is called `odd`."""
    for pid in procs.split_tree(target.pid)[1]:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            if words.read().split(b"\0")[-2:-1] == [ODD.encode()]:
                return pid
    raise McpError("the odd server is not there")
