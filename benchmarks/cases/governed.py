"""Calls with everything on that governs them: an agent's key, grants, checked arguments, limits of
agent, server and tool, circuits, audit and metrics."""

from budgets import Figure, Limit, Ratio
from cases.eras import by
from cases.tail import LIMIT, p99_of_pair
from client import HttpSession, StatelessHttpSession
from measure import compared, cpu_of_loads
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
    """What a call costs that clients of either era make."""
    pair = await governed_pair(lab)
    loads = {
        f"{target.name}, {era}": by(lab, target, kind, clients)
        for era, kind in KINDS.items()
        for target in pair
    }
    taken = await cpu_of_loads(lab, loads)
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
