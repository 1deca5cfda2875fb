"""``mcp-junction skills list``: what the tools of a running service are good for."""

from __future__ import annotations

from mcp_junction.cli.options import parser
from mcp_junction.cli.printing import print_json, print_table
from mcp_junction.cli.remote import Remote, add_remote_options


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction skills",
        "Show what the tools of a running `mcp-junction serve` are good for.",
        "examples:\n  mcp-junction skills list\n"
        "  mcp-junction tools search 'send a message' --skill communication\n",
    )
    actions = options.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show all skills, and how many tools have each")
    add_remote_options(listing)
    given = options.parse_args(argv)
    skills = list(Remote.of(given).pages("/api/v1/skills"))
    if given.json:
        print_json(skills)
        return 0
    rows = [
        (skill["id"], skill["name"], skill["tool_count"], skill["description"]) for skill in skills
    ]
    print_table(("id", "name", "tools", ""), rows, "There are no skills.")
    return 0
