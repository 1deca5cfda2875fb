"""Calls with everything on that governs them: an agent's key, grants, checked arguments, limits of
agent, server and tool, circuits, audit and metrics."""

import time
from collections.abc import Awaitable, Callable
from statistics import median

from budgets import Figure, Limit, Ratio
from cases.audit import opened, postgres, schema_url
from cases.eras import by
from cases.tail import LIMIT, p99_of_pair
from client import HttpSession, StatelessHttpSession
from measure import Loads, compared, cpu_of_loads, cpu_over_lives, latencies
from registry import case
from targets import HttpTarget, Lab, Servers, server

UP: Servers = {"up": server("upstream.py", "--stdio", "--tools", "200")}
ON: dict[str, object] = {
    "validate": "on",
    # So high that none is met: what counts is that they are counted.
    "limit_agent": "1000000000/60",
    "limit_server": "1000000000/60",
    "limit_tool": "1000000000/60",
}
GRANTS = (
    "up.echo",
    *(f"up.tool_{n:04d}" for n in range(80)),
    *(f"up.*_{n:04d}" for n in range(19)),
)
"""A hundred: names, and patterns that have to be tried."""

HANDSHAKE, STATELESS = "handshake", "2026-07-28"
KINDS = {HANDSHAKE: HttpSession, STATELESS: StatelessHttpSession}


def what(clients: int, era: str) -> str:
    return f"CPU per call, {clients} clients of {era}"


def budget(clients: int) -> dict[str, Limit]:
    return {what(clients, era): Ratio(2.5, stretch=2.2) for era in KINDS}


async def governed_pair(lab: Lab, clients: int = 1) -> tuple[HttpTarget, HttpTarget]:
    """(floor, ours), past their handshakes and a first list."""
    floor = await lab.serve("floor", UP).open(clients)
    pair = floor, await lab.serve_governed(UP, GRANTS, clients, **ON)
    for target in pair:
        await target.session.request("tools/list", {})
    return pair


async def small_calls(lab: Lab, clients: int) -> list[Figure]:
    """What a call costs that clients of either era make, over several lives of both programs."""

    async def begin() -> Loads:
        pair = await governed_pair(lab)
        return {
            f"{target.name}, {era}": by(lab, target, kind, clients)
            for era, kind in KINDS.items()
            for target in pair
        }

    taken = await cpu_over_lives(lab, begin)
    return [
        compared(taken, f"ours, {era}", f"floor, {era}", what(clients, era), "µs") for era in KINDS
    ]


@case("governed-32", budget=budget(32), front="http")
async def governed_32(lab: Lab) -> list[Figure]:
    """300-byte echo calls of 32 clients of a governed agent, HTTP front, stdio upstream."""
    return await small_calls(lab, 32)


@case("governed-128", budget=budget(128), front="http")
async def governed_128(lab: Lab) -> list[Figure]:
    """The same of 128 clients."""
    return await small_calls(lab, 128)


@case(
    "governed-tail",
    budget={f"p99, {clients} clients": LIMIT for clients in (32, 128)},
    front="http",
)
async def governed_tail(lab: Lab) -> list[Figure]:
    """The 99th percentile of small calls of a governed agent, by 32 and 128 clients."""
    return [
        await p99_of_pair(lab, await governed_pair(lab, clients), f"p99, {clients} clients")
        for clients in (32, 128)
    ]


MANY = (
    "up.echo",
    *(f"up.name_{n}" for n in range(7_999)),
    *(f"up.*_{n}_*" for n in range(2_000)),
)
"""Ten thousand: names, and patterns."""
REMEMBERED, DECIDED = (
    "CPU per call, 10,000 grants",
    "CPU per call, 10,000 grants, each call decided",
)
ONE_GRANT = Ratio(2)


@case("grants-10k", budget={REMEMBERED: ONE_GRANT, DECIDED: ONE_GRANT}, front="http")
async def grants_10k(lab: Lab) -> list[Figure]:
    """Calls of an agent with 10,000 grants against those of one with a single grant."""
    figures = []
    for what, settings in ((REMEMBERED, ON), (DECIDED, {**ON, "auth_cache_ttl": 0})):
        few = await lab.serve_governed(UP, MANY[:1], **settings)
        many = await lab.serve_governed(UP, MANY, **settings)
        loads = {"few": by(lab, few, HttpSession), "many": by(lab, many, HttpSession)}
        figures.append(compared(await cpu_of_loads(lab, loads), "many", "few", what, "µs"))
        await few.end()
        await many.end()
    return figures


# -- strict audit

STORES = ("normal", "strict", "write")
ADDED = "p50 that strict audit adds to a call"


async def strict(lab: Lab, urls: dict[str, str]) -> list[Figure]:
    """What a call waits for its intent, against one durable write of the store in the same run."""
    normal, other = [
        await lab.serve_governed(UP, GRANTS, **ON, store=urls[mode], audit=mode)
        for mode in ("normal", "strict")
    ]
    taken: dict[str, list[float]] = {name: [] for name in urls}
    async with opened(urls["write"]) as written:

        async def write() -> None:
            await written.settings.put("bench", 1, "bench")

        # One after the other: a disk that was idle for a moment is slower than one that is busy.
        for _ in range(lab.rounds * lab.calls(200)):
            taken["normal"] += await latencies(normal, 1)
            taken["write"].append(await timed(write))
            taken["strict"] += await latencies(other, 1)
    p50 = {name: median(seconds) * 1000 for name, seconds in taken.items()}
    note = f"median of {len(taken['strict'])}; floor: one durable write"
    added = p50["strict"] - p50["normal"]
    return [
        Figure(ADDED, added, "ms", p50["write"], note),
        Figure(
            "p50 of a whole call",
            p50["strict"],
            "ms",
            p50["write"],
            f"of {p50['normal']:.2f} ms without",
        ),
    ]


async def timed(act: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await act()
    return time.perf_counter() - began


@case("strict-audit-sqlite", budget={ADDED: Ratio(2)}, front="http")
async def strict_audit_sqlite(lab: Lab) -> list[Figure]:
    """What strict audit adds to a call of one client, on SQLite."""
    return await strict(lab, {name: f"sqlite:///{lab.folder / name}.db" for name in STORES})


@case("strict-audit-postgres", budget={ADDED: Ratio(2)}, front="http")
async def strict_audit_postgres(lab: Lab) -> list[Figure]:
    """What strict audit adds to a call of one client, on PostgreSQL."""
    with postgres(is_durable=True) as url:
        return await strict(lab, {name: await schema_url(url, name) for name in STORES})
