"""1,000 agents with grants for different ones of 10,000 tools: the catalog and the policy alone, in
a process of their own."""

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path

from budgets import AtMost, Figure
from registry import case
from targets import Lab

HERE = Path(__file__).resolve().parents[1]
SERVERS, TOOLS, AGENTS = 20, 500, 1_000
FEW = 50
BY_NAME, BY_PATTERN = "by name", "by pattern"
KINDS = (
    (BY_NAME, FEW), (BY_PATTERN, 500), (BY_PATTERN, FEW),
    (BY_PATTERN, 2_000), (BY_NAME, FEW), (BY_PATTERN, 9_000),
)  # fmt: skip
"""How agents are granted so many tools, in turn."""


def first_list(kind: str, width: int) -> str:
    return f"CPU of the first list of {width:,} tools, granted {kind}"


BUDGET = {
    "growth for 1,000 scopes": AtMost(300),
    first_list(BY_NAME, FEW): AtMost(5),
    first_list(BY_PATTERN, FEW): AtMost(5),
}


@case("scopes-1k", budget=BUDGET)
async def scopes_1k(lab: Lab) -> list[Figure]:
    """1,000 agents with different grants over 10,000 tools, each of which lists its tools."""
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
    return [
        Figure("growth for 1,000 scopes", found["growth"], "MiB", note=found["note"]),
        *(Figure(what, ms, "ms", note="median") for what, ms in found["lists"].items()),
        Figure("CPU of a list of all tools, after a change", found["all"], "ms"),
    ]


def draw_grants(draw: random.Random, agent: str, kind: str, width: int) -> list:
    """Draw the grants of an agent: names, or patterns that each admit a tenth of a server."""
    from mcp_junction.policy.grants import Grant

    if kind == BY_NAME:
        chosen = draw.sample(
            [(s, f"tool_{n}") for s in range(SERVERS) for n in range(TOOLS)], width
        )
    else:
        places = [(s, f"tool_*{digit}") for s in range(SERVERS) for digit in range(10)]
        chosen = draw.sample(places, width * 10 // TOOLS)
    now = time.time()
    return [
        Grant(draw.randbytes(16).hex(), agent, f"id-{server}", name, granted_at=now)
        for server, name in chosen
    ]


async def measure() -> dict[str, object]:
    from mcp_junction.catalog.catalog import Catalog
    from mcp_junction.catalog.endpoints import EVERYTHING
    from mcp_junction.catalog.items import TOOLS as KIND
    from mcp_junction.catalog.items import ListItem, ServerLists
    from mcp_junction.catalog.scope import OPEN, Scopes
    from mcp_junction.policy.live_policy import LivePolicy
    from mcp_junction.policy.principal import Principal, Role
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
    draw = random.Random(16)
    before = resident()
    policy = LivePolicy({key: f"id-{n}" for n, key in enumerate(keys)})
    scopes = Scopes(policy)
    taken: dict[tuple[str, int], list[float]] = {}
    count = 0
    for number in range(AGENTS):
        agent, (kind, width) = f"agent-{number}", KINDS[number % len(KINDS)]
        grants = draw_grants(draw, agent, kind, width)
        count += len(grants)
        policy.put(agent, grants, (), time.time())
        scope = scopes.of(Principal(agent, Role.AGENT), EVERYTHING)
        began = time.thread_time()
        page = catalog.page(STRICT, KIND, scope, None)
        taken.setdefault((kind, width), []).append(time.thread_time() - began)
        assert page.count(b'"inputSchema"') == width
    return {
        "growth": resident() - before,
        "note": f"with their {count:,} grants",
        "lists": {first_list(*each): median(seconds) for each, seconds in sorted(taken.items())},
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
