"""The ways of taking a figure: CPU per call, latency, time to a full list."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import TypeVar

from budgets import Figure
from client import INIT_PARAMS, HttpSession, McpError, StdioSession, unwrap
from targets import HttpTarget, Lab, Target

TEXT = "The quick brown fox jumps over the lazy dog. " * 4

PER = {"s": 1, "ms": 1e3, "µs": 1e6}

Call = Callable[[], Awaitable[None]]
Load = Callable[[Target], Awaitable[int]]
Calls = Callable[[], Awaitable[int]]  # a load that knows its target
Loads = dict[str, tuple[Target, Calls]]
T = TypeVar("T")


@dataclass
class Taken:
    """The CPU seconds per call of each load, in as many rounds of so many calls."""

    seconds: dict[str, list[float]]
    rounds: int
    calls: int = 0


async def echo(target: Target, session: HttpSession | None = None) -> None:
    """One call of about 300 bytes, by the target's first client or by this one."""
    name = target.tool("echo")
    params = {"name": name, "arguments": {"text": TEXT, "topic": "bench"}}
    result = await (session or target.session).request("tools/call", params)
    if result.get("isError") or TEXT not in result["content"][0]["text"]:
        raise McpError(f"{target.name}: a wrong answer to echo")


async def in_flight(call: Call, width: int, calls: int) -> None:
    """`calls` calls, always `width` of them under way."""
    await side_by_side([call] * width, calls)


async def by_clients(
    target: HttpTarget, call: Callable[[Target, HttpSession], Awaitable[None]], calls: int
) -> None:
    """`calls` calls by all clients of the target, each client one at a time."""
    await side_by_side([partial(call, target, client) for client in target.clients], calls)


async def side_by_side(callers: Sequence[Call], calls: int) -> None:
    """`calls` calls in all, each caller the next as soon as its last is answered."""
    left = iter(range(calls))

    async def run(call: Call) -> None:
        for _ in left:
            await call()

    async with asyncio.TaskGroup() as group:
        for call in callers:
            group.create_task(run(call))


async def alternating(rounds: int, targets: Sequence[T]) -> AsyncIterator[T]:
    """Each target once a round, in turning order, so that a noisy minute hits all alike."""
    for number in range(rounds):
        for target in targets if number % 2 == 0 else reversed(targets):
            yield target


async def cpu_per_call(
    lab: Lab, targets: tuple[Target, Target], load: Load, what: str, unit: str
) -> Figure:
    """CPU per call of (floor, ours), the median of many short rounds. `load` answers its calls."""
    loads = {target.name: (target, partial(load, target)) for target in targets}
    taken = await cpu_of_loads(lab, loads)
    return compared(taken, "ours", "floor", what, unit)


async def cpu_of_loads(lab: Lab, loads: Loads) -> Taken:
    """CPU seconds per call of each load on its target, round by round.

    On a busy machine with two cores, the floor measured against itself came out between 0.90 and
    1.05 this way.
    """
    taken = Taken({name: [] for name in loads}, lab.rounds)
    await _rounds(lab.rounds, loads, taken)
    return taken


async def settle(target: Target, seconds: float = 1.0) -> None:
    """Wait until a program has used hardly any CPU for so long.

    Then it has done what it does behind its first calls: tools are classified, say.
    """
    while True:
        before = target.cpu()
        await asyncio.sleep(seconds)
        if target.cpu() - before < seconds / 10:
            return


