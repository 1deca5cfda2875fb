"""``mcp-junction skills list``: shows the skills that tools of a running service have."""

from __future__ import annotations

from mcp_junction.cli.options import make_parser
from mcp_junction.cli.printing import print_table
from mcp_junction.cli.remote import ServiceClient, add_remote_options


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction skills",
        "Show the skills by which a running `mcp-junction serve` classifies its tools.",
        "examples:\n  mcp-junction skills list\n"
        "  mcp-junction tools search 'send a message' --skill communication\n",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show all skills, and how many tools have each")
    add_remote_options(listing)
    args = parser.parse_args(argv)
    skills = list(ServiceClient.from_options(args).pages("/api/v1/skills"))
    rows = [
        (skill["id"], skill["name"], skill["tool_count"], skill["description"]) for skill in skills
    ]
    return print_table(args, skills, ("id", "name", "tools", ""), rows, "There are no skills.")
