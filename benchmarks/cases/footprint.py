"""What the program takes before it does anything: memory, and the CPU of `--help`."""

import resource
import subprocess
from statistics import median

import procs
from budgets import AtMost, Figure
from client import McpError
from measure import echo, in_flight
from registry import case
from targets import CONFIG, FLOOR, Lab, server


@case("rss-base", budget={"RSS of all its processes": AtMost(70)})
async def rss_base(lab: Lab) -> list[Figure]:
    """Resident memory after 1,000 calls, the servers behind it not counted."""
    pair = await lab.open_pair({"up": server("upstream.py", "--stdio")})
    sizes: dict[str, tuple[float, float, float]] = {}
    for target in pair:
        await in_flight(lambda target=target: echo(target), 32, 1_000)
        pids = target.pids()
        helpers = [pid for pid in pids if pid != target.pid]
        sizes[target.name] = (
            procs.rss_mib(pids),
            procs.rss_mib([target.pid]),
            procs.rss_mib(helpers),
        )
    whats = ("RSS of all its processes", "the gateway alone", "its helpers alone")
    return [
        Figure(what, ours, "MiB", floor)
        for what, ours, floor in zip(whats, sizes["ours"], sizes["floor"], strict=True)
    ]


def help_cpu(command: list[str]) -> float:
    """User and system seconds of one `--help`."""
    words = command[: command.index(CONFIG)]
    argv = [word for word in words if word != "--config"] + ["--help"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, capture_output=True, timeout=30, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise McpError(f"--help ended with {done.returncode}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@case("help-cpu", budget={"CPU of --help": AtMost(0.3)})
async def help_case(lab: Lab) -> list[Figure]:
    """What the shortest run of the program costs."""
    taken: dict[str, list[float]] = {"floor": [], "ours": []}
    for _ in range(5):
        taken["floor"].append(help_cpu(FLOOR))
        taken["ours"].append(help_cpu(lab.our_command))
    best = {name: median(values) for name, values in taken.items()}
    return [Figure("CPU of --help", best["ours"], "s", best["floor"], "median of 5")]