async def cpu_over_lives(lab: Lab, begin: Callable[[], Awaitable[Loads]]) -> Taken:
    """The same, with all programs started anew several times, each measured once it has settled.

    Two processes of one program differ by up to a tenth for as long as they live, so one life says
    little.
    The programs of a life hash alike, which halves how much they differ (0.054 to 0.024).
    """
    lives = 2 if lab.quick else 12
    rounds = max(lab.rounds // lives, 4)
    taken = Taken({}, lives * rounds)
    for life in range(1, lives + 1):
        os.environ["PYTHONHASHSEED"] = str(life)
        try:
            loads = await begin()
        finally:
            del os.environ["PYTHONHASHSEED"]
        for target in {id(target): target for target, _ in loads.values()}.values():
            await settle(target)
        await _rounds(rounds, loads, taken)
        for target in {id(target): target for target, _ in loads.values()}.values():
            await target.end()
    return taken


async def _rounds(rounds: int, loads: Loads, taken: Taken) -> None:
    for _, load in loads.values():
        await load()  # caches fill and lazy imports happen before anything counts
    async for name in alternating(rounds, list(loads)):
        target, load = loads[name]
        before = target.cpu()
        taken.calls = await load()
        taken.seconds.setdefault(name, []).append((target.cpu() - before) / taken.calls)


def compared(taken: Taken, name: str, with_name: str, what: str, unit: str) -> Figure:
    """The medians of two loads as a figure.

    The ratio of the least rounds is noted beside it: where the two differ much, the machine was not
    quiet enough to trust either.
    """
    ours, floor = taken.seconds[name], taken.seconds[with_name]
    least = f"by the least {min(ours) / min(floor):.2f}×"
    note = f"median of {taken.rounds} × {taken.calls}; {least}"
    return Figure(what, median(ours) * PER[unit], unit, median(floor) * PER[unit], note)


def ratios(taken: Taken, name: str, with_name: str) -> list[float]:
    """How many times as much one load takes as another, round by round.

    What slows the machine down for longer than a round slows down both.
    """
    pairs = zip(taken.seconds[name], taken.seconds[with_name], strict=True)
    return [ours / other for ours, other in pairs]


def middle(what: str, rounds: list[float]) -> Figure:
    """The median of the rounds' ratios, held against 1."""
    found = sorted(rounds)
    quarter = len(found) // 4
    low, high = found[quarter], found[-quarter - 1]
    note = f"half of {len(found)} rounds within {low:.2f}–{high:.2f}×"
    return Figure(what, median(found), "×", 1.0, note)


async def latencies(target: Target, calls: int) -> list[float]:
    """Seconds of each of `calls` echo calls, one after the other."""
    taken = []
    for _ in range(calls):
        started = time.perf_counter()
        await echo(target)
        taken.append(time.perf_counter() - started)
    return taken


async def added_latency(lab: Lab, targets: tuple[Target, Target, Target]) -> list[Figure]:
    """How much later than from the first of (direct, floor, ours) the others' answers come."""
    calls = lab.calls(400)
    seconds: dict[str, list[float]] = {"direct": [], "floor": [], "ours": []}
    # Which core wakes which process changes from round to round and moves a p50 by half: the
    # rounds are short and many, and pooled.
    async for target in alternating(lab.rounds, targets):
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


async def list_tools(session: StdioSession | HttpSession, first: object = None) -> list[str]:
    """The names of all tools, over as many pages as the program makes of them."""
    page = first or await session.request("tools/list", {})
    names = [tool["name"] for tool in page["tools"]]
    while cursor := page.get("nextCursor"):
        page = await session.request("tools/list", {"cursor": cursor})
        names += [tool["name"] for tool in page["tools"]]
    return names


async def open_and_list(session: StdioSession) -> list[str]:
    """Handshake and first list in one go, as a client does that does not wait."""
    opened = session.post("initialize", INIT_PARAMS)
    session.notify("notifications/initialized")
    listed = session.post("tools/list", {})
    _, page = map(unwrap, await asyncio.gather(opened, listed))
    return await list_tools(session, page)


def expect_tools(target: Target, names: list[str], count: int) -> None:
    if len(set(names)) != count:
        raise McpError(f"{target.name}: {len(set(names))} tools listed where {count} are meant")


async def timed_list(target: Target, count: int) -> float:
    """Seconds of one whole warm list."""
    started = time.perf_counter()
    names = await list_tools(target.session)
    taken = time.perf_counter() - started
    expect_tools(target, names, count)
    return taken
