"""``mcp-junction approvals``: shows calls that wait for a person, and approves or denies them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Final

from mcp_junction.cli.options import make_parser, option
from mcp_junction.cli.printing import do_each, make_table, print_json, print_table, printable
from mcp_junction.cli.remote import ServiceClient, path_to, run_listing
from mcp_junction.cli.values import format_moment, name_target

APPROVALS: Final = "/api/v1/mcp/approvals"
_HEADINGS: Final = ("id", "state", "agent", "tool", "arguments", "why risky", "until")
_EMPTY: Final = "No call waits for anybody."
_EVERY: Final = 1.0
"""Seconds between looks at what waits."""


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction approvals",
        "Show the high-risk calls at a running `mcp-junction serve` that wait for a person, because"
        "\ntheir grant has the token mode approval; approve or deny them.",
        "examples:\n  mcp-junction approvals\n  mcp-junction approvals watch\n"
        "  mcp-junction approvals approve 7d0a31c2 --note 'seen with Ann'\n"
        "  mcp-junction approvals deny 7d0a31c2\n",
        option("--note", metavar="TEXT", help="why; whoever made the call is told"),
        option("--all", action="store_true", help="also those that were decided about"),
    )
    ids = ("ID", "the calls to decide about")
    return run_listing(parser, argv, _ACTIONS, ids, "give the id of a call, as the list shows it")


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = _read(args, remote)
    return print_table(args, found, _HEADINGS, map(_row, found), _EMPTY)


def _read(args: argparse.Namespace, remote: ServiceClient) -> list[dict[str, Any]]:
    return list(remote.array(APPROVALS, pending=not args.all))


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    agent, asked_by = one["agent_id"], one["asked_by"]
    return (
        one["id"],
        one["state"],
        agent if agent == asked_by else f"{agent}, by {asked_by}",
        name_target(one),
        one["preview"],
        one["risk"],
        format_moment(one["expires_at"]),
    )


def _decide(args: argparse.Namespace, remote: ServiceClient) -> int:
    body = {"note": args.note} if args.note else None
    return do_each(
        args,
        args.ids,
        lambda one: remote.post(path_to(APPROVALS, one, args.action), body),
        _describe_decision,
    )


def _describe_decision(_: str, one: dict[str, Any]) -> str:
    what = printable(f"{one['agent_id']} calls {name_target(one)}")
    then = " The same call passes once now." if one["state"] == "approved" else ""
    return f"{one['id']}: {one['state']}: {what}.{then}"


def _reveal(args: argparse.Namespace, remote: ServiceClient) -> int:
    print_json([remote.post(path_to(APPROVALS, one, "reveal")) for one in args.ids])
    return 0


def _watch(args: argparse.Namespace, remote: ServiceClient) -> int:
    """Show what waits, in a table that follows it, until it is interrupted."""
    if args.json:
        return _watch_as_json(args, remote)
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout, emoji=False, highlight=False)
    try:
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while True:
                live.update(_make_table(_read(args, remote)), refresh=True)
                time.sleep(_EVERY)
    except KeyboardInterrupt:
        return 0


def _watch_as_json(args: argparse.Namespace, remote: ServiceClient) -> int:
    """Print what waits, as a line of JSON whenever that is something else."""
    shown = None
    try:
        while True:
            found = _read(args, remote)
            if found != shown:
                print(json.dumps(found, ensure_ascii=False), flush=True)
                shown = found
            time.sleep(_EVERY)
    except KeyboardInterrupt:
        return 0


def _make_table(found: list[dict[str, Any]]) -> Any:
    if not found:
        return f"{_EMPTY} Ctrl-C ends."
    caption = "mcp-junction approvals approve|deny ID; Ctrl-C ends"
    return make_table(_HEADINGS, map(_row, found), caption)


_ACTIONS: Final = {
    "list": _list,
    "approve": _decide,
    "deny": _decide,
    "reveal": _reveal,
    "watch": _watch,
}
