"""What the program takes before it does anything: disk, memory, and the CPU of `--help`."""

import re
import resource
import subprocess
from importlib.metadata import Distribution, distribution
from pathlib import Path
from statistics import median

from packaging.requirements import Requirement

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


INSTALLED = "files of the default install"
OURS = "mcp-junction"


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """A distribution and all that it needs here without any extra, by their names."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key not in found:
        found[key] = distribution(name)
        for line in found[key].requires or ():
            asked = Requirement(line)
            if asked.marker is None or asked.marker.evaluate({"extra": ""}):
                needed(asked.name, found)
    return found


def file_sizes(installed: Distribution) -> int:
    """Bytes of what was installed of a distribution; bytecode is made later, or never."""
    files = (Path(str(installed.locate_file(file))) for file in installed.files or ())
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())


@case("installed-size", budget={INSTALLED: AtMost(150)})
async def installed_size(lab: Lab) -> list[Figure]:
    """What `pip install` of the program without extras puts on the disk, without bytecode."""
    package = Path(__file__).parents[2] / "src" / "mcp_junction"
    ours = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    sizes = {name: file_sizes(one) for name, one in needed(OURS, {}).items() if name != OURS}
    sizes[OURS] = sum(path.stat().st_size for path in ours)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:6]
    note = ", ".join(f"{name} {sizes[name] / 1e6:.0f}" for name in largest)
    return [
        Figure(INSTALLED, sum(sizes.values()) / 1e6, "MB", note=f"{len(sizes)} packages: {note} …")
    ]
