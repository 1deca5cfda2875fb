"""``mcp-junction escalations``: shows calls whose retries and fallbacks have all failed."""

from __future__ import annotations

import argparse
from typing import Any, Final
from urllib.parse import quote

from mcp_junction.cli.durations import format_moment
from mcp_junction.cli.options import make_parser
from mcp_junction.cli.printing import print_json, print_table, printable
from mcp_junction.cli.remote import ServiceClient, add_remote_options
from mcp_junction.cli.targets import name_target
from mcp_junction.errors import UsageError

ESCALATIONS: Final = "/api/v1/mcp/escalations"


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction escalations",
        "Show the calls of a running `mcp-junction serve` for which every retry and fallback has"
        "\nfailed, and acknowledge those that somebody has taken care of.",
        "examples:\n  mcp-junction escalations\n  mcp-junction escalations --all\n"
        "  mcp-junction escalations acknowledge 7d0a31 --note 'the server was moved'\n",
    )
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", choices=("list", "acknowledge"), default="list",
        help="list (default), or acknowledge",
    )  # fmt: skip
    parser.add_argument("ids", metavar="ID", nargs="*", help="the escalations to acknowledge")
    parser.add_argument("--note", metavar="TEXT", help="what was done about it")
    parser.add_argument("--all", action="store_true", help="also those that were acknowledged")
    add_remote_options(parser)
    args = parser.parse_args(argv)
    if args.action == "acknowledge" and not args.ids:
        raise UsageError("escalations acknowledge: give the id of one, as the list shows it")
    remote = ServiceClient.from_options(args)
    return _acknowledge(args, remote) if args.action == "acknowledge" else _list(args, remote)


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = list(remote.array(ESCALATIONS, acknowledged=None if args.all else False))
    headings = ("id", "last", "agent", "tool", "calls", "why", "delivery", "acknowledged")
    return print_table(args, found, headings, map(_row, found), "Nothing waits for anybody.")


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    return (
        one["id"],
        format_moment(one["last_at"]),
        one["agent_id"],
        name_target(one),
        one["count"],
        f"{one['failure']}: {one['message']}",
        one["delivery"],
        one["acknowledged_by"],
    )


def _acknowledge(args: argparse.Namespace, remote: ServiceClient) -> int:
    body = {"note": args.note} if args.note else None
    done = [
        remote.post(f"{ESCALATIONS}/{quote(one, safe='')}/acknowledge", body) for one in args.ids
    ]
    if args.json:
        print_json(done)
        return 0
    for one in args.ids:
        print(f"Escalation {printable(one)} is acknowledged.")
    return 0
