"""``mcp-junction approvals``: shows calls that wait for a person, and approves or denies them."""

from __future__ import annotations

import argparse
import time
from typing import Any, Final
from urllib.parse import quote

from mcp_junction.cli.durations import format_moment
from mcp_junction.cli.options import make_parser
from mcp_junction.cli.printing import print_json, print_table, printable
from mcp_junction.cli.remote import ServiceClient, add_remote_options
from mcp_junction.cli.targets import name_target
from mcp_junction.errors import UsageError

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
    )
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", choices=tuple(_ACTIONS), default="list",
        help="list (default), approve, deny, reveal, or watch",
    )  # fmt: skip
    parser.add_argument("ids", metavar="ID", nargs="*", help="the calls to decide about")
    parser.add_argument("--note", metavar="TEXT", help="why; whoever made the call is told")
    parser.add_argument("--all", action="store_true", help="also those that were decided about")
    add_remote_options(parser)
    args = parser.parse_args(argv)
    needs_ids = args.action in ("approve", "deny", "reveal")
    if needs_ids and not args.ids:
        raise UsageError(f"approvals {args.action}: give the id of a call, as the list shows it")
    return _ACTIONS[args.action](args, ServiceClient.from_options(args))


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = _read(args, remote)
    return print_table(args, found, _HEADINGS, map(_row, found), _EMPTY)


def _read(args: argparse.Namespace, remote: ServiceClient) -> list[dict[str, Any]]:
    return list(remote.array(APPROVALS, pending=not args.all))


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    return (
        one["id"],
        one["state"],
        one["agent_id"] if one["agent_id"] == one["asked_by"] else _name_both(one),
        name_target(one),
        one["preview"],
        one["risk"],
        format_moment(one["expires_at"]),
    )


def _name_both(one: dict[str, Any]) -> str:
    return f"{one['agent_id']}, by {one['asked_by']}"


def _decide(args: argparse.Namespace, remote: ServiceClient) -> int:
    body = {"note": args.note} if args.note else None
    done = [remote.post(f"{_path(one)}/{args.action}", body) for one in args.ids]
    if args.json:
        print_json(done)
        return 0
    for one in done:
        what = printable(f"{one['agent_id']} calls {name_target(one)}")
        then = " The same call passes once now." if one["state"] == "approved" else ""
        print(f"{one['id']}: {one['state']}: {what}.{then}")
    return 0


def _reveal(args: argparse.Namespace, remote: ServiceClient) -> int:
    print_json([remote.post(f"{_path(one)}/reveal") for one in args.ids])
    return 0


def _watch(args: argparse.Namespace, remote: ServiceClient) -> int:
    """Show what waits, in a table that follows it, until it is interrupted."""
    import sys

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


def _make_table(found: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    if not found:
        return Text(f"{_EMPTY} Ctrl-C ends.")
    table = Table(*_HEADINGS, caption="mcp-junction approvals approve|deny ID; Ctrl-C ends")
    for one in found:
        table.add_row(*(Text(printable(str(cell))) for cell in _row(one)))
    return table


def _path(approval_id: str) -> str:
    return f"{APPROVALS}/{quote(approval_id, safe='')}"


_ACTIONS: Final = {
    "list": _list,
    "approve": _decide,
    "deny": _decide,
    "reveal": _reveal,
    "watch": _watch,
}
