"""What a condition on an argument, and tracing, add to a governed call."""

import subprocess
from statistics import median

from budgets import AtMost, Figure, Ratio
from cases.eras import by
from cases.governed import GRANTS, ON, UP
from client import HttpSession
from measure import PER, Loads, compared, cpu_over_lives
from registry import case
from targets import HttpTarget, Lab

ADDED = "CPU that a condition on one argument adds to a call"
TRACED = "CPU per call, 1 % of the traces sampled"
WHEN = 'args.topic.startsWith("ben")'


def add_condition(lab: Lab, target: HttpTarget) -> None:
    """Give the agent's grant for the tool of the calls a condition."""
    data_dir = target.argv[target.argv.index("--data-dir") + 1]
    words = ["grants", "add", "bench", "up.echo", "--when", WHEN]
    words += ["--url", f"http://127.0.0.1:{target.port}", "--data-dir", data_dir]
    subprocess.run([lab.our_http[0], *words], capture_output=True, timeout=60, check=True)


@case("condition", budget={ADDED: AtMost(8.0)}, front="http")
async def condition(lab: Lab) -> list[Figure]:
    """300-byte echo calls of an agent whose grant has a condition, and of one without."""

    async def begin() -> Loads:
        plain = await lab.serve_governed(UP, GRANTS[:1], **ON)
        judged = await lab.serve_governed(UP, GRANTS[:1], **ON)
        add_condition(lab, judged)
        return {"plain": by(lab, plain, HttpSession), "judged": by(lab, judged, HttpSession)}

    taken = await cpu_over_lives(lab, begin)
    ours, without = (median(taken.seconds[name]) * PER["µs"] for name in ("judged", "plain"))
    note = f"median of {taken.rounds} × {taken.calls}: {ours:.1f} µs against {without:.1f} µs"
    return [Figure(ADDED, ours - without, "µs", without, note)]


@case("tracing", budget={TRACED: Ratio(1.03)}, front="http")
async def tracing(lab: Lab) -> list[Figure]:
    """The same with traces of one call in a hundred, whose collector is away."""
    settings = {**ON, "otlp_endpoint": "http://127.0.0.1:9", "otlp_sample": 0.01}

    async def begin() -> Loads:
        plain = await lab.serve_governed(UP, GRANTS[:1], **ON)
        traced = await lab.serve_governed(UP, GRANTS[:1], **settings)
        return {"plain": by(lab, plain, HttpSession), "traced": by(lab, traced, HttpSession)}

    return [compared(await cpu_over_lives(lab, begin), "traced", "plain", TRACED, "µs")]
