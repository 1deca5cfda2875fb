"""``mcp-junction state``: how a running service stands."""

from __future__ import annotations

from mcp_junction.cli.options import parser
from mcp_junction.cli.printing import print_json, print_table
from mcp_junction.cli.remote import Remote, add_remote_options


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction state",
        "Show how many servers and tools a running `mcp-junction serve` has, and how they stand."
        "\nExit code 1 if a server is in ERROR.",
    )
    add_remote_options(options)
    given = options.parse_args(argv)
    found = Remote.of(given).get("/api/v1/aggregator/state")
    if given.json:
        print_json(found)
    else:
        print_table(("", ""), [(name.replace("_", " "), one) for name, one in found.items()], "")
    return 1 if found["error_servers"] else 0
