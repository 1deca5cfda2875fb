"""``mcp-junction webhook``: shows what the webhook was told; retries what was given up."""

from __future__ import annotations

import argparse
from typing import Any, Final
from urllib.parse import quote

from mcp_junction.cli.durations import format_moment
from mcp_junction.cli.options import make_parser
from mcp_junction.cli.printing import print_json, print_table, printable
from mcp_junction.cli.remote import ServiceClient, add_remote_options
from mcp_junction.errors import UsageError

WEBHOOK: Final = "/api/v1/mcp/webhook"
_HEADINGS: Final = ("id", "happened", "event", "attempts", "why")


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction webhook",
        "Show what the webhook of a running `mcp-junction serve` was told of escalations and"
        "\napprovals, and which deliveries were given up after all attempts; deliver those again.",
        "examples:\n  mcp-junction webhook\n  mcp-junction webhook retry evt_17\n",
    )
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", choices=("list", "retry"), default="list",
        help="list (default), or retry",
    )  # fmt: skip
    parser.add_argument("ids", metavar="ID", nargs="*", help="the deliveries to make once more")
    add_remote_options(parser)
    args = parser.parse_args(argv)
    if args.action == "retry" and not args.ids:
        raise UsageError("webhook retry: give the id of a delivery, as the list shows it")
    remote = ServiceClient.from_options(args)
    return _retry(args, remote) if args.action == "retry" else _list(args, remote)


def _retry(args: argparse.Namespace, remote: ServiceClient) -> int:
    for one in args.ids:
        remote.post(f"{WEBHOOK}/{quote(one, safe='')}/retry", None)
        print(f"Delivery {printable(one)} is made once more.")
    return 0


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = remote.get(WEBHOOK)
    if args.json:
        print_json(found)
        return 0
    counts = f"{found['delivered']} delivered, {found['waiting']} waiting, {found['failed']} failed"
    print(f"{found['url']}: {counts}")
    dead = found["dead"]
    return print_table(args, dead, _HEADINGS, map(_row, dead), "Nothing was given up.")


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["id"], format_moment(one["at"]), one["type"], one["attempts"], one["why"]
