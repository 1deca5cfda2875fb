"""``mcp-junction agents``: shows, adds and removes the agents of a running service."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from mcp_junction.cli.options import action, make_parser, option
from mcp_junction.cli.printing import (
    print_message,
    print_table,
    print_value,
    print_warnings,
    printable,
)
from mcp_junction.cli.remote import ServiceClient, path_to, run_action
from mcp_junction.cli.values import format_moment, name_target, read_targets
from mcp_junction.policy.grants import ANY, SEPARATOR

AGENTS: Final = "/api/v1/mcp/agents"


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction agents",
        "Show, add and remove the agents of a running `mcp-junction serve`.",
        "examples:\n  mcp-junction agents list\n"
        "  mcp-junction agents add build-bot --type ci --tool git.git_status --make-key\n"
        "  mcp-junction agents remove build-bot\n",
    )
    return run_action(parser, argv, _ACTIONS)


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = list(remote.array(AGENTS))
    rows = [
        (
            one["agent_id"],
            one["agent_type"],
            one["grants"],
            "\n".join(one["declared_tools"]),
            format_moment(one["created_at"]),
            one["created_by"],
        )
        for one in found
    ]
    empty = "There are no agents yet; see: mcp-junction agents add --help"
    headings = ("agent", "type", "grants", "declares", "since", "by")
    return print_table(args, found, headings, rows, empty)


def _add(args: argparse.Namespace, remote: ServiceClient) -> int:
    made = remote.post(
        AGENTS,
        {
            "agent_id": args.agent,
            "agent_type": args.type,
            "declared_tools": [_declare(one, remote) for one in args.tool],
            "create_key": args.make_key,
        },
    )
    for one in made["bound"]:
        print_warnings(one)
    return print_value(args, made, _print_made)


def _declare(text: str, remote: ServiceClient) -> str:
    """Write a tool as it is declared, server:tool; other commands write it as server.tool."""
    if SEPARATOR in text or text == ANY:
        return text
    (target,) = read_targets(remote, [text])
    return f"{text.removesuffix(target.tool_name)[:-1]}{SEPARATOR}{target.tool_name}"


def _print_made(made: dict[str, Any]) -> None:
    """Print the key alone to stdout, and the rest to stderr."""
    agent = printable(made["agent_id"])
    for one in made["bound"]:
        print(f"Grant {one['id'][:8]}: {agent} may use {name_target(one)}", file=sys.stderr)
    if not made["grants"]:
        words = f"{agent} sees nothing yet; see: mcp-junction grants add --help"
        print(words, file=sys.stderr)
    if made.get("key"):
        print(made["key"], flush=True)
        print(f"The key of {agent}. It is not shown again.", file=sys.stderr)


def _remove(args: argparse.Namespace, remote: ServiceClient) -> int:
    remote.delete(path_to(AGENTS, args.agent))
    words = f"{printable(args.agent)} is removed, with its keys, grants and tokens."
    return print_message(args, {"removed": args.agent}, words)


_AGENT: Final = option("agent", metavar="AGENT", help="its id")
_ACTIONS: Final = {
    "list": action(_list, "show all agents"),
    "add": action(
        _add,
        "add an agent, bind the tools that it declares, and make its key",
        _AGENT,
        option("--type", metavar="TYPE", default="", help="what kind of agent it is"),
        option(
            "--tool",
            metavar="SERVER.TOOL",
            action="append",
            default=[],
            help="a tool that it declares; * and ? stand for any characters; can be repeated",
        ),
        option("--make-key", action="store_true", help="make a key for it and print it, once"),
        description="Add an agent. The tools that it declares are granted; to add it again replaces"
        "\nwhat it declared before, and leaves grants that were given otherwise.",
    ),
    "remove": action(_remove, "remove an agent with its keys, grants and tokens", _AGENT),
}
