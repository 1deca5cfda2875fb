"""``mcp-junction tools``: lists, finds, calls and reviews the tools of a running service."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final
from urllib.parse import quote

from mcp_junction.cli.call import format_result, read_arguments
from mcp_junction.cli.options import make_parser
from mcp_junction.cli.printing import print_json, print_message, print_table, printable
from mcp_junction.cli.remote import SERVERS, ServiceClient, add_remote_options
from mcp_junction.cli.tool_settings import add_tool_actions, set_tool, show_tool
from mcp_junction.errors import RequestError, UsageError

TOOLS: Final = "/api/v1/aggregator/tools"
_SHORTEST: Final = 12
_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow"}


def _add_review_actions(actions: Any) -> list[argparse.ArgumentParser]:
    """Add the actions that review changed tools."""
    changes = actions.add_parser(
        "changes",
        help="show what changed in tools since they were pinned",
        description="Without NAME: every tool that is quarantined, flagged or changed."
        "\nWith NAME: what is different in that one, field by field.",
        epilog="examples:\n  mcp-junction tools changes\n  mcp-junction tools changes git.commit\n",
    )
    changes.add_argument("name", metavar="NAME", nargs="?", help="server.tool, or a tool's id")
    approve = actions.add_parser(
        "approve",
        help="pin a tool's definition, and let it be called",
        description="Shows what changed and asks; with --hash it does not ask. Refused if the tool"
        "\nhas changed again since its hash was shown.",
        epilog="examples:\n  mcp-junction tools approve git.commit\n"
        "  mcp-junction tools approve git.commit --hash 5df1f1b0c8e9\n",
    )
    block = actions.add_parser(
        "block",
        help="hide a tool until it is approved",
        description="It is neither listed nor called, whatever its definition, until somebody"
        "\napproves it. Shows what changed and asks; with --hash it does not ask.",
        epilog="example:\n  mcp-junction tools block git.commit\n",
    )
    for action in (approve, block):
        action.add_argument("name", metavar="NAME", help="server.tool, or a tool's id")
        action.add_argument(
            "--hash",
            metavar="H",
            help="hash of the definition, as `tools changes` shows it (at least its first"
            f" {_SHORTEST} characters); then nothing is asked",
        )
    return [changes, approve, block]


def _changes(args: argparse.Namespace, remote: ServiceClient) -> int:
    if args.name is not None:
        found = remote.get(_path(args.name, "changes"))
        if args.json:
            print_json(found)
        else:
            _print_review(found)
        return 0
    every = list(remote.pages(f"{TOOLS}/changes"))
    rows = [(one["name"], _state(one), "\n".join(one["flags"]), one["hash"][:12]) for one in every]
    headings = ("tool", "state", "why", "hash")
    return print_table(args, every, headings, rows, "Every tool is as it was pinned.")


def _decide(args: argparse.Namespace, remote: ServiceClient) -> int:
    """Approve or block a tool's definition."""
    what = args.action
    found = remote.get(_path(args.name, "changes"))
    if args.hash is None:
        _confirm(args, found, what)
    elif len(args.hash) < _SHORTEST:
        raise UsageError(f"--hash: give at least {_SHORTEST} characters of it")
    elif not found["hash"].startswith(args.hash.lower()):
        words = "the tool's definition has changed again; see: mcp-junction tools changes"
        raise RequestError("TOOL_CHANGED", f"{words} {args.name}", {"current_hash": found["hash"]})
    decided = remote.post(_path(found["id"], what), {"hash": found["hash"]})
    done = (
        "is approved, and can be called" if what == "approve" else "is blocked until it is approved"
    )
    print_message(args, decided, f"{printable(found['name'])} {done}")
    return 0


def _confirm(args: argparse.Namespace, found: dict[str, Any], what: str) -> None:
    """Show the definition and ask for confirmation. Raises UsageError without a terminal."""
    if args.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "there is no terminal to ask at: give --hash H, as shown by:"
            f" mcp-junction tools changes {args.name}"
        )
    _print_review(found)
    if input(f"{what.capitalize()} this definition? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was changed")


