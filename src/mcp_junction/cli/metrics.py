"""``mcp-junction metrics``: shows how many calls there were, how they ended, and their latency."""

from __future__ import annotations

import argparse
from typing import Any, Final

from mcp_junction.cli.options import make_parser, option
from mcp_junction.cli.printing import print_json, print_table, printable
from mcp_junction.cli.remote import ServiceClient, add_remote_options

METRICS: Final = "/api/v1/mcp/metrics"
_HEADINGS: Final = ("tool", "calls", "errors", "", "p50", "p95", "p99", "retries", "fallbacks")
_SELDOM: Final = 2
"""Columns at the end that are left out while they are empty."""


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction metrics",
        "Show how many calls a running `mcp-junction serve` has had in a time, by tool, the busiest"
        "\nfirst; how they ended, and how long they took, in milliseconds.",
        "examples:\n  mcp-junction metrics\n  mcp-junction metrics --range 24h --server git\n"
        "  mcp-junction metrics --range 2027-01-31T10:00Z/2027-01-31T12:00Z --json\n",
        option("--server", metavar="NAME", help="only this server, by name or id"),
        option("--tool", metavar="NAME", help="only tools with this name of their own"),
        option(
            "--range",
            metavar="TIME",
            default="1h",
            help="15m, 1h (default), 24h, 7d, or two times: FROM/TO",
        ),
        add_remote_options,
    )
    args = parser.parse_args(argv)
    query = {"server_id": args.server, "tool_name": args.tool, "time_range": args.range}
    found = ServiceClient.from_options(args).get(METRICS, **query)
    return _print(args, found)


def _print(args: argparse.Namespace, found: dict[str, Any]) -> int:
    if args.json:
        print_json(found)
        return 0
    rows = [_row(_name(one), one) for one in found["tools"]]
    if len(rows) > 1:
        rows.append(_row("all", found))
    empty = f"There were no calls from {found['since']} to {found['until']}."
    shown = len(_HEADINGS) if any(any(row[-_SELDOM:]) for row in rows) else -_SELDOM
    print_table(args, found, _HEADINGS[:shown], [row[:shown] for row in rows], empty)
    if found["open_circuits"]:
        circuits = ", ".join(map(printable, found["open_circuits"]))
        print(f"Open circuits: {circuits}; see: mcp-junction breakers")
    return 0


def _name(one: dict[str, Any]) -> str:
    return f"{one['server_id']}.{one['tool_name']}" if one["server_id"] else one["tool_name"]


def _row(name: str, one: dict[str, Any]) -> tuple[Any, ...]:
    from rich.text import Text

    failed = sum(one["errors"].values())
    return (
        name,
        one["calls"],
        Text(f"{one['error_rate']:.1%}" if failed else "", "red"),
        "\n".join(f"{kind} {count}" for kind, count in one["errors"].items()),
        *(_round(one[share]) for share in ("p50_ms", "p95_ms", "p99_ms")),
        one["retries"] or "",
        one["fallbacks"] or "",
    )


def _round(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
