"""``mcp-junction escalations``: shows calls whose retries and fallbacks have all failed."""

from __future__ import annotations

import argparse
from typing import Any, Final

from mcp_junction.cli.options import make_parser, option
from mcp_junction.cli.printing import print_message, print_table, printable
from mcp_junction.cli.remote import ServiceClient, path_to, run_listing
from mcp_junction.cli.values import format_moment, name_target

ESCALATIONS: Final = "/api/v1/mcp/escalations"


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction escalations",
        "Show the calls of a running `mcp-junction serve` for which every retry and fallback has"
        "\nfailed, and acknowledge those that somebody has taken care of.",
        "examples:\n  mcp-junction escalations\n  mcp-junction escalations --all\n"
        "  mcp-junction escalations acknowledge 7d0a31 --note 'the server was moved'\n",
        option("--note", metavar="TEXT", help="what was done about it"),
        option("--all", action="store_true", help="also those that were acknowledged"),
    )
    ids = ("ID", "the escalations to acknowledge")
    return run_listing(parser, argv, _ACTIONS, ids, "give the id of one, as the list shows it")


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
    done = [remote.post(path_to(ESCALATIONS, one, "acknowledge"), body) for one in args.ids]
    lines = (f"Escalation {printable(one)} is acknowledged." for one in args.ids)
    return print_message(args, done, *lines)


_ACTIONS: Final = {"list": _list, "acknowledge": _acknowledge}
