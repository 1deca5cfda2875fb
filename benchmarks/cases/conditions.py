"""What a condition on an argument, and tracing, add to a governed call."""

import json
import subprocess
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from budgets import AtMost, Figure, Ratio
from cases.eras import by
from cases.governed import GRANTS, ON, UP
from client import HttpSession, McpError
from mcp_junction.policy.arguments import read_arguments
from mcp_junction.policy.conditions import GrantCondition
from measure import PER, Loads, compared, cpu_over_lives
from registry import case
from targets import HttpTarget, Lab

WHEN = {
    "CPU that a condition on one argument adds to a call": 'args.topic.startsWith("ben")',
    "CPU that one adds that the library judges": 'args.topic + "!" == "bench!"',
}
TRACED = "CPU per call, 1 % of the traces sampled"


def add_condition(lab: Lab, target: HttpTarget, when: str) -> None:
    """Give the agent's grant for the tool of the calls a condition."""
    data_dir = target.argv[target.argv.index("--data-dir") + 1]
    words = ["grants", "add", "bench", "up.echo", "--when", when]
    words += ["--url", f"http://127.0.0.1:{target.port}", "--data-dir", data_dir]
    subprocess.run([lab.our_http[0], *words], capture_output=True, timeout=60, check=True)


HEAVIEST = {
    "CPU of 5,000 steps in a list": (
        "args.l.all(x, x == 8 || x == 7)",
        {"l": [7] * 5_000},
    ),
    "CPU of a comparison of nested lists": (
        "args.l == args.m",
        {"l": [[1] * 60] * 80, "m": [[1] * 60] * 80},
    ),
}
"""The heaviest conditions that are still evaluated: what is heavier is refused."""


@dataclass
class JudgedCall:
    """What a condition may ask about: the arguments of a call, and nothing beside them."""

    arguments: Any

    def read_arguments(self) -> Any:
        return self.arguments

    def read_field(self, root: str, name: str) -> None:
        return None


@case("condition-heavy", budget=dict.fromkeys(HEAVIEST, AtMost(10)), req=("P-2",))
async def condition_heavy(lab: Lab) -> list[Figure]:
    """The heaviest conditions that are evaluated at all, alone, in this process."""
    figures = []
    for what, (source, arguments) in HEAVIEST.items():
        judged, taken = GrantCondition(source), []
        facts = JudgedCall(read_arguments(json.dumps(arguments).encode()))
        for _ in range(lab.calls(50)):
            began = time.thread_time()
            failure = judged.find_failure(facts, time.time())
            taken.append((time.thread_time() - began) * 1000)
        if "too long" in (failure or ""):
            raise McpError(f"it is not evaluated: {source}")
        note = f"median of {len(taken)}, least {min(taken):.1f} ms"
        figures.append(Figure(what, median(taken), "ms", note=note))
    return figures


@case("condition", budget=dict.fromkeys(WHEN, AtMost(8.0)), front="http")
async def condition(lab: Lab) -> list[Figure]:
    """300-byte echo calls of an agent whose grant has a condition, and of one without."""

    async def begin() -> Loads:
        loads = {"plain": by(lab, await lab.serve_governed(UP, GRANTS[:1], **ON), HttpSession)}
        for what, when in WHEN.items():
            judged = await lab.serve_governed(UP, GRANTS[:1], **ON)
            add_condition(lab, judged, when)
            loads[what] = by(lab, judged, HttpSession)
        return loads

    taken = await cpu_over_lives(lab, begin)
    cost = {name: median(seconds) * PER["µs"] for name, seconds in taken.seconds.items()}
    without = cost["plain"]
    note = f"median of {taken.rounds} × {taken.calls}: {{:.1f}} µs against {without:.1f} µs"
    return [
        Figure(what, cost[what] - without, "µs", without, note.format(cost[what])) for what in WHEN
    ]


@case("tracing", budget={TRACED: Ratio(1.03)}, front="http")
async def tracing(lab: Lab) -> list[Figure]:
    """The same with traces of one call in a hundred, whose collector is away."""
    settings = {**ON, "otlp_endpoint": "http://127.0.0.1:9", "otlp_sample": 0.01}

    async def begin() -> Loads:
        plain = await lab.serve_governed(UP, GRANTS[:1], **ON)
        traced = await lab.serve_governed(UP, GRANTS[:1], **settings)
        return {"plain": by(lab, plain, HttpSession), "traced": by(lab, traced, HttpSession)}

    return [compared(await cpu_over_lives(lab, begin), "traced", "plain", TRACED, "µs")]
