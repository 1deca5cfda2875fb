"""``mcp-junction tools``: lists, finds, calls, sets and reviews the tools of a running service."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

from mcp_junction.cli.options import action, make_parser, option
from mcp_junction.cli.printing import (
    format_result,
    print_message,
    print_table,
    print_value,
    print_warnings,
    printable,
)
from mcp_junction.cli.remote import SERVERS, ServiceClient, path_to, run_action
from mcp_junction.cli.values import name_target, read_arguments, read_targets
from mcp_junction.errors import RequestError, UsageError

TOOLS: Final = "/api/v1/aggregator/tools"
MCP_TOOLS: Final = "/api/v1/mcp/tools"
_SHORTEST: Final = 12
_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow"}
_SHOWN: Final = (
    "version", "enabled", "reason", "risk", "risk_reason", "breaker", "description"
)  # fmt: skip
_FALLBACKS: Final = "fallbacks"
_FLAGS: Final = ("enabled", "read_only", "idempotent")
_NUMBERS: Final = ("timeout_ms",)
_RISK: Final = "risk"
_RISKS: Final = ("high", "low")
_TEXTS: Final = (_RISK, "versions")
_SETTABLE: Final = (*_FLAGS, *_TEXTS, *_NUMBERS, _FALLBACKS)


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
    return run_action(parser, argv, _ACTIONS)


# -- finding and calling


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


# -- what holds for a tool


def _show(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = remote.get(_setting_path(args, remote))
    rows = [("tool", name_target(found))]
    rows += [(name, _write(found[name])) for name in _SHOWN if found.get(name) not in (None, "")]
    rows += [("flags", "\n".join(found["flags"]))] if found.get("flags") else []
    chosen = found.get("settings") or {}
    rows += [(f"set: {name}", _write(value)) for name, value in chosen.items() if _is_set(value)]
    return print_table(args, found, ("", ""), rows)


def _set(args: argparse.Namespace, remote: ServiceClient) -> int:
    path = _setting_path(args, remote)
    found = remote.patch(path, dict(_read_pair(pair, remote) for pair in args.pairs))
    print_warnings(found)
    chosen = {name: value for name, value in found.items() if name in _SETTABLE}
    rows = [(name, _write(value)) for name, value in chosen.items() if _is_set(value)]
    return print_table(args, found, (args.name, ""), rows, f"Nothing is set for {args.name}.")


def _setting_path(args: argparse.Namespace, remote: ServiceClient) -> str:
    (target,) = read_targets(remote, [args.name])
    return path_to(MCP_TOOLS, target.server_id, target.tool_name)


def _read_pair(pair: str, remote: ServiceClient) -> tuple[str, Any]:
    """Read KEY=VALUE. Raises UsageError that says what it must be."""
    name, equals, text = pair.partition("=")
    if name not in _SETTABLE or not equals:
        raise UsageError(f"{pair!r} must be KEY=VALUE, with a key of {', '.join(_SETTABLE)}")
    if not text:
        return name, None
    if name == _FALLBACKS:
        targets = read_targets(remote, [one.strip() for one in text.split(",")])
        return name, [{"server_id": one.server_id, "tool_name": one.tool_name} for one in targets]
    if name == _RISK and text not in _RISKS:
        raise UsageError(f"{pair!r}: risk must be {' or '.join(_RISKS)}")
    if name in _TEXTS:
        return name, text
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if type(value) is not (bool if name in _FLAGS else int):
        wanted = "true or false" if name in _FLAGS else "a whole number"
        raise UsageError(f"{pair!r}: {name} must be {wanted}")
    return name, value


def _is_set(value: Any) -> bool:
    return value is not None and value != []


def _write(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(name_target(one) if isinstance(one, dict) else str(one) for one in value)
    return value if isinstance(value, str) else json.dumps(value)


# -- reviewing changed definitions


def _changes(args: argparse.Namespace, remote: ServiceClient) -> int:
    if args.name is not None:
        found = remote.get(path_to(TOOLS, args.name, "changes"))
        return print_value(args, found, _print_review)
    every = list(remote.pages(f"{TOOLS}/changes"))
    rows = [(one["name"], _state(one), "\n".join(one["flags"]), one["hash"][:12]) for one in every]
    headings = ("tool", "state", "why", "hash")
    return print_table(args, every, headings, rows, "Every tool is as it was pinned.")


def _decide(args: argparse.Namespace, remote: ServiceClient) -> int:
    """Approve or block a tool's definition."""
    what = args.action_name
    found = remote.get(path_to(TOOLS, args.name, "changes"))
    if args.hash is None:
        _confirm(args, found, what)
    elif len(args.hash) < _SHORTEST:
        raise UsageError(f"--hash: give at least {_SHORTEST} characters of it")
    elif not found["hash"].startswith(args.hash.lower()):
        words = "the tool's definition has changed again; see: mcp-junction tools changes"
        raise RequestError("TOOL_CHANGED", f"{words} {args.name}", {"current_hash": found["hash"]})
    decided = remote.post(path_to(TOOLS, found["id"], what), {"hash": found["hash"]})
    done = (
        "is approved, and can be called" if what == "approve" else "is blocked until it is approved"
    )
    return print_message(args, decided, f"{printable(found['name'])} {done}")


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


