"""``mcp-junction tools list|search|call|changes|approve|block``: a running service's tools."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from mcp_junction.cli.call import read_arguments, readable
from mcp_junction.cli.options import parser
from mcp_junction.cli.printing import print_json, print_table, printable
from mcp_junction.cli.remote import Remote, add_remote_options
from mcp_junction.errors import RequestError, UsageError

TOOLS: Final = "/api/v1/aggregator/tools"
_SHORTEST: Final = 12
_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow"}


def add_review_actions(actions: Any) -> list[argparse.ArgumentParser]:
    """Add the three actions to those of a command."""
    changes = actions.add_parser(
        "changes",
        help="show what changed in tools since they were pinned",
        description="Without NAME: every tool that is quarantined, flagged or changed."
        "\nWith NAME: what is different in that one, field by field.",
        epilog="examples:\n  mcp-junction tools changes\n  mcp-junction tools changes git.commit\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    changes.add_argument("name", metavar="NAME", nargs="?", help="server.tool, or a tool's id")
    approve = actions.add_parser(
        "approve",
        help="pin a tool's definition, and let it be called",
        description="Shows what changed and asks; with --hash it does not ask. Refused if the tool"
        "\nhas changed again since its hash was shown.",
        epilog="examples:\n  mcp-junction tools approve git.commit\n"
        "  mcp-junction tools approve git.commit --hash 5df1f1b0c8e9\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    block = actions.add_parser(
        "block",
        help="keep a tool out until it is approved",
        description="It is neither listed nor called, whatever its definition, until somebody"
        "\napproves it. Shows what changed and asks; with --hash it does not ask.",
        epilog="example:\n  mcp-junction tools block git.commit\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
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


def _changes(given: argparse.Namespace, remote: Remote) -> int:
    if given.name is not None:
        found = remote.get(_path(given.name, "changes"))
        if given.json:
            print_json(found)
        else:
            _print_review(found)
        return 0
    every = list(remote.pages(f"{TOOLS}/changes"))
    if given.json:
        print_json(every)
        return 0
    rows = [(one["name"], _state(one), "\n".join(one["flags"]), one["hash"][:12]) for one in every]
    print_table(("tool", "state", "why", "hash"), rows, "Every tool is as it was pinned.")
    return 0


def _approve(given: argparse.Namespace, remote: Remote) -> int:
    return _decide(given, remote, "approve", "is approved, and can be called")


def _block(given: argparse.Namespace, remote: Remote) -> int:
    return _decide(given, remote, "block", "is blocked until it is approved")


REVIEW_ACTIONS: Final[dict[str, Callable[[argparse.Namespace, Remote], int]]] = {
    "changes": _changes,
    "approve": _approve,
    "block": _block,
}


def _decide(given: argparse.Namespace, remote: Remote, what: str, done: str) -> int:
    found = remote.get(_path(given.name, "changes"))
    if given.hash is None:
        _confirm(given, found, what)
    elif len(given.hash) < _SHORTEST:
        raise UsageError(f"--hash: give at least {_SHORTEST} characters of it")
    elif not found["hash"].startswith(given.hash.lower()):
        words = "the tool's definition has changed again; see: mcp-junction tools changes"
        raise RequestError("TOOL_CHANGED", f"{words} {given.name}", {"current_hash": found["hash"]})
    decided = remote.post(_path(found["id"], what), {"hash": found["hash"]})
    if given.json:
        print_json(decided)
    else:
        print(f"{printable(found['name'])} {done}")
    return 0


def _confirm(given: argparse.Namespace, found: dict[str, Any], what: str) -> None:
    """Show what is decided about, and ask. Raises UsageError where nobody can be asked."""
    if given.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "there is no terminal to ask at: give --hash H, as shown by:"
            f" mcp-junction tools changes {given.name}"
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
