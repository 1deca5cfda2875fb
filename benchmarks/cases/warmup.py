"""The first seconds of the service, and what it takes when they are over."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import procs
from budgets import AtMost, Figure
from cases.platform import STATE, Rest, listens
from client import HttpSession, McpError
from measure import TEXT
from registry import case
from targets import HttpTarget, Lab, server

RUNS = 5
CALLERS = 8
SECONDS = {1: 5.0, 10_000: 15.0}
"""How long calls go on, by the number of tools: until what is done behind the first is over."""
FLOOR_SECONDS = 4.0
STEADY = 2.0
"""The last seconds, which are held against the first one."""
WORKER = b"worker_main"
IDLE = "the service, idle after classification"


@dataclass
class Seen:
    """When each call was answered, from listening on, and how long it took; in seconds."""

    length: float
    answered: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """Milliseconds of the longest call."""
        return max(self.taken) * 1000

    @property
    def slowdown(self) -> float:
        """How many times as many calls a second there are at the end as in the first second."""
        first = sum(at < 1 for at in self.answered)
        steady = sum(at >= self.length - STEADY for at in self.answered) / STEADY
        return steady / max(first, 1)


async def watch(target: HttpTarget, seconds: float) -> Seen:
    """Call from the moment that it listens on, eight callers at a time."""
    began, seen = await listens(target), Seen(seconds)

    async def call_on(session: HttpSession) -> None:
        await session.open()
        params = {"name": target.tool("echo"), "arguments": {"text": TEXT, "topic": "bench"}}
        while (started := time.perf_counter()) - began < seconds:
            result = await session.request("tools/call", params)
            if result.get("isError") or TEXT not in result["content"][0]["text"]:
                raise McpError(f"{target.name}: a wrong answer to echo")
            ended = time.perf_counter()
            seen.answered.append(ended - began)
            seen.taken.append(ended - started)

    async with asyncio.TaskGroup() as group:
        for session in [target.new_client() for _ in range(CALLERS)]:
            target.clients.append(session)
            group.create_task(call_on(session))
    return seen


@case(
    "warmup",
    budget={
        "longest call beyond the floor's, 1 tool": AtMost(50),
        "longest call beyond the floor's, 10,000 tools": AtMost(50),
        "steady rate over the first second's, 1 tool": AtMost(2),
        "steady rate over the first second's, 10,000 tools": AtMost(2),
    },
    front="http",
)
async def warmup(lab: Lab) -> list[Figure]:
    """Calls from listening on, while tools are indexed, stored and classified behind them."""
    figures = []
    for tools, seconds in SECONDS.items():
        servers = {"up": server("upstream.py", "--stdio", "--tools", str(tools))}
        beyond, slowdowns, worsts = [], [], []
        for _ in range(1 if lab.quick else RUNS):
            worst = {}
            for name, length in (("floor", min(FLOOR_SECONDS, seconds)), ("ours", seconds)):
                target = lab.serve(name, servers)
                seen = await watch(target, length)
                worst[name] = seen.worst
                if name == "ours":
                    slowdowns.append(seen.slowdown)
                await target.end()
            worsts.append((round(worst["ours"]), round(worst["floor"])))
            beyond.append(max(0.0, worst["ours"] - worst["floor"]))
        size = "1 tool" if tools == 1 else f"{tools:,} tools"
        said = ", ".join(f"{ours}/{floor}" for ours, floor in worsts)
        note = f"median of {len(beyond)}; ours/floor: {said} ms"
        what = f"longest call beyond the floor's, {size}"
        figures.append(Figure(what, median(beyond), "ms", note=note))
        what = f"steady rate over the first second's, {size}"
        note = f"median of {len(slowdowns)}; all: {', '.join(f'{one:.2f}' for one in slowdowns)}"
        figures.append(Figure(what, median(slowdowns), "×", note=note))
    return figures


async def all_classified(target: HttpTarget) -> float:
    """Wait until every tool is; return the most that the worker took meanwhile, in MiB."""
    rest, most = Rest(target), 0.0
    async with asyncio.timeout(60):
        while True:
            most = max(most, procs.rss_mib(workers(target)))
            state = await rest.ask("GET", STATE)
            if state["total_tools"] and state["classified_tools"] == state["total_tools"]:
                break
            await asyncio.sleep(0.02)
    most = max(most, procs.rss_mib(workers(target)))
    rest.close()
    return most


def workers(target: HttpTarget) -> list[int]:
    """The processes that compute for it."""
    return [pid for pid in target.pids() if pid != target.pid and WORKER in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@case("rss", budget={IDLE: AtMost(90)}, front="http")
async def rss(lab: Lab) -> list[Figure]:
    """Resident memory of `serve` with one server, once its tools are classified; 70 is the aim."""
    servers = {"up": server("upstream.py", "--stdio")}
    sizes: dict[str, list[float]] = {"floor": [], "ours": [], "worker": [], "others": []}
    for _ in range(1 if lab.quick else RUNS):
        for name in ("floor", "ours"):
            target = await lab.serve(name, servers, role="admin").open()
            if name == "ours":
                sizes["worker"].append(await all_classified(target))
                async with asyncio.timeout(60):
                    while workers(target):  # noqa: ASYNC110 - it ends by itself when it is idle
                        await asyncio.sleep(0.1)
                others = [pid for pid in target.pids() if pid != target.pid]
                sizes["others"].append(procs.rss_mib(others))
            sizes[name].append(procs.rss_kib(target.pid) / 1024)
            await target.end()
    middle = {name: median(found) for name, found in sizes.items()}
    note = f"median of {len(sizes['ours'])}"
    return [
        Figure(
            "the service, idle after classification", middle["ours"], "MiB", middle["floor"], note
        ),
        Figure("its worker while it classifies", middle["worker"], "MiB", note="gone when idle"),
        Figure("its other processes", middle["others"], "MiB", note="the warden"),
    ]
