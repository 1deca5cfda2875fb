"""``mcp-junction skills``: shows skills, has tools classified, and decides suggested skills."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from mcp_junction.cli.options import action, make_parser, option
from mcp_junction.cli.printing import print_message, print_table, printable
from mcp_junction.cli.remote import ServiceClient, run_action, server_path
from mcp_junction.errors import UsageError

SKILLS: Final = "/api/v1/skills"
SUGGESTIONS: Final = f"{SKILLS}/suggestions"
STATE: Final = "/api/v1/aggregator/state"
_INTERVAL: Final = 0.2
_QUIET: Final = 60.0
"""Seconds without any progress after which the command no longer waits."""
_SHORT: Final = 8
_SHOWN_TOOLS: Final = 3


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction skills",
        "Show the skills by which a running `mcp-junction serve` classifies its tools, have tools"
        "\nclassified again, and decide which suggested skills there are to be.",
        "examples:\n  mcp-junction skills list\n"
        "  mcp-junction skills classify github\n"
        "  mcp-junction skills suggestions\n"
        "  mcp-junction skills approve 4f1c9e\n"
        "  mcp-junction tools search 'send a message' --skill communication\n",
    )
    return run_action(parser, argv, _ACTIONS)


def _list(args: argparse.Namespace, service: ServiceClient) -> int:
    skills = list(service.pages(SKILLS))
    rows = [
        (skill["id"], skill["name"], skill["tool_count"], skill["description"]) for skill in skills
    ]
    return print_table(args, skills, ("id", "name", "tools", ""), rows, "There are no skills.")


def _classify(args: argparse.Namespace, service: ServiceClient) -> int:
    paths = [f"{server_path(server)}/tools/classify" for server in args.servers]
    count = sum(service.post(path)["tools"] for path in paths)
    state = _follow_progress(service, is_shown=not args.json and sys.stderr.isatty())
    left = state["unclassified_tools"]
    words = f"{count} tools were classified again" if not left else f"{left} tools are left to do"
    given = {"tools": count, "unclassified_tools": left}
    print_message(args, given, f"{words}.")
    return 0 if not left else 1


def _follow_progress(service: ServiceClient, *, is_shown: bool) -> dict[str, Any]:
    """Wait until all tools are classified, or nothing happens any more; with a bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("classifying"), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as progress:
        state: dict[str, Any] = service.get(STATE)
        bar = progress.add_task("", total=state["total_tools"])
        changed = time.monotonic()
        while state["unclassified_tools"] and time.monotonic() - changed < _QUIET:
            time.sleep(_INTERVAL)
            before, state = state["unclassified_tools"], service.get(STATE)
            progress.update(bar, total=state["total_tools"], completed=state["classified_tools"])
            if state["unclassified_tools"] != before:
                changed = time.monotonic()
    return state


def _suggestions(args: argparse.Namespace, service: ServiceClient) -> int:
    found = _read_suggestions(service, "all" if args.all else "pending")
    rows = [
        (
            one["id"][:_SHORT],
            one["name"],
            one["status"],
            len(one["tools"]),
            ", ".join(f"{t['server']}.{t['name']}" for t in one["tools"][:_SHOWN_TOOLS]),
        )
        for one in found
    ]
    headings = "id", "name", "status", "tools", "such as"
    return print_table(args, found, headings, rows, "No skill is suggested.")


def _read_suggestions(service: ServiceClient, status: str) -> list[dict[str, Any]]:
    return list(service.pages(SUGGESTIONS, status=status))


def _approve(args: argparse.Namespace, service: ServiceClient) -> int:
    chosen = _choose(args.id, service)
    skill = service.post(f"{SUGGESTIONS}/{chosen['id']}/approve")
    words = f"{printable(skill['name'])} ({skill['id']}) is a skill of {len(chosen['tools'])} tools"
    return print_message(args, skill, f"{words}.")


def _reject(args: argparse.Namespace, service: ServiceClient) -> int:
    chosen = _choose(args.id, service)
    service.post(f"{SUGGESTIONS}/{chosen['id']}/reject")
    return print_message(args, {"id": chosen["id"]}, f"{printable(chosen['name'])} is rejected.")


def _choose(beginning: str, service: ServiceClient) -> dict[str, Any]:
    """Find the one pending suggestion whose id begins so. Raises UsageError."""
    pending = _read_suggestions(service, "pending")
    found = [one for one in pending if one["id"].startswith(beginning)]
    if len(found) != 1:
        how = "no pending suggestion has" if not found else "several suggestions have"
        raise UsageError(f"{how} an id that begins with {beginning!r}; see `skills suggestions`")
    return found[0]


_ID: Final = option("id", metavar="SUGGESTION", help="its id, or the beginning of it")
_ACTIONS: Final = {
    "list": action(_list, "show all skills, and how many tools have each"),
    "classify": action(
        _classify,
        "classify the tools of servers again, and wait",
        option("servers", metavar="SERVER", nargs="+", help="a server's name or id"),
    ),
    "suggestions": action(
        _suggestions,
        "show skills that are suggested",
        option("--all", action="store_true", help="also those that were decided"),
    ),
    "approve": action(_approve, "make a suggested skill, and give it to its tools", _ID),
    "reject": action(_reject, "do without a suggested skill", _ID),
}
