"""Calls of 2026-07-28 beside those of the handshake era, and calls that wait for their clients."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import procs
from budgets import AtMost, Figure, Limit, Ratio
from cases.sessions import SPARE_FILES, for_all, settled_rss
from client import HttpSession, McpError, StatelessHttpSession, StatelessStdioSession
from measure import (
    Calls,
    Loads,
    Taken,
    compared,
    cpu_over_lives,
    echo,
    in_flight,
    middle,
    ratios,
    side_by_side,
)
from registry import case
from targets import HttpTarget, Lab, Servers, StdioTarget, Target, server

HANDSHAKE: Servers = {"up": server("upstream.py", "--stdio")}
STATELESS: Servers = {"up": server("upstream.py", "--stdio", "--stateless")}

# Each is held against the floor with the same bytes, and against a call of the handshake era, in
# CPU and in floors. The crossing is held against it in floors alone: its requests and results are
# longer than the old era's, which alone costs the floor 7 (HTTP) to 15 (stdio) in a hundred.
SAME = "new → new server"
CROSSED = "new → old server"
BACK = "old → new server"
OLD = "old"
FLOOR_NEW, FLOOR_CROSSED, FLOOR_OLD = "floor → new", "floor → old", "floor, old"
AGAINST_OLD = ", against old → old"
FOR_ITS_BYTES = ", both against their floors"
BUDGET: dict[str, Limit] = {
    SAME: Ratio(3, stretch=2),
    CROSSED: Ratio(3, stretch=2),
    SAME + AGAINST_OLD: Ratio(1.1, stretch=1),
    SAME + FOR_ITS_BYTES: Ratio(1.1, stretch=1),
    CROSSED + FOR_ITS_BYTES: Ratio(1.1, stretch=1),
}


def figures(taken: Taken) -> list[Figure]:
    return [
        compared(taken, SAME, FLOOR_NEW, SAME, "µs"),
        compared(taken, CROSSED, FLOOR_CROSSED, CROSSED, "µs"),
        *(middle(name + AGAINST_OLD, ratios(taken, name, OLD)) for name in (SAME, CROSSED, BACK)),
        for_its_bytes(taken, SAME, FLOOR_NEW),
        for_its_bytes(taken, CROSSED, FLOOR_CROSSED),
    ]


def for_its_bytes(taken: Taken, name: str, floor: str) -> Figure:
    """How many floors a call takes, against how many one of the handshake era takes.

    A request of 2026-07-28 is longer, and so it is for the floor.
    """
    floors, old = ratios(taken, name, floor), ratios(taken, OLD, FLOOR_OLD)
    pairs = zip(floors, old, strict=True)
    return middle(name + FOR_ITS_BYTES, [ours / other for ours, other in pairs])


@case("http-new-32", budget=BUDGET, front="http")
async def http_new_32(lab: Lab) -> list[Figure]:
    """300-byte echo calls of 32 clients of 2026-07-28, HTTP front, stdio upstream of either era."""

    async def begin() -> Loads:
        before_old = await served(lab, HANDSHAKE)
        before_new = await served(lab, STATELESS)
        return {
            OLD: by(lab, before_old["ours"], HttpSession),
            CROSSED: by(lab, before_old["ours"], StatelessHttpSession),
            SAME: by(lab, before_new["ours"], StatelessHttpSession),
            BACK: by(lab, before_new["ours"], HttpSession),
            FLOOR_CROSSED: by(lab, before_old["floor"], StatelessHttpSession),
            FLOOR_NEW: by(lab, before_new["floor"], StatelessHttpSession),
            FLOOR_OLD: by(lab, before_old["floor"], HttpSession),
        }

    return figures(await cpu_over_lives(lab, begin))


async def served(lab: Lab, servers: Servers) -> dict[str, HttpTarget]:
    """Floor and ours in front of these servers, ready."""
    pair = await lab.open_http_pair(servers)
    return {target.name: target for target in pair}


def by(
    lab: Lab, target: HttpTarget, kind: type[HttpSession], number: int = 32
) -> tuple[Target, Calls]:
    """A load of so many clients of a kind."""
    clients = [kind(target.port, headers=target.headers) for _ in range(number)]
    calls = lab.calls(3_000)

    async def load() -> int:
        await opened(clients)
        await side_by_side([partial(echo, target, client) for client in clients], calls)
        return calls

    return target, load


async def opened(clients: Sequence[HttpSession]) -> None:
    for client in clients:
        if client.http.conn is None:
            await client.open()


@case("stdio-new-call", budget=BUDGET)
async def stdio_new_call(lab: Lab) -> list[Figure]:
    """300-byte echo calls of 2026-07-28, stdio front, stdio upstream of either era."""
    new = StatelessStdioSession

    async def begin() -> Loads:
        started = {
            OLD: await lab.start("ours", HANDSHAKE),
            CROSSED: await lab.start("ours", HANDSHAKE, new),
            SAME: await lab.start("ours", STATELESS, new),
            BACK: await lab.start("ours", STATELESS),
            FLOOR_CROSSED: await lab.start("floor", HANDSHAKE, new),
            FLOOR_NEW: await lab.start("floor", STATELESS, new),
            FLOOR_OLD: await lab.start("floor", HANDSHAKE),
        }
        for target in started.values():
            await target.open()
            await target.session.request("tools/list", {})
        return {name: (target, over_stdio(lab, target)) for name, target in started.items()}

    return figures(await cpu_over_lives(lab, begin))


def over_stdio(lab: Lab, target: StdioTarget) -> Calls:
    calls = lab.calls(4_000)

    async def load() -> int:
        await in_flight(lambda: echo(target), 32, calls)
        return calls

    return load


# Calls that wait

GROWTH, LEFT = "RSS growth", "waiting after their time"
WARM = 200
WAITS = 45  # seconds; all must be parked and measured by then
ENDED_WITHIN = 60  # seconds after that


@case("parked-10k", budget={GROWTH: AtMost(64), LEFT: AtMost(0)}, front="http")
async def parked_10k(lab: Lab) -> list[Figure]:
    """10,000 calls of 2026-07-28 that an older server over HTTP asked about, all left waiting."""
    wanted = 1_000 if lab.quick else 10_000
    count = min(wanted, procs.raise_file_limit() - SPARE_FILES)  # ours inherits it
    upstream = await lab.serve_direct("--asks").open()
    servers: Servers = {"up": {"url": f"http://127.0.0.1:{upstream.port}/mcp"}}
    # All of them are one agent's, which may have 1,000.
    limits = {"max_parked_per_principal": 0, "max_calls_per_principal": 0}
    target = await lab.serve("ours", servers, parked_ms=WAITS * 1000, **limits).open()
    clients = asyncio.Queue[StatelessHttpSession]()
    for _ in range(64):
        clients.put_nowait(StatelessHttpSession(target.port, headers=target.headers))

    async def ask(**more: object) -> dict:
        client = await clients.get()
        try:
            params = {"name": target.tool("ask"), "arguments": {}, **more}
            return await client.request("tools/call", params)
        finally:
            clients.put_nowait(client)

    async def answered(_: int) -> None:
        """What is loaded or kept from the first calls on is not part of what each one costs."""
        asked = await park(0)
        replies = {key: {"action": "decline"} for key in asked["inputRequests"]}
        await ask(requestState=asked["requestState"], inputResponses=replies)

    async def park(_: int) -> dict:
        asked = await ask()
        if asked.get("resultType") != "input_required":
            raise McpError(f"not asked: {str(asked)[:200]}")
        return asked

    await for_all(range(WARM), answered)
    base = await settled_rss(target)
    await for_all(range(count), park)
    size = await settled_rss(target)
    if (held := await waiting(upstream)) != count:
        raise McpError(f"{held} of {count} calls waited when they were measured")
    left = await after_their_time(upstream)
    note = f"{count:,} calls on {base / 1024:.0f} MiB, {(size - base) / count:.1f} KiB each"
    return [
        Figure(GROWTH, (size - base) / 1024, "MiB", note=note),
        Figure(LEFT, left, "calls", note=f"seen by the server; each may wait {WAITS} s"),
    ]


async def waiting(upstream: HttpTarget) -> int:
    """How many calls the server behind has under way that asked."""
    result = await upstream.session.request("tools/call", {"name": "asking", "arguments": {}})
    return int(result["content"][0]["text"])


async def after_their_time(upstream: HttpTarget) -> int:
    """How many still wait once all should have been ended; as soon as there are none."""
    until = time.monotonic() + WAITS + ENDED_WITHIN
    while (left := await waiting(upstream)) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    return left
