"""``mcp-junction breakers [reset]``: shows and resets the circuit breakers of a running service."""

from __future__ import annotations

import argparse
from typing import Any, Final

from mcp_junction.cli.options import make_parser, option
from mcp_junction.cli.printing import print_message, print_table, printable
from mcp_junction.cli.remote import ServiceClient, path_to, run_listing
from mcp_junction.cli.values import format_moment, name_target, read_targets

BREAKERS: Final = "/api/v1/mcp/circuit-breakers"
_COLOURS: Final = {"CLOSED": "green", "OPEN": "red", "HALF_OPEN": "yellow"}


def run(argv: list[str]) -> int:
    parser = make_parser(
        "mcp-junction breakers",
        "Show the circuit breakers of a running `mcp-junction serve`, or reset some. A circuit"
        "\nopens when its tool or server keeps failing: calls are refused at once until the"
        "\ncooldown is over and a few calls have succeeded.",
        "examples:\n  mcp-junction breakers\n  mcp-junction breakers --open\n"
        "  mcp-junction breakers reset git.git_log\n"
        "  mcp-junction breakers reset 'git.*'         # all circuits of the server\n",
        option("--open", action="store_true", help="only those that are not closed"),
    )
    ids = ("SERVER.TOOL", "the circuits to reset")
    return run_listing(parser, argv, _ACTIONS, ids, "name a circuit, like git.git_log or 'git.*'")


def _list(args: argparse.Namespace, remote: ServiceClient) -> int:
    found = [one for one in remote.array(BREAKERS) if not (args.open and one["state"] == "CLOSED")]
    empty = "Every circuit is closed." if args.open else "Nothing was called yet."
    headings = ("circuit", "state", "failures", "last failure", "opened", "tried again")
    return print_table(args, found, headings, map(_row, found), empty)


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    from rich.text import Text

    state = one["state"]
    return (
        name_target(one),
        Text(state, _COLOURS.get(state, "")),
        one["failure_count"],
        format_moment(one["last_failure_time"]),
        format_moment(one["opened_at"]),
        format_moment(one["retry_at"]),
    )


def _reset(args: argparse.Namespace, remote: ServiceClient) -> int:
    targets = read_targets(remote, args.ids)
    paths = [path_to(BREAKERS, one.server_id, one.tool_name, "reset") for one in targets]
    done = [remote.post(path) for path in paths]
    lines = (f"The circuit of {printable(name)} is closed." for name in args.ids)
    return print_message(args, done, *lines)


_ACTIONS: Final = {"list": _list, "reset": _reset}