_SERVER: Final = option("--server", metavar="NAME", help="only tools of this server, by name or id")
_REVIEWED: Final = (
    option("name", metavar="NAME", help="server.tool, or a tool's id"),
    option(
        "--hash",
        metavar="H",
        help="hash of the definition, as `tools changes` shows it (at least its first"
        f" {_SHORTEST} characters); then nothing is asked",
    ),
)
_NAME: Final = option("name", metavar="NAME", help="server.tool")
_ACTIONS: Final = {
    "list": action(
        _list,
        "show all tools, by server",
        option("--all", action="store_true", help="also tools that cannot be called now"),
        option("--schemas", action="store_true", help="with --json: the input schema of each"),
        _SERVER,
    ),
    "search": action(
        _search,
        "find tools by what they are for",
        option("query", metavar="QUERY", help="what you want to do, in a few words"),
        option("--limit", type=int, default=10, metavar="N", help="at most so many (default: 10)"),
        option("--skill", metavar="SKILL", help="only tools with this skill, by id or name"),
        _SERVER,
    ),
    "call": action(
        _call,
        "call a tool and print its result",
        option("name", metavar="NAME", help="server.tool, or a tool's own name"),
        option(
            "arguments",
            metavar="JSON",
            nargs="?",
            default="{}",
            help="its arguments; - reads stdin",
        ),
        _SERVER,
        description="Exit code 1 if the call failed or the tool says that it did.",
    ),
    "changes": action(
        _changes,
        "show what changed in tools since they were pinned",
        option("name", metavar="NAME", nargs="?", help="server.tool, or a tool's id"),
        description="Without NAME: every tool that is quarantined, flagged or changed."
        "\nWith NAME: what is different in that one, field by field.",
        epilog="examples:\n  mcp-junction tools changes\n  mcp-junction tools changes git.commit\n",
    ),
    "approve": action(
        _decide,
        "pin a tool's definition, and let it be called",
        *_REVIEWED,
        description="Shows what changed and asks; with --hash it does not ask. Refused if the tool"
        "\nhas changed again since its hash was shown.",
        epilog="examples:\n  mcp-junction tools approve git.commit\n"
        "  mcp-junction tools approve git.commit --hash 5df1f1b0c8e9\n",
    ),
    "block": action(
        _decide,
        "hide a tool until it is approved",
        *_REVIEWED,
        description="It is neither listed nor called, whatever its definition, until somebody"
        "\napproves it. Shows what changed and asks; with --hash it does not ask.",
        epilog="example:\n  mcp-junction tools block git.commit\n",
    ),
    "show": action(_show, "show what holds for a tool: risk, state, settings", _NAME),
    "set": action(
        _set,
        "set risk, timeout, fallbacks and the like of a tool",
        _NAME,
        option("pairs", metavar="KEY=VALUE", nargs="+", help="what to set"),
        description="Set what holds for a tool, from now on. KEY= unsets. The keys:\n\n"
        "  enabled     false hides it\n"
        "  risk        high or low; only this lowers the risk of a tool\n"
        "  read_only   true: it changes nothing, and may be tried again\n"
        "  idempotent  true: to run it twice does no harm, and it may be tried again\n"
        "  timeout_ms  how long one attempt may take\n"
        "  fallbacks   server.tool,… to call in its place when it fails, in this order\n"
        "  versions    the compatible versions, like '>=1.2,<2'\n",
        epilog="examples:\n  mcp-junction tools set git.git_log idempotent=true timeout_ms=5000\n"
        "  mcp-junction tools set search.query fallbacks=mirror.query,archive.find\n"
        "  mcp-junction tools set files.update_index risk=low\n"
        "  mcp-junction tools set files.update_index risk=\n",
    ),
}