def _print_review(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(file=sys.stdout, emoji=False, highlight=False)
    console.print(f"[bold]{escape(printable(found['name']))}[/]: {_state(found)}", soft_wrap=True)
    for flag in found["flags"]:
        console.print(f"  [yellow]! {escape(printable(flag))}[/]", soft_wrap=True)
    for change in found["changes"]:
        line = printable(change["text"])
        colour = _COLOURS.get(line[:1], "default")
        console.print(f"  [{colour}]{escape(line)}[/]", soft_wrap=True)
    if not found["changes"]:
        console.print("  its definition is the one that is pinned")
    console.print(f"hash {found['hash']}", soft_wrap=True)


def _state(one: dict[str, Any]) -> str:
    if one["blocked"]:
        return "blocked"
    if one["quarantined"]:
        return "quarantined"
    if one["hash"] != one["pinned_hash"]:
        return "changed"
    return "flagged" if one["flags"] else "as it was pinned"


def _path(name: str, what: str) -> str:
    return f"{TOOLS}/{quote(name, safe='')}/{what}"


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction tools",
        "List, find, call, set, approve and block the tools of a running `mcp-junction serve`.",
        "examples:\n  mcp-junction tools list --server clock\n"
        "  mcp-junction tools search 'what time is it in Tokyo'\n"
        '  mcp-junction tools call arithmetic.evaluate \'{"expression": "6 * 7"}\'\n'
        "  mcp-junction tools set git.git_log idempotent=true timeout_ms=5000\n"
        "  mcp-junction tools changes                  # what waits for a decision\n"
        "  mcp-junction tools changes git.commit       # old and new, field by field\n"
        "  mcp-junction tools approve git.commit       # shows it, and asks\n",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show all tools, by server")
    listing.add_argument("--all", action="store_true", help="also tools that cannot be called now")
    listing.add_argument(
        "--schemas", action="store_true", help="with --json: the input schema of each"
    )
    search = actions.add_parser("search", help="find tools by what they are for")
    search.add_argument("query", metavar="QUERY", help="what you want to do, in a few words")
    search.add_argument(
        "--limit", type=int, default=10, metavar="N", help="at most so many (default: 10)"
    )
    search.add_argument(
        "--skill", metavar="SKILL", help="only tools with this skill, by id or name"
    )
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
        action.add_argument(
            "--server", metavar="NAME", help="only tools of this server, by name or id"
        )
        add_remote_options(action)
    for review in (*_add_review_actions(actions), *add_tool_actions(actions)):
        add_remote_options(review)
    args = parser.parse_args(argv)
    return _ACTIONS[args.action](args, ServiceClient.from_options(args))


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    chosen = {"include_unavailable": args.all, "include_schemas": args.schemas}
    groups = list(remote.pages(TOOLS, server=args.server, **chosen))
    tools = [tool for group in groups for tool in group["tools"]]
    rows = [(tool["name"], _first_line(tool["description"])) for tool in tools]
    empty = "" if tools or args.json else _explain_nothing(remote)
    return print_table(args, tools, ("tool", ""), rows, empty)


def _explain_nothing(remote: ServiceClient) -> str:
    """Say why no tools are listed; to an agent, who is told nothing hidden, what to ask for."""
    try:
        remote.get(SERVERS, limit=1)
    except RequestError:  # who may not look at servers is an agent
        return (
            "There are no tools that this key may use. Ask the operator for a grant of what you"
            " need: mcp-junction grants add AGENT SERVER.TOOL"
        )
    return "There are no tools yet; see: mcp-junction servers list"


def _search(args: argparse.Namespace, remote: ServiceClient) -> int:
    filters = {"server_filter": args.server, "skill_filter": args.skill}
    body = {"query": args.query, "limit": args.limit}
    body |= {name: [one] for name, one in filters.items() if one}
    found = remote.post("/api/v1/search", body)
    rows = [
        (tool["name"], f"{tool['score']:.2f}", _first_line(tool["description"]))
        for tool in found["tools"]
    ]
    total = found["metadata"]["total_tools_searched"]
    empty = f"None of {total} tools fits; try other words."
    return print_table(args, found, ("tool", "score", ""), rows, empty)


def _call(args: argparse.Namespace, remote: ServiceClient) -> int:
    arguments = read_arguments(args.arguments)
    head = {"name": args.name} | ({"server_id": args.server} if args.server else {})
    # The arguments go as they were written, not as we would write them.
    body = json.dumps(head).encode()[:-1] + b', "arguments": ' + arguments + b"}"
    result = remote.post("/api/v1/tools/call", body)
    shown = {name: value for name, value in result.items() if name != "metadata"}
    print_message(args, result, format_result(shown))
    return 1 if result.get("isError") else 0


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


_ACTIONS: Final = {
    "list": _list,
    "search": _search,
    "call": _call,
    "changes": _changes,
    "approve": _decide,
    "block": _decide,
    "show": show_tool,
    "set": set_tool,
}
