"""1,000 agents that may each use something else of 10,000 tools: the catalog alone, in a process of
its own."""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from budgets import AtMost, Figure
from registry import case
from targets import Lab

HERE = Path(__file__).resolve().parents[1]
SERVERS, TOOLS, AGENTS = 20, 500, 1_000
FEW = 50
WIDTHS = (FEW, 500, FEW, 2_000, FEW, 9_000)
"""How many tools agents may use, in turn."""
BUDGET = {
    "growth for 1,000 scopes": AtMost(300),
    "CPU of the first list of 50 tools": AtMost(5),
}


@case("scopes-1k", budget=BUDGET)
async def scopes_1k(lab: Lab) -> list[Figure]:
    """1,000 agents with different scopes over 10,000 tools, each of which lists its tools."""
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from cases import scopes; scopes.main()",
        env=env,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    found = json.loads(output)
    widths = ", ".join(f"{width:,}" for width in sorted(set(WIDTHS)))
    return [
        Figure("growth for 1,000 scopes", found["growth"], "MiB", note=f"of {widths} tools"),
        Figure("CPU of the first list of 50 tools", found["few"], "ms", note="median"),
        Figure("CPU of the first list of 9,000 tools", found["many"], "ms", note="median"),
        Figure("CPU of a list of all tools, after a change", found["all"], "ms"),
    ]


class ExactGrants:
    """What one agent may use: exactly these pairs."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._names: dict[str, set[str]] = {}
        for server, name in pairs:
            self._names.setdefault(server, set()).add(name)

    def of(self, _: str, server: str) -> Callable[[object], bool] | None:
        names = self._names.get(server)
        return None if names is None else names.__contains__


async def measure() -> dict[str, float]:
    from mcp_junction.catalog.catalog import Catalog
    from mcp_junction.catalog.endpoints import EVERYTHING
    from mcp_junction.catalog.items import TOOLS as KIND
    from mcp_junction.catalog.items import ListItem, ServerLists
    from mcp_junction.catalog.scope import OPEN, Scope
    from mcp_junction.protocol import encode, frames
    from mcp_junction.protocol.names import STRICT
    from mcp_junction.testing.link import FakeUpstream

    keys = [f"server-{n}" for n in range(SERVERS)]
    properties = {f"p{n}": {"type": "string", "description": "a word"} for n in range(4)}
    schema = {"type": "object", "properties": properties}
    words = "does one of many things, and says so in a sentence of ordinary length"
    catalog = Catalog()
    for key in keys:
        tools = [
            {"name": f"tool_{n}", "description": words, "inputSchema": schema} for n in range(TOOLS)
        ]
        offers = tuple(ListItem(one["name"], frames.members(encode.dumps(one))) for one in tools)
        catalog = catalog.with_offering(ServerLists(FakeUpstream(key), offers), keys)
    catalog.page(STRICT, KIND, OPEN, None)
    catalog = catalog.with_offering(catalog.offerings[keys[0]], keys)
    began = time.thread_time()
    catalog.page(STRICT, KIND, OPEN, None)
    after_change = time.thread_time() - began
    pairs = [(key, f"tool_{n}") for key in keys for n in range(TOOLS)]
    draw = random.Random(16)
    granted = [draw.sample(pairs, WIDTHS[n % len(WIDTHS)]) for n in range(AGENTS)]
    scopes = [Scope(EVERYTHING, ExactGrants(each), f"agent-{n}") for n, each in enumerate(granted)]
    before = resident()
    taken: dict[int, list[float]] = {}
    for scope, each in zip(scopes, granted, strict=True):
        began = time.thread_time()
        page = catalog.page(STRICT, KIND, scope, None)
        taken.setdefault(len(each), []).append(time.thread_time() - began)
        assert page.count(b'"inputSchema"') == len(each)
    return {
        "growth": resident() - before,
        "few": median(taken[FEW]),
        "many": median(taken[max(WIDTHS)]),
        "all": after_change * 1000,
    }


def median(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2] * 1000


def resident() -> float:
    """MiB of memory that this process has."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
    raise ValueError("no Rss in smaps_rollup")


def main() -> None:
    print(json.dumps(asyncio.run(measure())))
