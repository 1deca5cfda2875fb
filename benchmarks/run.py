"""Measure our program beside the floor and hold both against the budgets.

    .venv/bin/python benchmarks/run.py [--only NAME ...] [--quick] [--json] [--list]

Ends with 1 when a budget is missed or a case breaks off, with 2 when there is nothing to measure.
"""

import argparse
import asyncio
import shutil
import signal
import sys

import uvloop
from rich.console import Console

import cases  # noqa: F401 - registers them
import procs
import report
import targets
from budgets import FAILED, Row, judge
from client import McpError
from registry import CASES, Case

# What a program under measurement can do wrong; anything else is a fault of the bench itself.
EXPECTED = (McpError, OSError, TimeoutError)


async def run_case(case: Case, override: str | None, quick: bool) -> list[Row]:
    async with targets.Lab(override, quick) as lab:
        try:
            async with asyncio.timeout(case.seconds):
                rows = judge(case.name, case.req, case.budget, await case.measure(lab))
        except* EXPECTED as group:
            error = first_of(group)
            words = f"{type(error).__name__}: {error} {lab.describe_end()}"
            rows = [Row(case.name, case.req, FAILED, error=words.strip())]
    return rows


def first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def run_all(names: list[str], override: str | None, quick: bool) -> list[Row]:
    task = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    rows: list[Row] = []
    with Console(stderr=True).status("") as status:
        for number, name in enumerate(names, 1):
            status.update(f"{name} ({number} of {len(names)})")
            rows += await run_case(CASES[name], override, quick)
            # A server that lost its program needs a moment to notice.
            if left := procs.end_descendants(grace=2):
                status.console.print(f"{name}: {left} processes had outlived their program")
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help="these cases")
    parser.add_argument("--quick", action="store_true", help="fewer calls and rounds: rough")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument(
        "--ours",
        metavar="CMD",
        help="measure this program as ours; {config} in it stands for the config file, and one "
        "with {port} is measured over HTTP",
    )
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[str]:
    """The cases to run: those asked for, or all that the program can be measured by."""
    front = targets.front_of(args.ours) if args.ours else None
    return args.only or [name for name, case in CASES.items() if front in (None, case.front)]


def main() -> int:
    args = arguments()
    if args.list:
        report.show_cases(CASES.values(), args.json)
        return 0
    if shutil.which(targets.ours(args.ours, "stdio")[0]) is None:
        print("our program is not installed beside this Python: run `make setup`", file=sys.stderr)
        return 2
    procs.adopt_orphans()
    try:
        rows = uvloop.run(run_all(chosen(args), args.ours, args.quick))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    finally:
        procs.end_descendants()
    (report.show_json if args.json else report.show)(rows, args.quick)
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
