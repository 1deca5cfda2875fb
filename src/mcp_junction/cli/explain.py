"""``mcp-junction explain AGENT TOOL [JSON]``: says whether an agent may make a call, and why."""

from __future__ import annotations

import json
from typing import Any, Final

from mcp_junction.cli.options import make_parser, option
from mcp_junction.cli.printing import print_value, printable
from mcp_junction.cli.remote import ServiceClient, add_remote_options
from mcp_junction.cli.values import read_arguments, read_targets

EXPLAIN: Final = "/api/v1/mcp/explain"


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction explain",
        "Say whether an agent may call a tool now, by which rule, and what would change that."
        "\nNothing is called. Exit code 1 if it may not.",
        "examples:\n  mcp-junction explain build-bot git.git_commit\n"
        '  mcp-junction explain build-bot files.delete_file \'{"path": "/tmp/x"}\'\n',
        option("agent", metavar="AGENT", help="the agent's id"),
        option("tool", metavar="TOOL", help="server.tool"),
        option("arguments", metavar="JSON", nargs="?", help="the arguments of the call"),
        add_remote_options,
    )
    args = parser.parse_args(argv)
    remote = ServiceClient.from_options(args)
    (target,) = read_targets(remote, [args.tool])
    body: dict[str, Any] = {
        "agent_id": args.agent,
        "server_id": target.server_id,
        "tool_name": target.tool_name,
    }
    if args.arguments is not None:
        body["params"] = json.loads(read_arguments(args.arguments))
    found = remote.post(EXPLAIN, body)
    print_value(args, found, _print)
    return 0 if found["decision"] == "ALLOW" else 1


def _print(found: dict[str, Any]) -> None:
    import sys

    from rich.console import Console
    from rich.markup import escape

    console = Console(file=sys.stdout, emoji=False, highlight=False, soft_wrap=True)
    colour = "green" if found["decision"] == "ALLOW" else "red"
    rule = escape(printable(found["rule"]))
    console.print(f"[bold {colour}]{found['decision']}[/] by {rule}: ", end="")
    console.print(escape(printable(found["reason"])))
    if found["token_required"]:
        console.print("It is a high-risk tool: a call needs a token of the grant.")
    for one in found["conditions"]:
        state = "met" if one["is_met"] else "not met"
        console.print(f"The condition of grant {escape(one['grant_id'])} is {state}:")
        for part in one["parts"]:
            console.print(f"  {escape(printable(part['text']))}  →  {escape(part['value'])}")
    if found["would_pass_if"]:
        is_allowed = found["decision"] == "ALLOW"
        console.print(f"It {'is allowed, but may fail unless' if is_allowed else 'would pass if'}:")
        for one in found["would_pass_if"]:
            console.print(f"  - {escape(printable(one))}")
