"""``mcp-junction state``: counts the servers and tools of a running service."""

from __future__ import annotations

from mcp_junction.cli.options import make_parser
from mcp_junction.cli.printing import print_table
from mcp_junction.cli.remote import ServiceClient, add_remote_options


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction state",
        "Show how many servers and tools a running `mcp-junction serve` has, by state."
        "\nExit code 1 if a server is in ERROR.",
        "examples:\n  mcp-junction state\n"
        "  mcp-junction state --url http://127.0.0.1:8421 --json\n",
        add_remote_options,
    )
    args = parser.parse_args(argv)
    found = ServiceClient.from_options(args).get("/api/v1/aggregator/state")
    rows = [(name.replace("_", " "), one) for name, one in found.items()]
    print_table(args, found, ("", ""), rows)
    return 1 if found["error_servers"] else 0
