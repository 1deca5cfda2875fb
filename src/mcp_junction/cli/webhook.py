"""``mcp-junction webhook``: shows what the webhook was told, and which deliveries were given up."""

from __future__ import annotations

from typing import Any, Final

from mcp_junction.cli.durations import format_moment
from mcp_junction.cli.options import make_parser
from mcp_junction.cli.printing import print_json, print_table
from mcp_junction.cli.remote import ServiceClient, add_remote_options

WEBHOOK: Final = "/api/v1/mcp/webhook"
_HEADINGS: Final = ("id", "happened", "event", "attempts", "why")


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction webhook",
        "Show what the webhook of a running `mcp-junction serve` was told of escalations and"
        "\napprovals, and which deliveries were given up after all attempts.",
        "examples:\n  mcp-junction webhook\n  mcp-junction webhook --json\n",
    )
    add_remote_options(parser)
    args = parser.parse_args(argv)
    found = ServiceClient.from_options(args).get(WEBHOOK)
    if args.json:
        print_json(found)
        return 0
    counts = f"{found['delivered']} delivered, {found['waiting']} waiting, {found['failed']} failed"
    print(f"{found['url']}: {counts}")
    dead = found["dead"]
    return print_table(args, dead, _HEADINGS, map(_row, dead), "Nothing was given up.")


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["id"], format_moment(one["at"]), one["type"], one["attempts"], one["why"]
