"""``mcp-junction tools list|search|call|changes|approve|block``: a running service's tools."""

from __future__ import annotations

import argparse
import json

from mcp_junction.cli.call import read_arguments, readable
from mcp_junction.cli.options import parser
from mcp_junction.cli.printing import print_json, print_table
from mcp_junction.cli.remote import Remote, add_remote_options
from mcp_junction.cli.review import REVIEW_ACTIONS, add_review_actions


def run(argv: list[str]) -> int:
    options = parser(
        "mcp-junction tools",
        "List, find, call, approve and block the tools of a running `mcp-junction serve`.",
        "examples:\n  mcp-junction tools list --server clock\n"
        "  mcp-junction tools search 'what time is it in Tokyo'\n"
        '  mcp-junction tools call arithmetic.evaluate \'{"expression": "6 * 7"}\'\n'
        "  mcp-junction tools changes                  # what waits for a decision\n"
        "  mcp-junction tools changes git.commit       # old and new, field by field\n"
        "  mcp-junction tools approve git.commit       # shows it, and asks\n",
    )
    actions = options.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show all tools, by server")
    listing.add_argument("--all", action="store_true", help="also those that cannot be called now")
    listing.add_argument("--schemas", action="store_true", help="with --json: what each one takes")
    search = actions.add_parser("search", help="find tools by what they are for")
    search.add_argument("query", metavar="QUERY", help="what you want to do, in a few words")
    search.add_argument("--limit", type=int, default=10, metavar="N", help="at most (default: 10)")
    search.add_argument("--skill", metavar="SKILL", help="only what has this skill; its id or name")
    call = actions.add_parser(
        "call",
        help="call a tool and print its result",
        description="Exit code 1 if the call failed or the tool says that it did.",
    )
    call.add_argument("name", metavar="NAME", help="server.tool, or a tool's own name")
    call.add_argument(
        "arguments", metavar="JSON", nargs="?", default="{}", help="its arguments; - reads stdin"
    )
    for action in (listing, search, call):
        action.add_argument("--server", metavar="NAME", help="only this server's; its name or id")
        add_remote_options(action)
    for review in add_review_actions(actions):
        add_remote_options(review)
    given = options.parse_args(argv)
    acts = {"list": _list, "search": _search, "call": _call, **REVIEW_ACTIONS}
    return acts[given.action](given, Remote.of(given))


def _list(given: argparse.Namespace, remote: Remote) -> int:
    path = "/api/v1/aggregator/tools"
    chosen = {"include_unavailable": given.all, "include_schemas": given.schemas}
    groups = list(remote.pages(path, server=given.server, **chosen))
    tools = [tool for group in groups for tool in group["tools"]]
    if given.json:
        print_json(tools)
        return 0
    rows = [(tool["name"], _first_line(tool["description"])) for tool in tools]
    print_table(("tool", ""), rows, "There are no tools yet; see: mcp-junction servers list")
    return 0


def _search(given: argparse.Namespace, remote: Remote) -> int:
    filters = {"server_filter": given.server, "skill_filter": given.skill}
    body = {"query": given.query, "limit": given.limit}
    body |= {name: [one] for name, one in filters.items() if one}
    found = remote.post("/api/v1/search", body)
    if given.json:
        print_json(found)
        return 0
    rows = [
        (tool["name"], f"{tool['score']:.2f}", _first_line(tool["description"]))
        for tool in found["tools"]
    ]
    total = found["metadata"]["total_tools_searched"]
    print_table(("tool", "score", ""), rows, f"None of {total} tools fits; try other words.")
    return 0


def _call(given: argparse.Namespace, remote: Remote) -> int:
    arguments = read_arguments(given.arguments)
    head = {"name": given.name} | ({"server_id": given.server} if given.server else {})
    # The arguments go as they were written, not as we would write them.
    body = json.dumps(head).encode()[:-1] + b', "arguments": ' + arguments + b"}"
    result = remote.post("/api/v1/tools/call", body)
    if given.json:
        print_json(result)
    else:
        result.pop("metadata", None)
        print(readable(result))
    return 1 if result.get("isError") else 0


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
